"""How far every table and figure of the papers is, and what one of which there is nothing yet would take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from pflbench.report import labels
from pflbench.report.declared import Kind
from pflbench.report.papermap import EXHIBITS, Exhibit, Part
from pflbench.reproduce.goal import Wanted, goals
from pflbench.reproduce.progress import Clock, RunProgress, progress_of
from pflbench.reproduce.scales import SCALES
from pflbench.store.rounds import speeds
from pflbench.store.runs import ALL


@dataclass(frozen=True)
class ExhibitProgress:
    """there, needed: runs. seconds: that those still to be made will take, as far as it can be told; unknown: of how many it
    cannot. foreign: datasets that pflbench does not have."""

    exhibit: Exhibit
    scale: str
    there: int
    needed: int
    seconds: float
    unknown: int
    foreign: tuple[str, ...]

    @property
    def command(self) -> str:
        return self.exhibit.command + (f" --scale {self.scale}" if self.scale != "full" else "")

    @property
    def state(self) -> str:
        """In a word or two."""
        if not self.needed:
            return "needs no run"
        if self.there == self.needed:
            return f"complete but for {', '.join(self.foreign)}" if self.foreign else "complete"
        return "begun" if self.there else "not run"

    def record(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {
            "paper": self.exhibit.paper,
            "number": self.exhibit.number,
            "shows": self.exhibit.shows,
            "command": self.command,
            "there": self.there,
            "needed": self.needed,
            "seconds": self.seconds,
            "unknown": self.unknown,
            "foreign": self.foreign,
            "state": self.state,
        }


def overview(engine: Engine | None, scale: str, data_dir: Path) -> list[ExhibitProgress]:
    """Of every table and figure. engine: None where there is no database yet. No data are read."""
    wanted = [_wanted(one, scale, data_dir) for one in EXHIBITS]
    found: dict[tuple[str, str], RunProgress] = {}
    clock = Clock([])
    if engine is not None:
        different = {(one.spec.key, str(one.keeps)): one for runs, _ in wanted for one in runs}
        found = dict(zip(different, progress_of(engine, list(different.values())), strict=True))
        clock = Clock(speeds(engine, ALL, {"fedavg", *(one.spec.method.name for one in different.values())}))
    made = []
    for one, (runs, foreign) in zip(EXHIBITS, wanted, strict=True):
        each = [found.get((run.spec.key, str(run.keeps)), RunProgress(run, "missing")) for run in runs]
        left = [clock.left(run).seconds for run in each if run.rounds_left]
        there = sum(run.state == "there" for run in each)
        known = sum(seconds for seconds in left if seconds is not None)
        made.append(ExhibitProgress(one, scale, there, len(each), known, left.count(None), foreign))
    return made


def _wanted(exhibit: Exhibit, scale: str, data_dir: Path) -> tuple[list[Wanted], tuple[str, ...]]:
    """The runs of all its parts, each once, and the datasets that pflbench does not have."""
    parts = goals(exhibit.command_name, scale)
    runs = {(one.spec.key, str(one.keeps)): one for part in parts for one in part.wanted(data_dir)}
    return list(runs.values()), tuple(dict.fromkeys(name for part in parts for name in part.foreign))


def seconds_left(engine: Engine | None, wanted: tuple[Wanted, ...]) -> float | None:
    """What the missing ones of these runs will take by what rounds took in this database; None where that cannot be told."""
    if engine is None:
        return None
    clock = Clock(speeds(engine, ALL, {"fedavg", *(one.spec.method.name for one in wanted)}))
    times = [clock.left(one).seconds for one in progress_of(engine, wanted)]
    return None if None in times else sum(time for time in times if time is not None)


def need(kind: Kind, name: str, engine: Engine | None, data_dir: Path) -> tuple[str, dict[str, float | None]]:
    """Which table or figure of the papers it is with the runs that it needs, in words, and by scale the seconds left."""
    command_name = Part(kind, name).command_name
    left: dict[str, float | None] = {}
    words = ""
    for scale in ("full", "quick"):
        (goal,) = goals(command_name, scale)
        wanted = goal.wanted(data_dir)
        left[scale] = seconds_left(engine, wanted)
        if scale == "full":
            methods = list(dict.fromkeys(labels.method_title(one.spec.method.name) for one in wanted))
            some = " and ".join(methods) if len(methods) < 3 else f"{len(methods)} methods"
            datasets = labels.some(list(dict.fromkeys(labels.label_title(one.spec.data.label) for one in wanted)))
            words = f"{goal.source}: {len(wanted)} run{'s' * (len(wanted) > 1)} of {some} on {datasets}"
    return words, left


def command(kind: Kind, name: str) -> str:
    return f"pflbench reproduce {Part(kind, name).command_name} --scale {'|'.join(reversed(SCALES))}"
