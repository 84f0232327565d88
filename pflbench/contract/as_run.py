"""Federations as runs have them, on made-up data, and all numbers of their rounds, for the checks of a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pflbench import methods
from pflbench.contract import small
from pflbench.data import Arrays
from pflbench.engine.federation import Federation
from pflbench.methods.base import Method
from pflbench.partition import Partition
from pflbench.run import round as one_round
from pflbench.run.execution import Execution
from pflbench.run.federation_data import FederationData
from pflbench.run.prepared import Prepared, prepare
from pflbench.spec import IID, DataSpec, RunSpec, TrainSpec

Way = Literal["", "loop", "batched", "captured", "deterministic"]
Floats = Literal["float64", "float32"]

WITH_EVERY_MODEL = ("fedavg", "fedala")  # the methods that a model is checked with
# Clients make unequal numbers of steps, and each round has a learning rate of its own.
CLIENTS: dict[str, Any] = {"n": small.unequal(10), "batch_size": 10, "lr": 0.02, "lr_schedule": "cosine"}
# A step of ResNet-18 takes half a second on a CPU: steps here are of 20, 19 and 2 clients. At a higher rate float32 diverges.
FEWER_STEPS: dict[str, Any] = {**CLIENTS, "n": (12, *(21,) * 17, 33, 34), "lr": 0.001}
IMAGES = {"cnn, 1 channel": (1, 28, 28), "cnn, 3 channels": (3, 32, 32), "resnet18": (3, 32, 32)}
CLASSES, WORDS = 10, 500
FEW = {"finetune_cap": "2", "max_init_epochs": "2"}  # hyperparameters that limit epochs: two are enough for a check

RIGHT = "right predictions"
Numbers = dict[str, Tensor]  # in float64 on the CPU


def methods_of(what: str) -> tuple[str, ...]:
    """The methods that a model is checked with; a method by itself."""
    if what in methods.METHODS:
        return (what,)
    return WITH_EVERY_MODEL[:1] if what.startswith("resnet") else WITH_EVERY_MODEL


def federation(what: str, way: Way, floats: Floats, device: torch.device) -> Federation:
    """A federation with a model, as in a run; for a method, with the smallest model with BatchNorm."""
    if what in methods.METHODS:
        around = methods.load(what)().model
        return small.federation("batchnorm", way, device=str(device), dtype=floats, around=around, **CLIENTS)
    return run(what, way, floats, device).federation()


def run(what: str, way: Way, floats: Floats, device: torch.device) -> Prepared:
    """A run of FedAvg with a model."""
    train = dict(FEWER_STEPS if what.startswith("resnet") else CLIENTS)
    n = train.pop("n")
    spec = specification("fedavg", what, len(n), dtype=floats, **train)
    engine: Literal["loop", "batched"] = "loop" if way == "loop" else "batched"
    how = Execution(
        str(device), engine, capture="none" if way in ("loop", "batched") else "graph", deterministic=way == "deterministic"
    )
    return prepare(spec, _setting(what, n), device, how)


def specification(method: str, model: str, clients: int, **train: Any) -> RunSpec:
    """Two rounds on data that no name stands for."""
    few = {h.name: FEW[h.name] for h in methods.hyperparameters(method) if h.name in FEW}
    return RunSpec(
        data=DataSpec(name="made up"),
        partition=IID(clients=clients),
        model=model.partition(",")[0],
        train=TrainSpec(rounds=2, **train),
        method=methods.spec(method, few),
    )


def _setting(what: str, n: tuple[int, ...]) -> FederationData:
    """Images of bytes, texts of token ids, or else floats; a quarter of each client's samples are for tests."""
    draw, tests = np.random.default_rng(7), tuple(k // 3 for k in n)
    shape, vocabulary = IMAGES.get(what) or small.SHAPES[what], WORDS if what == "fasttext" else None
    x: Any = draw.normal(size=(sum(n) + sum(tests), *shape)).astype(np.float32)
    if what in IMAGES:
        x = draw.integers(256, size=x.shape, dtype=np.uint8)
    elif vocabulary:
        x = draw.integers(vocabulary, size=x.shape)
    return dealt(x, draw.integers(CLASSES, size=len(x)), n, tests, CLASSES, vocabulary)


def dealt(
    x: Any, y: Any, train: Sequence[int], test: Sequence[int], classes: int = CLASSES, vocabulary: int | None = None
) -> FederationData:
    """Samples given to clients in their order, by how many each trains on, and then is tested with."""
    parts = tuple(np.arange(a, b) for a, b in pairwise(np.cumsum([0, *train, *test])))
    partition = Partition(parts[: len(train)], parts[len(train) :])
    arrays = Arrays(x, y, tuple(map(str, range(classes))), vocabulary)
    return FederationData(arrays, partition, record=None, content={})  # type: ignore[arg-type]  # of the database, where nothing goes


def method(name: str) -> Method:
    return methods.make(specification(name, "mlp", 1, lr=1).method)


def played(method: Method, fed: Federation, count: int) -> Numbers:
    """All numbers of `count` rounds."""
    *_, last = rounds(method, fed, count)
    return last


def rounds(method: Method, fed: Federation, count: int) -> Iterator[Numbers]:
    """After each round: losses and right predictions of all rounds so far, the state and BatchNorm's buffers."""
    numbers: Numbers = {}
    for now, scores, state in islice(one_round.rounds(method, fed), count):
        for which, tested in scores.items():
            numbers[f"round {now.t}: test loss {which}"] = torch.from_numpy(tested.loss)
            if fed.dtype == torch.float64:  # else rounding decides whether a prediction is right
                numbers[f"round {now.t}: {RIGHT} {which}"] = torch.from_numpy(tested.correct)
        for which, loss in now.training.ledger.train_loss.items():
            numbers[f"round {now.t}: training loss {which}"] = torch.tensor(loss)
        buffers = {f"buffers {which}": rows for which, rows in fed.buffers.items()}
        yield {name: value.cpu().double() for name, value in (numbers | small.tensors(state) | buffers).items()}
