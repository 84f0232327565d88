"""The interactive figures for a page; the module that makes them is imported when a page is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report import Entry
from pflbench.report.papermap import sources
from pflbench.report.selection import Filters
from pflbench.site.filters import Missing


@dataclass(frozen=True)
class Figure:
    """spec: a figure of plotly.js, {"data", "layout"}."""

    id: str
    title: str
    caption: str
    notes: tuple[str, ...]
    runs: tuple[int, ...]
    spec: dict[str, Any]

    @property
    def height(self) -> int:
        """In pixels."""
        return int(self.spec["layout"].get("height", 450))


@dataclass(frozen=True)
class Group:
    """The figures of one name, a figure per setting or run."""

    name: str
    title: str
    figures: tuple[Figure, ...]

    @property
    def source(self) -> str:
        """Where the papers have it: "FedALA, Figure 4"."""
        return sources("plot", self.name)

    @property
    def runs(self) -> tuple[int, ...]:
        return tuple(run for figure in self.figures for run in figure.runs)


def views(engine: Engine, filters: Filters) -> tuple[tuple[Group, ...], tuple[Missing, ...]]:
    """The figures that the database can fill, and the others."""
    from pflbench.report import interactive

    drawn: list[Group] = []
    empty: list[Missing] = []
    for name, entry in interactive.FIGURES.items():
        if made := interactive.build(name, engine, filters):
            drawn.append(Group(name, entry.title, tuple(map(_figure, made))))
        else:
            empty.append(Missing("plot", name, entry.title, *_reason(engine, entry, filters)))
    return tuple(drawn), tuple(empty)


def _reason(engine: Engine, entry: Entry, filters: Filters) -> tuple[str, str]:
    """Why there is nothing to draw, and what would change that."""
    try:
        entry.load()(engine, filters)
    except UserError as error:
        return error.message, error.hint
    return "There is nothing to draw.", ""


def of_run(engine: Engine, run_id: int) -> tuple[Figure, ...]:
    """A run's accuracy, loss, clients and seconds by phase, as far as it has them."""
    from pflbench.report import interactive

    made = (interactive.run_curve, interactive.train_loss, interactive.client_accuracy, interactive.phases)
    return tuple(_figure(figure) for make in made if (figure := make(engine, run_id)) is not None)


def _figure(made: Any) -> Figure:
    return Figure(made.id, made.title, made.caption, tuple(made.notes), tuple(made.runs), made.spec)
