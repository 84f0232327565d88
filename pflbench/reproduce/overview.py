"""How far every table and figure of the papers is: the list of `pflbench reproduce` without a name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from pflbench.report.papermap import EXHIBITS, Exhibit
from pflbench.reproduce.estimate import Clock
from pflbench.reproduce.goal import Wanted, goals
from pflbench.reproduce.standing import Standing, standings
from pflbench.store.rounds import speeds
from pflbench.store.runs import ALL


@dataclass(frozen=True)
class Progress:
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


def overview(engine: Engine | None, scale: str, data_dir: Path) -> list[Progress]:
    """Of every table and figure. engine: None where there is no database yet. No data are read."""
    wanted = [_wanted(one, scale, data_dir) for one in EXHIBITS]
    standing: dict[tuple[str, str], Standing] = {}
    clock = Clock([])
    if engine is not None:
        different = {(one.spec.key, str(one.keeps)): one for runs, _ in wanted for one in runs}
        standing = dict(zip(different, standings(engine, list(different.values())), strict=True))
        clock = Clock(speeds(engine, ALL, {"fedavg", *(one.spec.method.name for one in different.values())}))
    made = []
    for one, (runs, foreign) in zip(EXHIBITS, wanted, strict=True):
        each = [standing.get((run.spec.key, str(run.keeps)), Standing(run, "missing")) for run in runs]
        left = [clock.left(run).seconds for run in each if run.rounds_left]
        there = sum(run.state == "there" for run in each)
        known = sum(seconds for seconds in left if seconds is not None)
        made.append(Progress(one, scale, there, len(each), known, left.count(None), foreign))
    return made


def _wanted(exhibit: Exhibit, scale: str, data_dir: Path) -> tuple[list[Wanted], tuple[str, ...]]:
    """The runs of all its parts, each once, and the datasets that pflbench does not have."""
    parts = goals(exhibit.command_name, scale)
    runs = {(one.spec.key, str(one.keeps)): one for part in parts for one in part.wanted(data_dir)}
    return list(runs.values()), tuple(dict.fromkeys(name for part in parts for name in part.foreign))
