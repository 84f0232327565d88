"""Several runs on one executor: their clients are further rows of the same program.

Each run has a stack of its own and a `PackedExecutor`, which only hands its requests on. One run goes on at a time; when all
wait, requests that differ only in the numbers of their tensors are computed as one.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from pflbench import interrupts
from pflbench.engine import devices
from pflbench.engine.batches import Plan
from pflbench.engine.memory import Shortage
from pflbench.engine.packed.join import joinable, joined, split
from pflbench.engine.packed.stacks import RunStack, wait
from pflbench.engine.requests import Executor, HeadOnFeatures, R, Request, Scan

T = TypeVar("T")


class Pack:
    """Runs with the same samples and the same model layout; `executors` has one for each run."""

    def __init__(self, inner: Executor, runs: int) -> None:
        self.inner = inner
        self.executors = [PackedExecutor(self, run, inner) for run in range(runs)]
        self._settle = partial(devices.synchronise, inner.device)
        self._progress = [_Progress() for _ in range(runs)]
        self._stacks: list[RunStack] = []
        self._waiting: dict[int, Waiting] = {}
        self._replies: dict[int, Any] = {}

    def together(self, works: Sequence[Generator[T, None, None]]) -> Generator[tuple[int, T], None, None]:
        """Yields the items of all runs' generators, in the order of `executors`, as (number of the run, item).

        An error of one run ends the others as Ctrl-C does, and is raised.
        """
        self._stacks = [RunStack(work, self._settle) for work in works]
        try:
            while not all(stack.over for stack in self._stacks):
                for run in range(len(self._stacks)):
                    yield from self._until_it_asks(run)
                if self._waiting:
                    self._make(self._next())
        finally:
            with interrupts.held():  # each run saves a checkpoint
                self._stop()

    def _until_it_asks(self, run: int) -> Iterator[tuple[int, Any]]:
        """What a run yields until it makes a request or ends. Only then does another go on."""
        while not (self._stacks[run].over or run in self._waiting):
            for item in self._stacks[run].go_on(self._replies.pop(run, None)):
                yield run, item

    def _next(self) -> list[int]:
        """The runs whose requests are computed next, as one: the run that is most behind, and those that can join it.

        Runs that are ahead wait, so that all are together again.
        """
        first = min(self._waiting, key=lambda run: self._progress[run].place(self._waiting[run]))
        same_round = [run for run in self._waiting if self._progress[run].round == self._progress[first].round]
        return [run for run in same_round if run == first or self._waiting[first].goes_with(self._waiting[run])]

    def _make(self, runs: Sequence[int]) -> None:
        """Computes the requests of some runs as one. Each run is charged an equal part of the time and gets its results."""
        waiting = [self._waiting.pop(run) for run in runs]
        alone = len(runs) == 1 and bool(self._waiting)
        begun = time.perf_counter()
        try:
            results = self._results(runs, waiting)
        except Exception as error:
            results = [error] * len(runs)
        self._settle()
        share = (time.perf_counter() - begun) / len(runs)
        for run, request, result in zip(runs, waiting, results, strict=True):
            self._progress[run].note(request, alone)
            self._stacks[run].seconds += share
            self._replies[run] = result

    def _results(self, runs: Sequence[int], waiting: Sequence[Waiting]) -> list[Any]:
        requests = [each.request for each in waiting]
        several = len(requests) > 1
        result = waiting[0].executor.do(joined(requests) if several else requests[0])
        if isinstance(result, HeadOnFeatures):
            return self._heads(runs, [request.plan for request in requests], result.executor)
        return split(result, [len(request.plan) for request in requests]) if several else [result]

    def _heads(self, runs: Sequence[int], plans: Sequence[Plan], inner: Executor) -> list[HeadOnFeatures]:
        """A head executor for each run, on the features of all runs one after another."""
        starts = np.cumsum([0, *(sum(map(len, plan.order)) for plan in plans)])
        users = set(runs)
        heads = [PackedExecutor(self, run, inner, int(start), users) for run, start in zip(runs, starts, strict=False)]
        return [HeadOnFeatures(head, plan.positions()) for head, plan in zip(heads, plans, strict=True)]

    def _stop(self) -> None:
        self._waiting.clear()
        for run, stack in enumerate(self._stacks):
            reply = self._replies.pop(run, None)
            stack.stop(reply if isinstance(reply, Exception) else KeyboardInterrupt())

    # -- called by the executors ----------------------------------------------------------------------------------------------

    def ask(self, run: int, waiting: Waiting) -> Any:
        self._settle()
        self._waiting[run] = waiting
        return wait()

    def clock(self, run: int) -> float:
        self._settle()
        return self._stacks[run].clock()

    def begin_round(self, run: int, t: int) -> None:
        self._progress[run].begin_round(t)

    def record(self, run: int) -> dict[str, Any]:
        """pack: its number of runs, this run's requests, and how many of them were computed for it alone."""
        progress = self._progress[run]
        pack = {"runs": len(self.executors), "calls": progress.calls, "apart": progress.apart}
        return {**self.inner.record(), "pack": pack}


class PackedExecutor(Executor):
    """One run's executor in a pack. first: index of its first sample among those of all. users: runs that still need `inner`."""

    def __init__(self, pack: Pack, run: int, inner: Executor, first: int = 0, users: set[int] | None = None) -> None:
        self.name = inner.name
        self.device = inner.device
        self._pack, self._run, self._inner, self._first, self._users = pack, run, inner, first, users

    def do(self, request: Request[R]) -> R:
        if self._first:
            request = replace(request, plan=request.plan.shifted(self._first))
        result: R = self._pack.ask(self._run, Waiting(self._inner, request))
        return result

    def close(self) -> None:
        """The last run that needs a head executor closes it. The main executor is closed by the pack's owner."""
        if self._users is not None:
            self._users.discard(self._run)
            if not self._users:
                self._inner.close()

    def begin_round(self, t: int) -> None:
        """Only requests of the same round are computed together."""
        self._pack.begin_round(self._run, t)

    def clock(self) -> float:
        """Seconds of this run's own work, and its part of work for several runs."""
        return self._pack.clock(self._run)

    def record(self) -> dict[str, Any]:
        return self._pack.record(self._run)

    def shortages(self) -> Sequence[Shortage]:
        return self._pack.inner.shortages()

    def remember(self, shortages: Sequence[Shortage]) -> None:
        self._pack.inner.remember(shortages)


@dataclass(frozen=True)
class Waiting:
    """A request that a run waits for, and the executor that it is for."""

    executor: Executor
    request: Request[Any]

    @property
    def kind(self) -> tuple[Any, ...]:
        step = self.request.step if isinstance(self.request, Scan) else None
        return self.executor, type(self.request), step.func if isinstance(step, partial) else step

    def goes_with(self, other: Waiting) -> bool:
        """Whether the two can be computed as one."""
        return self.executor is other.executor and joinable(self.request, other.request)


@dataclass
class _Progress:
    """How far a run is. stage: changes of the kind of request in this round; count: requests in this round."""

    round: int = 0
    stage: int = 0
    count: int = 0
    calls: int = 0
    apart: int = 0
    kind: Any = None

    def place(self, waiting: Waiting) -> tuple[int, int, int]:
        """A request's place in the order of work: the lowest is most behind, also in a loop that other runs have left."""
        return self.round, self.stage + (waiting.kind != self.kind), self.count

    def note(self, waiting: Waiting, alone: bool) -> None:
        self.round, self.stage, _ = self.place(waiting)
        self.kind = waiting.kind
        self.count += 1
        self.calls += 1
        self.apart += alone

    def begin_round(self, t: int) -> None:
        self.round, self.stage, self.count, self.kind = t, 0, 0, None
