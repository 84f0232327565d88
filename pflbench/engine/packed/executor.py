"""Several runs on one executor: their clients are further rows of the same program.

Each run has a thread and an executor of its own, which only notes what is asked for. One thread goes on at a time; when all
wait, requests that differ in nothing but their numbers are made as one. The inner executor is called from the main thread alone.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from pflbench.engine import devices
from pflbench.engine.batches import Plan
from pflbench.engine.memory import Shortage
from pflbench.engine.packed.join import Request, joinable, joined, split
from pflbench.engine.packed.threads import Asked, Ended, Said, Turn
from pflbench.engine.requests import ALL, Correct, Executor, Given, Objective, Step, Trained, Walked

T = TypeVar("T")


class Pack:
    """Some runs with the same samples and the same layout of the model; `executors` has one for each of them."""

    def __init__(self, inner: Executor, runs: int) -> None:
        self.inner = inner
        self.executors = [PackedExecutor(self, run, inner) for run in range(runs)]
        self._settle = partial(devices.synchronise, inner.device)
        self._standings = [_Standing() for _ in range(runs)]
        self._turns: list[Turn] = []
        self._requests: dict[int, Request] = {}
        self._replies: dict[int, Any] = {}

    def together(self, works: Sequence[Generator[T, None, None]]) -> Generator[tuple[int, T], None, None]:
        """The work of each run, in the order of `executors`: what they yield, with the number of the run, as it comes.

        An error of one ends the others as Ctrl-C does, and passes on.
        """
        self._turns = [Turn(work, self._settle) for work in works]
        try:
            while live := [run for run, turn in enumerate(self._turns) if not turn.over]:
                for run in live:
                    if run not in self._requests:
                        yield from self._until_it_asks(run)
                if self._requests:
                    self._make(self._next())
        finally:
            self._stop()

    def _until_it_asks(self, run: int) -> Iterator[tuple[int, Any]]:
        """Only then, or when it has ended, is it another's turn."""
        while True:
            message = self._turns[run].go_on(self._replies.pop(run, None))
            if isinstance(message, Said):
                yield run, message.item
            elif isinstance(message, Asked):
                self._requests[run] = message.request
                return
            elif isinstance(message, Ended):
                if message.error is not None:
                    raise message.error
                return

    def _next(self) -> list[int]:
        """The runs whose requests are made next, as one: that of the run which is most behind, and those that can join it.

        So those that are ahead wait, and all come together again.
        """
        first = min(self._requests, key=lambda run: self._standings[run].place(self._requests[run]))
        same_round = [run for run in self._requests if self._standings[run].round == self._standings[first].round]
        return [run for run in same_round if run == first or joinable(self._requests[first], self._requests[run])]

    def _make(self, runs: Sequence[int]) -> None:
        """Makes the requests of some runs as one. Each is charged its part of the time and gets its part of the result."""
        requests = [self._requests.pop(run) for run in runs]
        alone = len(runs) == 1 and bool(self._requests)
        begun = time.perf_counter()
        try:
            results = self._results(runs, requests)
        except Exception as error:
            results = [error] * len(runs)
        self._settle()
        share = (time.perf_counter() - begun) / len(runs)
        for run, request, result in zip(runs, requests, results, strict=True):
            self._standings[run].note(request, alone)
            self._turns[run].seconds += share
            self._replies[run] = result

    def _results(self, runs: Sequence[int], requests: Sequence[Request]) -> list[Any]:
        several = len(requests) > 1
        result = (joined(requests) if several else requests[0]).make()
        if requests[0].verb == "head":
            return self._heads(runs, requests, result[0])
        return split(result, [len(request.plan) for request in requests]) if several else [result]

    def _heads(self, runs: Sequence[int], requests: Sequence[Request], inner: Executor) -> list[tuple[Executor, Plan]]:
        """An executor for each run on the features of all, in which those of a run come after those of the runs before it."""
        starts = np.cumsum([0, *(sum(map(len, request.plan.order)) for request in requests)])
        users = set(runs)
        made = [PackedExecutor(self, run, inner, int(start), users) for run, start in zip(runs, starts, strict=False)]
        return [(executor, request.plan.positions()) for executor, request in zip(made, requests, strict=True)]

    def _stop(self) -> None:
        self._requests.clear()
        for run, turn in enumerate(self._turns):
            reply = self._replies.pop(run, None)
            turn.stop(reply if isinstance(reply, Exception) else KeyboardInterrupt())

    # -- for the executors ----------------------------------------------------------------------------------------------

    def ask(self, run: int, request: Request) -> Any:
        self._settle()
        return self._turns[run].ask(request)

    def clock(self, run: int) -> float:
        self._settle()
        return self._turns[run].clock()

    def begin_round(self, run: int, t: int) -> None:
        self._standings[run].begin_round(t)

    def record(self, run: int) -> dict[str, Any]:
        """pack: how many runs are in it, the calls of this run, and how many of them were made for it alone."""
        standing = self._standings[run]
        pack = {"runs": len(self.executors), "calls": standing.calls, "apart": standing.apart}
        return {**self.inner.record(), "pack": pack}


class PackedExecutor:
    """One run's share of the executor of a pack. first: where its samples begin among those of all. users: who still needs it."""

    def __init__(self, pack: Pack, run: int, inner: Executor, first: int = 0, users: set[int] | None = None) -> None:
        self.name = inner.name
        self.device = inner.device
        self._pack, self._run, self._inner, self._first, self._users = pack, run, inner, first, users

    def sgd(
        self,
        rows: Tensor,
        buffers: Tensor,
        plan: Plan,
        lr: float,
        columns: slice = ALL,
        correct: Correct | None = None,
        given: Given | None = None,
        objective: Objective | None = None,
        references: Sequence[Tensor] = (),
    ) -> Trained:
        how = {"lr": lr, "columns": columns, "correct": correct, "given": given, "objective": objective}
        done: Trained = self._ask("sgd", plan, rows=rows, buffers=buffers, references=references, **how)
        return done

    def walk(
        self,
        step: Step,
        base: Tensor,
        carry: Mapping[str, Tensor],
        given: Given,
        buffers: Tensor,
        plan: Plan,
        columns: slice = ALL,
        *,
        each: Mapping[str, Tensor] | None = None,
        parts: int = 1,
        objective: Objective | None = None,
    ) -> Walked:
        how = {"step": step, "given": given, "columns": columns, "parts": parts, "objective": objective}
        done: Walked = self._ask("walk", plan, base=base, carry=carry, buffers=buffers, each=each, **how)
        return done

    def head(self, rows: Tensor, buffers: Tensor, plan: Plan) -> tuple[Executor, Plan]:
        done: tuple[Executor, Plan] = self._ask("head", plan, rows=rows, buffers=buffers)
        return done

    def evaluate(self, rows: Tensor, buffers: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        done: tuple[Tensor, Tensor] = self._ask("evaluate", plan, rows=rows, buffers=buffers)
        return done

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

    def _ask(self, verb: str, plan: Plan, **arguments: Any) -> Any:
        if self._first:
            plan = Plan(tuple(order + self._first for order in plan.order), plan.sizes)
        return self._pack.ask(self._run, Request(self._inner, verb, plan, arguments))


@dataclass
class _Standing:
    """How far a run is. stage: how often in this round it went on from one kind of work to another; count: this round's calls."""

    round: int = 0
    stage: int = 0
    count: int = 0
    calls: int = 0
    apart: int = 0
    kind: Any = None

    def place(self, request: Request) -> tuple[int, int, int]:
        """Where a request stands: the lowest is most behind. In a loop of unknown length, those still in it are."""
        return self.round, self.stage + (_kind(request) != self.kind), self.count

    def note(self, request: Request, alone: bool) -> None:
        self.round, self.stage, _ = self.place(request)
        self.kind = _kind(request)
        self.count += 1
        self.calls += 1
        self.apart += alone

    def begin_round(self, t: int) -> None:
        self.round, self.stage, self.count, self.kind = t, 0, 0, None


def _kind(request: Request) -> tuple[Any, ...]:
    step = request.arguments.get("step")
    return request.executor, request.verb, step.func if isinstance(step, partial) else step
