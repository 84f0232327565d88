"""The figures of a page, by name, and why others are missing."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report import figures
from pflbench.report.declared import PLOTS
from pflbench.report.papermap import sources
from pflbench.report.selection import Filters
from pflbench.report.web import Interactive, reraise_database_error
from pflbench.site.papermap import Missing


@dataclass(frozen=True)
class FigureGroup:
    """The figures of one name, one per setting or run. cut: not all settings or runs are drawn."""

    name: str
    title: str
    figures: tuple[Interactive, ...]
    cut: bool

    @property
    def source(self) -> str:
        """The papers' name for it: "FedALA, Figure 4"."""
        return sources("plot", self.name)

    @property
    def runs(self) -> tuple[int, ...]:
        return tuple(run for figure in self.figures for run in figure.runs)


def views(engine: Engine, filters: Filters, most: int | None) -> tuple[tuple[FigureGroup, ...], tuple[Missing, ...]]:
    """The figures for which the database has runs, and the others. most: settings or runs per name (None: all).

    Raises UserError if the database cannot be read.
    """
    drawn, empty = [], []
    for name, entry in PLOTS.items():
        try:
            of_name = figures.pages(name, engine, filters, most)
            drawn.append(FigureGroup(name, entry.title, of_name, most is not None and len(of_name) >= most))
        except UserError as error:
            reraise_database_error(error)
            empty.append(Missing("plot", name, entry.title, error.message, error.hint))
    return tuple(drawn), tuple(empty)
