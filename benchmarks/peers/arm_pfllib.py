"""PFLlib (https://github.com/TsingZ0/PFLlib) on a task: its server classes, as its main.py makes them, on the task's arrays.

`read_client_data` is replaced in its modules by one that keeps the samples in memory: PFLlib reads and converts a client's file
each time that the client trains or is tested, and is spared that here. Hyperparameters are pflbench's (preset pfllib2025).
PFLlib's evaluation also computes the loss on the training samples and the area under the ROC curve.
"""

from __future__ import annotations

import copy
import os
import random
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch
from torch import nn

# The arguments of its main.py, lines 388-480, with their defaults where the method's own values do not follow.
DEFAULTS: dict[str, Any] = {
    "goal": "test", "device": "cpu", "dataset": "task", "learning_rate_decay": False, "learning_rate_decay_gamma": 0.99,
    "top_cnt": 100, "join_ratio": 1.0, "random_join_ratio": False, "prev": 0, "times": 1, "eval_gap": 1,
    "save_folder_name": "items", "auto_break": False, "dlg_eval": False, "dlg_gap": 100, "batch_num_per_client": 2,
    "num_new_clients": 0, "fine_tuning_epoch_new": 0, "feature_dim": 512, "few_shot": 0, "client_drop_rate": 0.0,
    "train_slow_rate": 0.0, "send_slow_rate": 0.0, "time_select": False, "time_threthold": 10000.0, "beta": 0.0, "lamda": 1.0,
    "mu": 0.0, "K": 5, "p_learning_rate": 0.01, "M": 5, "alphaK": 1.0, "sigma": 1.0, "alpha": 1.0, "plocal_epochs": 1, "tau": 1.0,
    "fine_tuning_epochs": 10, "dr_learning_rate": 0.0, "L": 1.0, "server_learning_rate": 1.0, "eta": 1.0, "rand_percent": 80,
    "layer_idx": 2, "momentum": 0.1, "kl_weight": 0.0,
}  # fmt: skip


@dataclass(frozen=True)
class Method:
    """module, server: PFLlib's class. split: whether main.py splits the model into base and head.

    evaluations: the number of evaluations in a round, of which the last is of the models that clients use.
    """

    module: str
    server: str
    split: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)
    evaluations: int = 1


METHODS = {
    "fedavg": Method("avg", "FedAvg", split=True),
    "local": Method("local", "Local"),
    "fedprox": Method("prox", "FedProx", arguments={"mu": 0.001}),
    "per-fedavg": Method("peravg", "PerAvg"),
    "fedrep": Method("rep", "FedRep", split=True, arguments={"plocal_epochs": 5}),
    "pfedme": Method("pFedMe", "pFedMe", arguments={"lamda": 15.0, "K": 5, "p_learning_rate": 0.01, "beta": 1.0}),
    "ditto": Method("ditto", "Ditto", arguments={"mu": 0.1, "plocal_epochs": 2}, evaluations=2),
    "fedamp": Method("amp", "FedAMP", arguments={"alphaK": 1000.0, "lamda": 1.0, "sigma": 0.1}),
    "fedfomo": Method("fomo", "FedFomo", arguments={"M": 10**6}),
    "apple": Method("apple", "APPLE", arguments={"dr_learning_rate": 0.01, "mu": 0.1, "L": 0.2}),
    "fedala": Method("ala", "FedALA", arguments={"eta": 1.0, "rand_percent": 80, "layer_idx": 2}),
    "fedper": Method("per", "FedPer", split=True),
    "lg-fedavg": Method("lg", "LG_FedAvg", split=True),
    "fedbabu": Method("babu", "FedBABU", split=True),
    "fedbn": Method("bn", "FedBN"),
    "apfl": Method("apfl", "APFL", arguments={"alpha": 1.0}),
    "scaffold": Method("scaffold", "SCAFFOLD"),
    "moon": Method("moon", "MOON", split=True, arguments={"mu": 1.0, "tau": 1.0}),
    "feddyn": Method("dyn", "FedDyn", arguments={"alpha": 1.0}),
    "fedrod": Method("rod", "FedROD", split=True),
    "fedproto": Method("proto", "FedProto", split=True, arguments={"lamda": 1.0}),
    "feddbe": Method("dbe", "FedDBE", split=True, arguments={"momentum": 1.0, "kl_weight": 50.0}),
    "fedpac": Method("pac", "FedPAC", split=True, arguments={"lamda": 1.0}),
    "fedas": Method("as", "FedAS", split=True),
    "gpfl": Method("gpfl", "GPFL", split=True, arguments={"lamda": 0.01, "mu": 0.1}),
    "fedcp": Method("cp", "FedCP", split=True, arguments={"lamda": 5.0}),
}


class Enough(Exception):
    """The last round has been tested."""


def arguments(task: common.Task, method: Method, name: str, rounds: int) -> Namespace:
    """As main.py makes them."""
    facts, model = task.facts, task.model()
    made = {
        **DEFAULTS, "algorithm": name, "num_classes": facts["classes"], "num_clients": facts["clients"], "global_rounds": rounds,
        "batch_size": facts["batch_size"], "local_learning_rate": facts["lr"], "local_epochs": facts["local_epochs"],
    }  # fmt: skip
    if name == "per-fedavg":
        made["beta"] = facts["lr"]
    if method.split:
        from flcore.trainmodel.models import BaseHeadSplit

        head, model.output = copy.deepcopy(model.output), nn.Identity()
        made["head"], model = head, BaseHeadSplit(model, head)
    return Namespace(**{**made, **method.arguments, "model": model})


def reading(task: common.Task) -> Callable[..., list[tuple[torch.Tensor, torch.Tensor]]]:
    """In place of `read_client_data`: PFLlib's lists of samples, made once."""
    train = [list(zip(c.train_x, c.train_y, strict=True)) for c in task.clients]
    test = [list(zip(c.test_x, c.test_y, strict=True)) for c in task.clients]

    def read(dataset: str, idx: int, is_train: bool = True, few_shot: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return (train if is_train else test)[idx]

    return read


def arm(task: common.Task, name: str, rounds: int, seed: int, recorder: common.Recorder) -> None:
    if name not in METHODS:
        raise common.NotPossible("PFLlib, or this adapter, does not have the method")
    sys.path.insert(0, str(Path(common.made()["source"]) / "system"))
    method = METHODS[name]
    server_class = getattr(import_module(f"flcore.servers.server{method.module}"), method.server)
    read = reading(task)
    for module in [m for n, m in sys.modules.items() if n.startswith(("flcore", "utils"))]:
        if hasattr(module, "read_client_data"):
            module.read_client_data = read  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        torch.manual_seed(0)
        server = server_class(arguments(task, method, name, rounds), 0)
        for seeded in (torch.manual_seed, np.random.seed, random.seed):
            seeded(seed)
        follow(server, method, rounds, recorder)
        try:
            server.train()
        except Enough:
            pass
        finally:
            os.chdir("/")


def follow(server: Any, method: Method, rounds: int, recorder: common.Recorder) -> None:
    """Times the server's evaluations, which come before each round's training: the first is of the initial models."""
    calls = 0

    def timed(evaluate: Callable[..., None]) -> Callable[..., None]:
        def evaluated(*given: Any, **named: Any) -> None:
            nonlocal calls
            start = recorder.cpu()
            with recorder.evaluating():
                evaluate(*given, **named)
            calls += 1
            tested, more = divmod(calls, method.evaluations)
            if calls == 1:
                recorder.start_cpu_s = start
            if more:
                return
            if tested == 1:
                recorder.begin(recorder.start_cpu_s)
                return
            accuracy = (getattr(server, "rs_test_acc_per", None) or server.rs_test_acc)[-1]
            recorder.end_round(100 * float(accuracy))
            if tested > rounds:
                raise Enough

        return evaluated

    for name in ("evaluate", "evaluate_personalized", "evaluate_one_step"):
        if hasattr(server, name):
            setattr(server, name, timed(getattr(server, name)))


if __name__ == "__main__":
    common.main("pfllib", lambda: str(common.made().get("version", "unknown")), arm)
