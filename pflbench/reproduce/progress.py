"""Which of the wanted runs are finished, how long the others take by the rounds in the same database, what stands in the way."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

from sqlalchemy import Engine

from pflbench import data, models
from pflbench.errors import UserError
from pflbench.report import labels
from pflbench.report.paper import seconds_per_iteration
from pflbench.report.papermap import EXHIBITS
from pflbench.reproduce.goal import Goal, Wanted, goals
from pflbench.run.plan import warnings
from pflbench.spec import Pfllib, RunSpec
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

    seconds: the time left, None if it is not known.
    """

    wanted: Wanted
    state: State
    run: int | None = None
    round: int = 0
    anew: bool = False
    seconds: float | None = 0.0

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
        known = [one.seconds for one in runs if one.seconds is not None]
        return cls({state: states[state] for state in STATES}, sum(known), len(runs) - len(known))


class Clock:
    """Seconds per round by method and setting: medians over the stored runs."""

    def __init__(self, measured: Sequence[Speed]) -> None:
        taken: dict[tuple[str, _Where], list[float]] = defaultdict(list)
        for one in measured:
            taken[one.method, (one.dataset, one.model, one.clients, one.epochs)].append(one.seconds)
        self._seconds = {where: median(values) for where, values in taken.items()}

    def left(self, run: RunProgress) -> float | None:
        """The seconds of a run's remaining rounds; None if unknown."""
        if not run.rounds_left:
            return 0.0
        spec = run.wanted.spec
        at = (spec.data.label, spec.model, int(spec.train.join_ratio * spec.training_clients), spec.train.local_epochs)
        own, baseline = (self._seconds.get((name, at)) for name in (spec.method.name, BASELINE))
        if own is None and baseline is not None and (ratio := self._ratio(spec.method.name)) is not None:
            own = ratio * baseline
        return None if own is None else own * run.rounds_left

    def _ratio(self, method: str) -> float | None:
        """Time of a method's round relative to FedAvg's: measured in other settings, else from the paper's Table 3."""
        own = {at: seconds for (name, at), seconds in self._seconds.items() if name == method}
        ratios = [seconds / baseline for at, seconds in own.items() if (baseline := self._seconds.get((BASELINE, at)))]
        if ratios:
            return median(ratios)
        paper = seconds_per_iteration()
        return paper[method] / paper[BASELINE] if method in paper else None


def progress_of(engine: Engine, wanted: Sequence[Wanted]) -> list[RunProgress]:
    """The progress of each run, in the same order."""
    found = attempts(engine, [one.spec.key for one in wanted])
    runs = [attempt.id for same in found.values() for attempt in same]
    names = {one.array for one in wanted if one.array is not None}
    kept = arrays.rounds(engine, runs, names) if names else {}
    each = [_progress(one, found.get(one.spec.key, []), kept) for one in wanted]
    left = {one.wanted.spec.method.name for one in each if one.rounds_left}
    clock = Clock(speeds(engine, ALL, {BASELINE, *left}) if left else [])
    return [replace(one, seconds=clock.left(one)) for one in each]


def _progress(wanted: Wanted, found: Sequence[Run], kept: dict[tuple[int, str], list[int]]) -> RunProgress:
    def whole(attempt: Run) -> bool:
        """Whether it kept the needed array in every round up to its last one."""
        needed = {t for t in wanted.rounds if t <= (attempt.last_round or 0)}
        return needed <= set(kept.get((attempt.id, wanted.array or ""), []))

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


@dataclass(frozen=True)
class Outlook:
    """A goal and its runs. lacking: dataset -> why it cannot be read, with the command that gets it."""

    goal: Goal
    progress: tuple[RunProgress, ...]
    lacking: dict[str, UserError]

    @property
    def ahead(self) -> list[RunProgress]:
        """Unfinished runs whose data are here."""
        return [one for one in self.progress if one.rounds_left and one.wanted.spec.data.label not in self.lacking]

    @property
    def diverged(self) -> list[RunProgress]:
        return [one for one in self.progress if one.state == "diverged"]

    def runs(self, *, tabled: bool = False) -> frozenset[int]:
        """Numbers of the stored runs, also of diverged ones. tabled: only of those that the table shows."""
        return frozenset(one.run for one in self.progress if one.run is not None and (one.wanted.tabled or not tabled))

    def parts(self) -> dict[str, Tally]:
        """The progress of each setting, in the order of the table. Runs without data take no time."""
        by_setting: dict[str, list[RunProgress]] = defaultdict(list)
        for one in self.progress:
            there = one.wanted.spec.data.label not in self.lacking
            by_setting[_setting(one.wanted.spec)].append(one if there else replace(one, seconds=0.0))
        return {setting: Tally.of(same) for setting, same in by_setting.items()}

    def remarks(self) -> list[str]:
        """Remarks about some of the runs, and obstacles, a line each."""
        found = warnings([one.wanted.spec for one in self.ahead])
        for one in self.progress:
            if one.state == "interrupted":
                reached = f"after round {one.round} of {one.wanted.spec.train.rounds}"
                found.append(f"Interrupted, and goes on: run {one.run}, {one.wanted.name}, {reached}.")
            if one.anew:
                found.append(f"Run anew, since what there is did not keep {one.wanted.array}: {one.wanted.name}.")
        found += [f"Diverged: run {one.run}, {one.wanted.name}. Anew: {one.wanted.command} --force" for one in self.diverged]
        found += [f"Left out, since the model of this scale has too few blocks: {label}." for label in self.goal.left_out]
        found += [f"Left out, since pflbench does not have the dataset: {name}." for name in self.goal.foreign]
        return [*found, *(f"Left out: {name}. {reason.message} {reason.hint}" for name, reason in self.lacking.items())]

    def require_something(self) -> None:
        """Raises UserError if there is no finished run and none can be trained."""
        drawable = self.goal.untrained and any(cell.place.data not in self.lacking for cell in self.goal.cells)
        if not (drawable or self.ahead or any(one.state == "there" for one in self.progress)):
            raise UserError(f"Nothing of '{self.goal.name}' can be run here.", " ".join(self.remarks()))

    def document(self) -> dict[str, Any]:
        """The outlook as JSON types; times in seconds, None if not known."""
        tally = Tally.of(self.ahead)
        return {
            "name": self.goal.name,
            "scale": self.goal.scale.name,
            "seconds": tally.seconds,
            "unknown": tally.unknown,
            "remarks": self.remarks(),
            "lacking": {name: {"message": error.message, "hint": error.hint} for name, error in self.lacking.items()},
            "runs": [_record(one) for one in self.progress],
        }


def look(goal: Goal, wanted: Sequence[Wanted], engine: Engine, data_dir: Path, progress: data.Progress | None) -> Outlook:
    """The outlook of a goal. Only the data of unfinished runs are read."""
    each = progress_of(engine, wanted)
    needed = goal.planned(data_dir) if goal.untrained else [one.wanted for one in each if one.rounds_left]
    return Outlook(goal, tuple(each), lacking([one.spec for one in needed], data_dir, progress))


def lacking(specs: Sequence[RunSpec], data_dir: Path, progress: data.Progress | None = None) -> dict[str, UserError]:
    """The datasets of the runs that cannot be read, with the reason. A PFLlib folder brings its own, which the plan has read."""
    needed = {spec.data.label: spec.data for spec in specs if not isinstance(spec.partition, Pfllib)}
    found = {}
    for label, source in needed.items():
        try:
            data.load(source, data_dir, progress)
        except UserError as error:
            found[label] = error
    return found


def overview(engine: Engine, scale: str, data_dir: Path) -> list[dict[str, Any]]:
    """The progress of every table and figure of the papers, as JSON types. No data are read."""
    parts = [goals(one.command_name, scale) for one in EXHIBITS]
    wanted = [{(run.spec.key, run.array): run for part in of for run in part.wanted(data_dir)} for of in parts]
    different = {key: run for runs in wanted for key, run in runs.items()}
    found = dict(zip(different, progress_of(engine, list(different.values())), strict=True))
    listed = []
    for one, of, runs in zip(EXHIBITS, parts, wanted, strict=True):
        tally = Tally.of([found[key] for key in runs])
        foreign = dict.fromkeys(name for part in of for name in part.foreign)
        there, needed = tally.counts["there"], len(runs)
        state = "complete" if there == needed else "begun" if there else "not run"
        if there == needed and foreign:
            state += f" but for {', '.join(foreign)}"
        listed.append(
            {
                "paper": one.paper,
                "number": one.number,
                "shows": one.shows,
                "command": one.command + (f" --scale {scale}" if scale != "full" else ""),
                "there": there,
                "needed": needed,
                "seconds": tally.seconds,
                "unknown": tally.unknown,
                "state": state if needed else "needs no run",
            }
        )
    return listed


def _setting(spec: RunSpec) -> str:
    train, partition = spec.train, spec.partition
    joining = f", join ratio {train.join_ratio:g}" if train.join_ratio < 1 else ""
    epochs = f", {train.local_epochs} local epochs" if train.local_epochs > 1 else ""
    where = f"{labels.label_title(spec.data.label)}, {partition.label}, {models.title(spec.model)}"
    return f"{where}, {partition.clients} clients{joining}{epochs}, {labels.counted(train.rounds, 'round')}"


def _record(one: RunProgress) -> dict[str, Any]:
    spec = one.wanted.spec
    return {
        "key": spec.key,
        "method": spec.method.name,
        "dataset": spec.data.label,
        "setting": _setting(spec),
        "seed": spec.seed,
        "state": one.state,
        "run": one.run,
        "round": one.round,
        "rounds": spec.train.rounds,
        "anew": one.anew,
        "seconds": one.seconds,
        "command": one.wanted.command,
    }
