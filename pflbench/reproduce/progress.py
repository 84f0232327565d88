"""The progress of the wanted runs, and the time left, estimated from the rounds in the same database."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from sqlalchemy import Engine

from pflbench.report.paper import seconds_per_iteration
from pflbench.reproduce.goal import Wanted
from pflbench.spec import RunSpec
from pflbench.store import arrays
from pflbench.store.rounds import Speed, speeds
from pflbench.store.runs import ALL, Run, attempts

State = Literal["there", "interrupted", "missing", "diverged"]
STATES: tuple[State, ...] = ("there", "interrupted", "missing", "diverged")
BASELINE = "fedavg"
_Where = tuple[str, str, int, int]  # dataset, model, clients that join a round, their local epochs


@dataclass(frozen=True)
class RunProgress:
    """run: number of the attempt that counts or is resumed. round: its last one. anew: a finished run lacks a needed array.

    seconds: the time left, None if it is not known. basis: how it was estimated.
    """

    wanted: Wanted
    state: State
    run: int | None = None
    round: int = 0
    anew: bool = False
    seconds: float | None = 0.0
    basis: str = "nothing left"

    @property
    def rounds_left(self) -> int:
        return self.wanted.spec.train.rounds - self.round if self.state in ("interrupted", "missing") else 0


@dataclass(frozen=True)
class Tally:
    """Some runs: how many are in each state, and the seconds left. unknown: how many runs have no estimate."""

    counts: dict[State, int]
    seconds: float
    unknown: int

    @classmethod
    def of(cls, runs: Collection[RunProgress]) -> Tally:
        states = Counter(one.state for one in runs)
        times = [one.seconds for one in runs]
        known = [seconds for seconds in times if seconds is not None]
        return cls({state: states[state] for state in STATES}, sum(known), len(times) - len(known))


def progress_of(engine: Engine | None, wanted: Sequence[Wanted]) -> list[RunProgress]:
    """The progress of each run, in the same order. engine: None if there is no database yet."""
    if engine is None:
        return [timed(RunProgress(one, "missing"), Clock([])) for one in wanted]
    found = attempts(engine, [one.spec.key for one in wanted])
    runs = [attempt.id for same in found.values() for attempt in same]
    names = {one.keeps.array for one in wanted if one.keeps.array is not None}
    kept = arrays.rounds(engine, runs, names) if names else {}
    each = [_progress(one, found.get(one.spec.key, []), kept) for one in wanted]
    left = {one.wanted.spec.method.name for one in each if one.rounds_left}
    clock = Clock(speeds(engine, ALL, {BASELINE, *left}) if left else [])
    return [timed(one, clock) for one in each]


def timed(run: RunProgress, clock: Clock) -> RunProgress:
    """The same run with the time left."""
    seconds, basis = clock.left(run)
    return replace(run, seconds=seconds, basis=basis)


def _progress(wanted: Wanted, found: Sequence[Run], kept: dict[tuple[int, str], list[int]]) -> RunProgress:
    def whole(attempt: Run) -> bool:
        """Whether it kept the needed array in every round up to its last one."""
        needed = {t for t in wanted.keeps.rounds if t <= (attempt.last_round or 0)}
        return needed <= set(kept.get((attempt.id, wanted.keeps.array or ""), []))

    for attempt in reversed(found):
        if attempt.status == "finished" and whole(attempt):
            return RunProgress(wanted, "there", attempt.id, attempt.last_round or 0)
    if not found:
        return RunProgress(wanted, "missing")
    newest = found[-1]
    if newest.status == "diverged":
        return RunProgress(wanted, "diverged", newest.id, newest.last_round or 0)
    if newest.status == "finished" or not whole(newest):
        return RunProgress(wanted, "missing", anew=True)
    if newest.last_round is None:
        return RunProgress(wanted, "missing")
    return RunProgress(wanted, "interrupted", newest.id, newest.last_round)


class Clock:
    """Seconds per round by method and setting: medians over the stored runs."""

    def __init__(self, measured: Sequence[Speed]) -> None:
        taken: dict[str, dict[_Where, list[float]]] = defaultdict(lambda: defaultdict(list))
        for one in measured:
            taken[one.method][one.dataset, one.model, one.clients, one.epochs].append(one.seconds)
        self._seconds = {name: {at: median(values) for at, values in own.items()} for name, own in taken.items()}

    def left(self, run: RunProgress) -> tuple[float | None, str]:
        """The seconds of a run's remaining rounds (None if unknown), and how they were estimated."""
        if not run.rounds_left:
            return 0.0, "nothing left"
        seconds, basis = self._round(run.wanted.spec)
        return None if seconds is None else seconds * run.rounds_left, basis

    def _round(self, spec: RunSpec) -> tuple[float | None, str]:
        train = spec.train
        at = (spec.data.label, spec.model, int(train.join_ratio * spec.partition.clients), train.local_epochs)
        own, baseline = (self._seconds.get(name, {}).get(at) for name in (spec.method.name, BASELINE))
        if own is not None:
            return own, "measured"
        if baseline is None:
            return None, "neither the method nor FedAvg was measured in that setting"
        ratio, basis = self._ratio(spec.method.name)
        return (None if ratio is None else ratio * baseline), basis

    def _ratio(self, method: str) -> tuple[float | None, str]:
        """Time of a method's round relative to FedAvg's: measured in other settings, else from the paper's Table 3."""
        baseline = self._seconds.get(BASELINE, {})
        ratios = [seconds / baseline[at] for at, seconds in self._seconds.get(method, {}).items() if baseline.get(at)]
        if ratios:
            return median(ratios), "FedAvg's, times the ratio in other settings"
        paper = seconds_per_iteration()
        if method in paper:
            return paper[method] / paper[BASELINE], "FedAvg's, times the ratio in the paper's Table 3"
        return None, f"how {method} compares with FedAvg is not known"
