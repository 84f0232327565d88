"""fluke (https://github.com/makgyver/fluke) on a task: its algorithm classes on its own FastDataLoader, in memory.

The loader of training samples leaves out the last, partial batch, as pflbench does; fluke's own keeps it. Methods with one global
model are tested as fluke's server does it: on the pooled test samples of all clients, 128 at a time. Others are tested client by
client after they have received the global model and before they train, which is when pflbench tests them; the test of round t
therefore takes place in round t + 1. fluke's evaluation computes seven metrics.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module, metadata
from typing import Any, Literal

import common
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Method:
    """algorithm: fluke's class. client, server: its hyperparameters, pflbench's values.

    personal: whether clients use models of their own. shared: the part of the model that the server has, if it is not all of it.
    """

    algorithm: str
    client: dict[str, Any] = field(default_factory=dict)
    server: dict[str, Any] = field(default_factory=dict)
    personal: bool = False
    shared: Literal["", "encoder", "head"] = ""


METHODS = {
    "fedavg": Method("fedavg.FedAVG"),
    "fedprox": Method("fedprox.FedProx", {"mu": 0.001}),
    "scaffold": Method("scaffold.SCAFFOLD", server={"weighted": False}),
    "feddyn": Method("feddyn.FedDyn", {"alpha": 0.01}, {"weighted": False}),
    "fedbn": Method("fedbn.FedBN"),
    "ditto": Method("ditto.Ditto", {"tau": 2, "lam": 0.1}, personal=True),
    "fedper": Method("fedper.FedPer", personal=True, shared="encoder"),
    "fedrep": Method("fedrep.FedRep", {"tau": 1, "local_epochs": 5}, personal=True, shared="encoder"),
    "lg-fedavg": Method("lg_fedavg.LGFedAVG", personal=True, shared="head"),
}


class Enough(Exception):
    """The last round has been tested."""


def split(model: nn.Module) -> nn.Module:
    """The model as fluke's encoder and head."""
    from fluke.nets import EncoderHeadNet

    class Net(EncoderHeadNet):
        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.encoder(x))

    head, model.output = model.output, nn.Identity()
    return Net(model, head)


class Splitter:
    """In place of fluke's DataSplitter: the task's federation."""

    def __init__(self, task: common.Task) -> None:
        self.task = task
        self.num_classes = task.facts["classes"]

    def assign(self, clients: int, batch_size: int) -> tuple[tuple[list[Any], list[Any]], Any]:
        from fluke.data import FastDataLoader

        task = self.task

        class DropLast(FastDataLoader):
            """Without the last, partial batch, unless it is the only one. Its `size`, which weighs the client, is not changed."""

            def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
                super().__iter__()
                used = self.size // batch_size * batch_size if task.drops_last(self.size) else self.size
                for at in range(0, used, batch_size):
                    yield tuple(t[at : at + batch_size] for t in self.tensors)

            def __len__(self) -> int:
                return max(1, self.size // batch_size)

        def loader(kind: type[Any], x: Tensor, y: Tensor, size: int, shuffle: bool) -> Any:
            return kind(x, y, num_labels=self.num_classes, batch_size=size, shuffle=shuffle, skip_singleton=False)

        train = [loader(DropLast, c.train_x, c.train_y, batch_size, True) for c in task.clients]
        test = [loader(FastDataLoader, c.test_x, c.test_y, batch_size, False) for c in task.clients]
        pooled = (torch.cat([getattr(c, name) for c in task.clients]) for name in ("test_x", "test_y"))
        return (train, test), loader(FastDataLoader, *pooled, 128, False)


def algorithm(task: common.Task, method: Method) -> Any:
    """fluke's algorithm, with its clients and its server."""
    from fluke import DDict

    facts, model = task.facts, task.model()
    model = split(model) if method.shared else model
    client = {
        "batch_size": facts["batch_size"],
        "local_epochs": facts["local_epochs"],
        "loss": "CrossEntropyLoss",
        "optimizer": {"name": "SGD", "lr": facts["lr"]},
        "scheduler": {"name": "StepLR", "step_size": 1, "gamma": 1},
        **method.client,
    }
    if method.personal:
        client["model"] = copy.deepcopy(model)
    module, name = method.algorithm.split(".")
    made = getattr(import_module(f"fluke.algorithms.{module}"), name)
    shared = copy.deepcopy(getattr(model, method.shared)) if method.shared else model
    options = DDict(client=client, server={"weighted": True, **method.server}, model=shared)
    federation = made(facts["clients"], Splitter(task), options)
    if method.shared:  # FedRep's clients would share the head of one object
        for own in federation.clients:
            own.model = copy.deepcopy(own.model)
    return federation


class Follower:
    """Observes the algorithm's rounds; fluke calls its methods by the events' names."""

    def __init__(self, task: common.Task, personal: bool, rounds: int, recorder: common.Recorder) -> None:
        self.tested = [len(client.test_y) for client in task.clients]
        self.personal, self.rounds, self.recorder = personal, rounds, recorder
        self.accuracy = math.nan
        self.right: list[float] = []

    def evaluating(self, evaluate: Callable[..., Any]) -> Callable[..., Any]:
        """The evaluator's function, timed."""

        def evaluated(*given: Any, **named: Any) -> Any:
            with self.recorder.evaluating():
                found = evaluate(*given, **named)
            if self.personal:
                self.right.append(found["accuracy"] * self.tested[len(self.right)])
            else:
                self.accuracy = 100 * found["accuracy"]
            return found

        return evaluated

    def end_round(self, round: int) -> None:
        if self.personal:
            self.accuracy = 100 * sum(self.right) / sum(self.tested)
            self.right = []
            if round == 1:  # what it tested were the initial models
                self.recorder.end_round(math.nan)
                return
            self.recorder.accuracy[-1] = self.accuracy
            if round > self.rounds:
                raise Enough
        self.recorder.end_round(self.accuracy)
        if not self.personal and round == self.rounds:
            raise Enough


def arm(task: common.Task, name: str, rounds: int, seed: int, recorder: common.Recorder) -> None:
    if name not in METHODS:
        raise common.NotPossible("fluke, or this adapter, does not have the method")
    common.allow_torchvision()
    from fluke import FlukeENV
    from fluke.evaluation import ClassificationEval

    method = METHODS[name]
    evaluator = ClassificationEval(eval_every=1, n_classes=task.facts["classes"])
    follower = Follower(task, method.personal, rounds, recorder)
    evaluator.evaluate = follower.evaluating(evaluator.evaluate)
    environment = FlukeENV()
    environment.set_seed(seed)
    environment.set_device("cpu")
    environment.set_evaluator(evaluator)
    environment.set_eval_cfg(pre_fit=method.personal, post_fit=False, locals=False, server=not method.personal)
    federation = algorithm(task, method)
    federation.attach(follower)
    recorder.begin()
    with suppress(Enough):
        federation.run(rounds + method.personal, 1.0)


if __name__ == "__main__":
    common.main("fluke", lambda: metadata.version("fluke-fl"), arm)
