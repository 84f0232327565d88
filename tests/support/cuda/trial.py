"""Two rounds of a method on the stand-in, made as a run makes them, and what was counted."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, get_args, get_type_hints

import numpy as np
import torch
from support.cuda.stand_in import Counts

from pflbench import methods
from pflbench.data import Arrays
from pflbench.engine.federation import Federation
from pflbench.partition import Partition
from pflbench.run.arithmetic import exact_arithmetic
from pflbench.run.execution import Execution, find_device
from pflbench.run.federation_data import FederationData
from pflbench.run.memory_estimate import footprint
from pflbench.run.prepared import prepare
from pflbench.run.round import rounds
from pflbench.spec import IID, DataSpec, RunSpec, TrainSpec

SAMPLES = (45, 37, 21, 20, 12)  # of clients, by turns: unequal numbers of batches, the last one of 1 to 10, for Elastic as well
WORDS, LENGTH = 98_635, 200  # of AG News
# The papers' data: shape of a sample, classes.
DATA: dict[str, tuple[tuple[int, ...], int]] = {
    "mlp": ((1, 28, 28), 10),
    "logreg": ((1, 28, 28), 10),
    "cnn, 1 channel": ((1, 28, 28), 10),
    "cnn, 3 channels": ((3, 32, 32), 10),
    "cnn2": ((1, 28, 28), 62),
    "resnet18": ((3, 64, 64), 200),
    "resnet20": ((3, 32, 32), 10),
    "resnet20-gn": ((3, 32, 32), 10),
    "fasttext": ((LENGTH,), 4),
}
CONVOLUTIONS = get_args(get_type_hints(Execution)["convolution"])[1:]  # behind "auto", which times them
FEW = {"finetune_cap": "2", "max_init_epochs": "2"}  # of hyperparameters: passes that no test needs more of


@dataclass(frozen=True)
class Counted:
    """Of two rounds; kernels, replays and waits of the second one, when all is captured."""

    method: str
    model: str
    clients: int
    kernels: int  # in a replay, on average
    replays: int
    waits: int  # of the host for the device
    programs: int
    uncaptured: dict[str, int]  # steps by the reason
    shortages: int
    beside_capture: int  # kernels that a capture has missed
    reserved: int  # bytes of the device, at most
    estimate: int  # what `footprint` had said of them


@cache
def setting(model: str, clients: int) -> FederationData:
    """Data of the right shapes and of no content."""
    shape, classes = DATA[model]
    texts = model == "fasttext"
    sizes = np.resize(SAMPLES, clients)
    bounds = np.cumsum([0, *sizes, *(sizes // 3)])
    parts = [np.arange(begin, end) for begin, end in pairwise(bounds)]
    x = np.zeros((bounds[-1], *shape), np.int64 if texts else np.uint8)
    arrays = Arrays(x, np.arange(len(x)) % classes, tuple(map(str, range(classes))), WORDS if texts else None)
    return FederationData(arrays, Partition(tuple(parts[:clients]), tuple(parts[clients:])), record=None, content={})  # type: ignore[arg-type]


def specification(method: str, model: str, clients: int) -> RunSpec:
    few = {h.name: FEW[h.name] for h in methods.hyperparameters(method) if h.name in FEW}
    return RunSpec(
        data=DataSpec(name="digits"),  # of which nothing is read
        partition=IID(clients=clients),
        model=model.partition(",")[0],
        train=TrainSpec(rounds=2, batch_size=10, lr=0.005),
        method=methods.spec(method, few),
    )


@contextmanager
def prepared(method: str, model: str, device: str, clients: int, **how: Any) -> Iterator[tuple[Federation, int]]:
    """A federation on a device that has nothing else, and the bytes that are estimated for it."""
    spec, of = specification(method, model, clients), setting(model, clients)
    execution = Execution(device, **{"convolution": CONVOLUTIONS[0], **how})
    place = find_device(device)
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    estimate = footprint(spec, of, execution)
    assert estimate is not None
    torch.cuda.reset_peak_memory_stats(place)
    with exact_arithmetic(place, spec.train.dtype, execution.deterministic):
        fed = prepare(spec, of, place, execution).federation()
        try:
            yield fed, estimate.total
        finally:
            fed.executor.close()


def play(method: str, model: str, device: str, clients: int = 20, **how: Any) -> Counted:
    """how: as in Execution."""
    with prepared(method, model, device, clients, **how) as (fed, estimate):
        both = rounds(methods.make(specification(method, model, clients).method), fed)
        begun = Counts.of(fed.device)
        next(both)
        before = Counts.of(fed.device)
        next(both)
        after = Counts.of(fed.device)
        second, steps = after - before, fed.executor.record()["steps"]
        return Counted(
            method,
            model,
            clients,
            kernels=second.replayed // max(1, second.replays),
            replays=second.replays,
            waits=second.waits,
            programs=steps["programs"],
            uncaptured=steps["apart"],
            shortages=len(fed.executor.shortages()),
            beside_capture=(after - begun).beside_capture,
            reserved=torch.cuda.max_memory_reserved(fed.device),
            estimate=estimate,
        )
