"""Two rounds of a method on the stand-in, made as a run makes them, and what was counted."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

import numpy as np
import torch
from support.cuda.stand_in import Counts

from pflbench.contract.as_run import dealt, specification
from pflbench.contract.as_run import method as make
from pflbench.engine.federation import Federation
from pflbench.run.arithmetic import exact_arithmetic
from pflbench.run.device import find_device
from pflbench.run.execution import Execution
from pflbench.run.federation_data import FederationData
from pflbench.run.memory_estimate import footprint
from pflbench.run.prepared import prepare
from pflbench.run.round import rounds

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
    x = np.zeros((sum(sizes) + sum(sizes // 3), *shape), np.int64 if texts else np.uint8)
    return dealt(x, np.arange(len(x)) % classes, sizes, sizes // 3, classes, WORDS if texts else None)


@contextmanager
def prepared(method: str, model: str, device: str, clients: int, **how: Any) -> Iterator[tuple[Federation, int]]:
    """A federation on a device that has nothing else, and the bytes that are estimated for it."""
    spec, of = specification(method, model, clients, batch_size=10, lr=0.005), setting(model, clients)
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
        with closing(fed.executor):
            yield fed, estimate.total


def play(method: str, model: str, device: str, clients: int = 20, **how: Any) -> Counted:
    """how: as in Execution."""
    with prepared(method, model, device, clients, **how) as (fed, estimate):
        both = rounds(make(method), fed)
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
            shortages=len(fed.executor.chunks.shortages),
            beside_capture=(after - begun).beside_capture,
            reserved=torch.cuda.max_memory_reserved(fed.device),
            estimate=estimate,
        )
