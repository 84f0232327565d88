"""The floor: what a round must cost, in FLOPs and bytes, and the seconds that takes at this machine's ceilings.

Counted is what a method asks of the executor in a round of its own: so the floor of any method is known, also of one's own. What
is no part of a step (averages on the server, the C x C work of FedFomo and FedAMP) does not count. FLOPs are those of direct
convolutions, which an FFT or Winograd's algorithm can undercut; a small model that stays in a cache can undercut the bytes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from pflbench.bench.ceilings import Ceilings
from pflbench.bench.counting import Counter, Work
from pflbench.engine.federation import Federation
from pflbench.engine.samples import Samples
from pflbench.methods.base import Method
from pflbench.run.execution import Execution
from pflbench.run.prepared import prepare
from pflbench.run.round import rounds
from pflbench.run.setting import Setting
from pflbench.spec import RunSpec

UNTIMED = 2  # rounds before those that are measured: in the second, ALA has its initial stage
STEADY = UNTIMED + 1


@dataclass(frozen=True)
class Floor:
    """Of one phase."""

    flops: float
    bytes: float
    seconds: float
    bound: str  # "arithmetic" or "memory": which of the two takes longer


def work(spec: RunSpec, setting: Setting, t: int = STEADY) -> dict[str, Work]:
    """By phase, the work of round t. Nothing is trained.

    In ALA's initial stage (t = 2) it is that of the fewest epochs after which the stage can end.
    """
    device = torch.device("cpu")
    run = prepare(spec, setting, device, Execution(engine="batched"))
    fed = run.federation()
    samples = Samples(setting.arrays.x, setting.arrays.y, fed.dtype, device)
    return count(run.method, fed, samples, t)


def count(method: Method, fed: Federation, samples: Samples, t: int = STEADY) -> dict[str, Work]:
    """As `work`, of a federation on a CPU, whose executor is not used."""
    counter = Counter(fed.flat, samples)
    counted = copy.copy(fed)
    counted.executor = counter
    found: dict[str, Work] = {}

    @contextmanager
    def counting(phase: str) -> Iterator[None]:
        found[phase] = counter.begin()
        yield

    made = rounds(method, counted, counting)
    for _ in range(t):
        next(made)
    return found


def floors(of: dict[str, Work], ceilings: Ceilings) -> dict[str, Floor]:
    """By phase. The floor of a round is the sum of its phases'."""
    return {phase: _floor(work, ceilings) for phase, work in of.items()}


def times(floor: Floor, count: int) -> Floor:
    """Of so many of the same."""
    return replace(floor, flops=count * floor.flops, bytes=count * floor.bytes, seconds=count * floor.seconds)


def _floor(work: Work, ceilings: Ceilings) -> Floor:
    arithmetic, memory = work.flops / ceilings.flops, work.bytes / ceilings.bandwidth
    return Floor(work.flops, work.bytes, max(arithmetic, memory), "arithmetic" if arithmetic >= memory else "memory")
