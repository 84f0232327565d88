"""The progress of every table and figure of the papers, and what a missing one needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from pflbench.report import labels
from pflbench.report.declared import Kind
from pflbench.report.papermap import EXHIBITS, Exhibit, Part
from pflbench.reproduce.goal import goals
from pflbench.reproduce.progress import Tally, progress_of


@dataclass(frozen=True)
class ExhibitProgress:
    """foreign: datasets that pflbench does not have."""

    exhibit: Exhibit
    scale: str
    tally: Tally
    foreign: tuple[str, ...]

    @property
    def command(self) -> str:
        return self.exhibit.command + (f" --scale {self.scale}" if self.scale != "full" else "")

    @property
    def there(self) -> int:
        return self.tally.counts["there"]

    @property
    def needed(self) -> int:
        return sum(self.tally.counts.values())

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
        about = {name: getattr(self.exhibit, name) for name in ("paper", "number", "shows")}
        about |= {name: getattr(self, name) for name in ("command", "there", "needed")}
        about |= {"seconds": self.tally.seconds, "unknown": self.tally.unknown}
        return about | {"foreign": self.foreign, "state": self.state}


def overview(engine: Engine | None, scale: str, data_dir: Path) -> list[ExhibitProgress]:
    """The progress of every table and figure. engine: None if there is no database yet. No data are read."""
    parts = [goals(one.command_name, scale) for one in EXHIBITS]
    wanted = [{(run.spec.key, str(run.keeps)): run for part in of for run in part.wanted(data_dir)} for of in parts]
    different = {key: run for runs in wanted for key, run in runs.items()}
    found = dict(zip(different, progress_of(engine, list(different.values())), strict=True))
    return [
        ExhibitProgress(
            one, scale, Tally.of([found[key] for key in runs]), tuple(dict.fromkeys(n for part in of for n in part.foreign))
        )
        for one, of, runs in zip(EXHIBITS, parts, wanted, strict=True)
    ]


def need(kind: Kind, name: str, engine: Engine | None, data_dir: Path) -> tuple[str, dict[str, float | None]]:
    """A sentence that names the paper's table or figure and its runs, and the seconds left at each scale."""
    left: dict[str, float | None] = {}
    words = ""
    for scale in ("full", "quick"):
        (goal,) = goals(Part(kind, name).command_name, scale)
        wanted = goal.wanted(data_dir)
        tally = Tally.of(progress_of(engine, wanted))
        left[scale] = None if tally.unknown else tally.seconds
        if scale == "full":
            methods = list(dict.fromkeys(labels.method_title(one.spec.method.name) for one in wanted))
            some = " and ".join(methods) if len(methods) < 3 else f"{len(methods)} methods"
            datasets = labels.some(list(dict.fromkeys(labels.label_title(one.spec.data.label) for one in wanted)))
            words = f"{goal.source}: {labels.counted(len(wanted), 'run')} of {some} on {datasets}"
    return words, left


def command(kind: Kind, name: str) -> str:
    return f"pflbench reproduce {Part(kind, name).command_name}"
