"""The data of a page: the tables and figures for which the database has runs, the runs, and the missing tables and figures."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report.papermap import DRAWINGS
from pflbench.report.selection import Filters, statuses
from pflbench.site import figures, papermap, runs, tables
from pflbench.site.figures import FigureGroup
from pflbench.site.papermap import Missing
from pflbench.site.runs import RunLine
from pflbench.site.tables import Leaders, TableView, leaders
from pflbench.store.runs import Result, distinct

PAGES = ("all", "shown", "none")
MOST = 200  # runs up to which all runs have pages by default, and all settings figures
FIGURES = 12  # settings with figures, if there are more than MOST runs


@dataclass(frozen=True)
class Made:
    """How a page was made. `at`: UTC, ISO 8601."""

    database: str
    at: str
    version: str
    commit: str | None
    command: str


@dataclass(frozen=True)
class Page:
    made: Made
    filters: Filters
    tables: tuple[TableView, ...]
    figures: tuple[FigureGroup, ...]
    missing: tuple[Missing, ...]
    runs: tuple[RunLine, ...]
    pages: frozenset[int]  # the runs with a page of their own
    live: bool

    @property
    def most(self) -> int:
        return MOST

    @property
    def running(self) -> tuple[RunLine, ...]:
        return tuple(line for line in self.runs if line.info.status == "running")

    @property
    def map(self) -> tuple[papermap.Shown, ...]:
        return papermap.shown({view.name for view in self.tables}, {group.name for group in self.figures})

    @property
    def leaders(self) -> tuple[Leaders, ...]:
        """The best methods of each setting of the accuracy table."""
        return next((leaders(view) for view in self.tables if view.name == "accuracy"), ())

    @property
    def drawings(self) -> tuple[str, ...]:
        """Sentences about figures of the papers that are drawings."""
        return tuple(f"{paper}: {why}." for paper, why in DRAWINGS.items())

    @property
    def shown(self) -> tuple[int, ...]:
        """The runs behind the tables and figures."""
        return _shown(self.tables, self.figures)


def build(engine: Engine, made: Made, filters: Filters, pages: str = "auto", *, live: bool = False) -> Page:
    """The page about the runs that pass the filters.

    pages: which runs have pages of their own: "all", "shown" (those of the tables and figures), "none", their numbers ("3,17"),
    or "auto": all up to MOST runs, else none.

    Raises UserError for unknown names, and if there are no runs, unless the page is live.
    """
    if not re.fullmatch(rf"auto|{'|'.join(PAGES)}|\d{{1,15}}(,\d{{1,15}})*", pages):
        raise UserError(f"--runs {pages} is not possible.", f"Write {', '.join(PAGES)}, or numbers of runs: --runs 3,17.")
    filters = replace(filters, kept={})
    lines = runs.listed(engine, _chosen(engine, filters, live))
    filled, empty = tables.views(engine, filters)
    drawn, undrawn = figures.views(engine, filters, FIGURES if len(lines) > MOST else None)
    paged = _paged(lines, _shown(filled, drawn), pages)
    return Page(made, filters, filled, drawn, (*empty, *undrawn), lines, paged, live)


def _shown(filled: Iterable[TableView], drawn: Iterable[FigureGroup]) -> tuple[int, ...]:
    return tuple(sorted({run for table in filled for run in table.runs} | {run for group in drawn for run in group.runs}))


def _chosen(engine: Engine, filters: Filters, live: bool) -> list[Result]:
    if live and not distinct(engine, filters.among(engine), "method"):
        return []
    matching = filters.matching(engine)
    return [run for run in matching if not filters.status or run.status in statuses(filters.status)]


def _paged(lines: Collection[RunLine], shown: Iterable[int], pages: str) -> frozenset[int]:
    everything = frozenset(line.info.id for line in lines)
    if pages == "auto":
        pages = "all" if len(lines) <= MOST else "none"
    chosen = {"all": everything, "shown": everything & frozenset(shown), "none": frozenset[int]()}
    if pages in chosen:
        return chosen[pages]
    named = frozenset(map(int, pages.split(",")))
    if absent := named - everything:
        raise UserError(f"--runs: no run {min(absent)} among those of this report.", "`pflbench runs list` shows the numbers.")
    return named
