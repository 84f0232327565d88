"""Several runs on one executor: their clients are further rows of the same program.

Each run has a stack and an executor of its own, which only notes what is asked for. One run goes on at a time; when all wait,
requests that differ in nothing but their numbers are made as one.
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
    """Some runs with the same samples and the same layout of the model; `executors` has one for each of them."""

    def __init__(self, inner: Executor, runs: int) -> None:
        self.inner = inner
        self.executors = [PackedExecutor(self, run, inner) for run in range(runs)]
        self._settle = partial(devices.synchronise, inner.device)
        self._progress = [_Progress() for _ in range(runs)]
        self._stacks: list[RunStack] = []
        self._waiting: dict[int, Waiting] = {}
        self._replies: dict[int, Any] = {}

    def together(self, works: Sequence[Generator[T, None, None]]) -> Generator[tuple[int, T], None, None]:
        """The work of each run, in the order of `executors`: what they yield, with the number of the run, as it comes.

        An error of one ends the others as Ctrl-C does, and passes on.
        """
        self._stacks = [RunStack(work, self._settle) for work in works]
        try:
            while not all(stack.over for stack in self._stacks):
                for run in range(len(self._stacks)):
                    yield from self._until_it_asks(run)
                if self._waiting:
                    self._make(self._next())
        finally:
            with interrupts.held():  # each keeps a checkpoint
                self._stop()

    def _until_it_asks(self, run: int) -> Iterator[tuple[int, Any]]:
        """What a run yields until it makes a request or ends. Only then does another go on."""
        while not (self._stacks[run].over or run in self._waiting):
            for item in self._stacks[run].go_on(self._replies.pop(run, None)):
                yield run, item

    def _next(self) -> list[int]:
        """The runs whose requests are made next, as one: that of the run which is most behind, and those that can join it.

        So those that are ahead wait, and all come together again.
        """
        first = min(self._waiting, key=lambda run: self._progress[run].place(self._waiting[run]))
        same_round = [run for run in self._waiting if self._progress[run].round == self._progress[first].round]
        return [run for run in same_round if run == first or self._waiting[first].goes_with(self._waiting[run])]

    def _make(self, runs: Sequence[int]) -> None:
        """Makes the requests of some runs as one. Each is charged its part of the time and gets its part of the result."""
        waiting = [self._waiting.pop(run) for run in runs]
        alone = len(runs) == 1 and bool(self._waiting)
        begun = time.perf_counter()
        try:
            results = self._results(runs, waiting)
        except Exception as error:
            results = [error] * len(runs)
        self._settle()
        share = (time.perf_counter() - begun) / len(runs)
        for run, one, result in zip(runs, waiting, results, strict=True):
            self._progress[run].note(one, alone)
            self._stacks[run].seconds += share
            self._replies[run] = result

    def _results(self, runs: Sequence[int], waiting: Sequence[Waiting]) -> list[Any]:
        requests = [one.request for one in waiting]
        several = len(requests) > 1
        result = waiting[0].executor.do(joined(requests) if several else requests[0])
        if isinstance(result, HeadOnFeatures):
            return self._heads(runs, [request.plan for request in requests], result.executor)
        return split(result, [len(request.plan) for request in requests]) if several else [result]

    def _heads(self, runs: Sequence[int], plans: Sequence[Plan], inner: Executor) -> list[HeadOnFeatures]:
        """A head for each run on the features of all, in which those of a run come after those of the runs before it."""
        starts = np.cumsum([0, *(sum(map(len, plan.order)) for plan in plans)])
        users = set(runs)
        made = [PackedExecutor(self, run, inner, int(start), users) for run, start in zip(runs, starts, strict=False)]
        return [HeadOnFeatures(executor, plan.positions()) for executor, plan in zip(made, plans, strict=True)]

    def _stop(self) -> None:
        self._waiting.clear()
        for run, stack in enumerate(self._stacks):
            reply = self._replies.pop(run, None)
            stack.stop(reply if isinstance(reply, Exception) else KeyboardInterrupt())

    # -- for the executors ----------------------------------------------------------------------------------------------

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
        """pack: how many runs are in it, the calls of this run, and how many of them were made for it alone."""
        progress = self._progress[run]
        pack = {"runs": len(self.executors), "calls": progress.calls, "apart": progress.apart}
        return {**self.inner.record(), "pack": pack}


class PackedExecutor(Executor):
    """One run's share of the executor of a pack. first: where its samples begin among those of all. users: who still needs it."""

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
        """The last run to need an executor closes it. The main one belongs to whoever made the pack."""
        if self._users is not None:
            self._users.discard(self._run)
            if not self._users:
                self._inner.close()

    def begin_round(self, t: int) -> None:
        """Only runs in the same round are made together."""
        self._pack.begin_round(self._run, t)

    def clock(self) -> float:
        """Of this run's own work, and its part of what was done for several."""
        return self._pack.clock(self._run)

    def record(self) -> dict[str, Any]:
        return self._pack.record(self._run)

    def shortages(self) -> Sequence[Shortage]:
        return self._pack.inner.shortages()

    def remember(self, shortages: Sequence[Shortage]) -> None:
        self._pack.inner.remember(shortages)


@dataclass(frozen=True)
class Waiting:
    """What a run waits for: the answer to a request, and by which executor."""

    executor: Executor
    request: Request[Any]

    @property
    def kind(self) -> tuple[Any, ...]:
        step = self.request.step if isinstance(self.request, Scan) else None
        return self.executor, type(self.request), step.func if isinstance(step, partial) else step

    def goes_with(self, other: Waiting) -> bool:
        """Whether the two can be made as one."""
        return self.executor is other.executor and joinable(self.request, other.request)


@dataclass
class _Progress:
    """How far a run is. stage: how often in this round it went on from one kind of work to another; count: this round's calls."""

    round: int = 0
    stage: int = 0
    count: int = 0
    calls: int = 0
    apart: int = 0
    kind: Any = None

    def place(self, waiting: Waiting) -> tuple[int, int, int]:
        """Where a request stands: the lowest is most behind. In a loop of unknown length, those still in it are."""
        return self.round, self.stage + (waiting.kind != self.kind), self.count

    def note(self, waiting: Waiting, alone: bool) -> None:
        self.round, self.stage, _ = self.place(waiting)
        self.kind = waiting.kind
        self.count += 1
        self.calls += 1
        self.apart += alone

    def begin_round(self, t: int) -> None:
        self.round, self.stage, self.count, self.kind = t, 0, 0, None
