"""Several runs on one executor: their clients are further rows of the same program.

Each run has a greenlet, which can wait wherever the run makes a request, and a `PackedExecutor`, which only hands its requests
on. One run goes on at a time; when all wait, requests that differ only in the numbers of their tensors are computed as one.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from greenlet import getcurrent, greenlet

from pflbench import interrupts
from pflbench.engine import devices
from pflbench.engine.packed.join import joinable, joined, split
from pflbench.engine.requests import Executor, HeadOnFeatures, R, Request, Scan

T = TypeVar("T")


class Pack:
    """Runs with the same samples and the same model layout; `executors` has one for each run."""

    def __init__(self, inner: Executor, runs: int) -> None:
        self.inner = inner
        self._runs = [_Run(inner.device) for _ in range(runs)]
        self.executors = [PackedExecutor(self, run, inner) for run in self._runs]
        self._waiting: dict[_Run, _Waiting] = {}

    def together(self, works: Sequence[Generator[T, None, None]]) -> Generator[tuple[int, T], None, None]:
        """Yields the items of all runs' generators, in the order of `executors`, as (number of the run, item).

        A run goes on until it makes a request or ends; only then does another go on.
        An error of one run ends the others as Ctrl-C does, and is raised.
        """
        for run, work in zip(self._runs, works, strict=True):
            run.begin(work)
        try:
            while not all(run.over for run in self._runs):
                for number, run in enumerate(self._runs):
                    while not (run.over or run in self._waiting):
                        for item in run.go_on():
                            yield number, item
                if self._waiting:
                    self._make(self._next())
        finally:
            with interrupts.held():  # each run saves a checkpoint
                for run in self._runs:
                    run.stop()

    def ask(self, run: _Run, executor: Executor, request: Request[R]) -> R:
        """Called by a run: waits for the answer to its request."""
        devices.synchronise(self.inner.device)
        self._waiting[run] = _Waiting(executor, request)
        answer: R = _wait()
        return answer

    def _next(self) -> list[_Run]:
        """The runs whose requests are computed next, as one: the run that is most behind, and those that can join it.

        Runs that are ahead wait, so that all are together again.
        """
        first = min(self._waiting, key=lambda run: run.place(self._waiting[run]))
        same_round = [run for run in self._waiting if run.round == first.round]
        return [run for run in same_round if run is first or self._waiting[first].goes_with(self._waiting[run])]

    def _make(self, runs: Sequence[_Run]) -> None:
        """Computes the requests of some runs as one. Each run is charged an equal part of the time and gets its results."""
        waiting = [self._waiting.pop(run) for run in runs]
        alone = len(runs) == 1 and bool(self._waiting)
        begun = time.perf_counter()
        try:
            answers = self._answers(runs, waiting)
        except Exception as error:
            answers = [error] * len(runs)
        devices.synchronise(self.inner.device)
        share = (time.perf_counter() - begun) / len(runs)
        for run, request, answer in zip(runs, waiting, answers, strict=True):
            run.note(request, alone)
            run.seconds += share
            run.answer = answer

    def _answers(self, runs: Sequence[_Run], waiting: Sequence[_Waiting]) -> list[Any]:
        requests = [each.request for each in waiting]
        several = len(requests) > 1
        result = waiting[0].executor.do(joined(requests) if several else requests[0])
        if not isinstance(result, HeadOnFeatures):
            return split(result, [len(request.plan) for request in requests]) if several else [result]
        # A head executor for each run, on the features of all runs one after another.
        starts = np.cumsum([0, *(sum(map(len, request.plan.order)) for request in requests)]).tolist()
        users = set(runs)
        heads = [PackedExecutor(self, run, result.executor, first, users) for run, first in zip(runs, starts, strict=False)]
        return [HeadOnFeatures(head, request.plan.positions()) for head, request in zip(heads, requests, strict=True)]


class PackedExecutor(Executor):
    """One run's executor in a pack. first: index of its first sample among those of all. users: runs that still need `inner`."""

    def __init__(self, pack: Pack, run: _Run, inner: Executor, first: int = 0, users: set[_Run] | None = None) -> None:
        self.name = inner.name
        self.device = inner.device
        self.chunks = inner.chunks
        self._pack, self._run, self._inner, self._first, self._users = pack, run, inner, first, users

    def do(self, request: Request[R]) -> R:
        if self._first:
            request = replace(request, plan=request.plan.shifted(self._first))
        return self._pack.ask(self._run, self._inner, request)

    def close(self) -> None:
        """The last run that needs a head executor closes it. The main executor is closed by the pack's owner."""
        if self._users is not None:
            self._users.discard(self._run)
            if not self._users:
                self._inner.close()

    def begin_round(self, t: int) -> None:
        """Only requests of the same round are computed together."""
        self._run.begin_round(t)

    def clock(self) -> float:
        """Seconds of this run's own work, and its part of work for several runs."""
        return self._run.clock()

    def record(self) -> dict[str, Any]:
        """pack: its number of runs, this run's requests, and how many of them were computed for it alone."""
        pack = {"runs": len(self._pack.executors), "calls": self._run.calls, "apart": self._run.apart}
        return {**self._pack.inner.record(), "pack": pack}


@dataclass(frozen=True)
class _Waiting:
    """A request that a run waits for, and the executor that it is for."""

    executor: Executor
    request: Request[Any]

    @property
    def kind(self) -> tuple[Any, ...]:
        step = self.request.step if isinstance(self.request, Scan) else None
        return self.executor, type(self.request), step.func if isinstance(step, partial) else step

    def goes_with(self, other: _Waiting) -> bool:
        """Whether the two can be computed as one."""
        return self.executor is other.executor and joinable(self.request, other.request)


class _Run:
    """A run that goes on only while `go_on` waits for it.

    seconds: what it has taken so far: not those in which it waited, but its part of work for several runs.
    stage: changes of the kind of request in this round; count: requests in this round; calls, apart: as recorded.
    answer: to its request; an exception is raised where it waits.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds = self._begun = 0.0
        self.round = self.stage = self.count = self.calls = self.apart = 0
        self.kind: Any = None
        self.answer: Any = None

    def begin(self, work: Generator[Any, None, None]) -> None:
        def go(_: None) -> Sequence[Any]:
            with closing(work):
                for item in work:
                    devices.synchronise(self.device)
                    _wait([item])
            return ()

        self._stack = greenlet(go)

    @property
    def over(self) -> bool:
        return bool(self._stack.dead)

    def go_on(self) -> Sequence[Any]:
        """Lets the run go on until it yields, makes a request or ends; returns the item that it yielded, if it did."""
        answer, self.answer = self.answer, None
        self._begun = time.perf_counter()
        items: Sequence[Any] = _switch(self._stack, answer)
        self.seconds += time.perf_counter() - self._begun
        return items

    def stop(self) -> None:
        """Ends the run, wherever it waits, by an exception."""
        error = self.answer if isinstance(self.answer, Exception) else KeyboardInterrupt()
        while self._stack:  # begun, and not over
            self.answer = error
            with suppress(BaseException):
                self.go_on()

    def clock(self) -> float:
        """Called by the run itself: its seconds up to now."""
        devices.synchronise(self.device)
        return self.seconds + time.perf_counter() - self._begun

    def begin_round(self, t: int) -> None:
        self.round, self.stage, self.count, self.kind = t, 0, 0, None

    def place(self, waiting: _Waiting) -> tuple[int, int, int]:
        """A request's place in the order of work: the lowest is most behind, also in a loop that other runs have left."""
        return self.round, self.stage + (waiting.kind != self.kind), self.count

    def note(self, waiting: _Waiting, alone: bool) -> None:
        self.round, self.stage, _ = self.place(waiting)
        self.kind = waiting.kind
        self.count += 1
        self.calls += 1
        self.apart += alone


def _wait(items: Sequence[Any] = ()) -> Any:
    """Called by a run itself: hands over what it yielded, and returns the answer once it goes on."""
    answer = _switch(getcurrent().parent, items)
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _switch(to: greenlet, message: Any) -> Any:
    """PyTorch keeps for a thread, and so for all of them together, whether gradients are made."""
    before = torch.is_grad_enabled()
    try:
        return to.switch(message)
    finally:
        torch.set_grad_enabled(before)
