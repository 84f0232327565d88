"""The data of a page: the tables and figures for which the database has runs, the runs, and the missing tables and figures."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, TypeVar

from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report import figures
from pflbench.report.declared import PLOTS, TABLES, Kind, Report
from pflbench.report.papermap import EXHIBITS, Exhibit, Part
from pflbench.report.selection import Filters, parse, statuses
from pflbench.report.web import Interactive, reraise_database_error
from pflbench.site import runs, tables
from pflbench.site.runs import RunLine
from pflbench.site.tables import Leaders, TableView, leaders
from pflbench.store.runs import distinct

T = TypeVar("T")

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
class FigureGroup:
    """The figures of one name, one per setting or run. cut: not all settings or runs are drawn."""

    name: str
    title: str
    figures: tuple[Interactive, ...]
    cut: bool


@dataclass(frozen=True)
class Missing:
    """A table or figure for which the database lacks runs: why, and what to do."""

    kind: Kind
    name: str
    title: str
    reason: str
    hint: str

    @property
    def command(self) -> str:
        """The command that trains its runs and shows it."""
        return f"pflbench reproduce {Part(self.kind, self.name).command_name}"


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
    def map(self) -> list[tuple[Exhibit, list[tuple[str, str]]]]:
        """The papers' tables and figures, each with its parts on the page, as anchor and name."""
        links = {("plot", group.name): (f"figures-{group.name}", group.name) for group in self.figures}
        links |= {("table", view.name): (f"table-{view.name}", view.name) for view in self.tables}
        # The table in the paper's layout takes precedence over the table of any runs.
        links |= {("table", name): links["table", of.printed] for name, of in TABLES.items() if ("table", of.printed) in links}
        return [
            (exhibit, [links[place] for part in exhibit.parts if (place := (part.kind, part.name)) in links])
            for exhibit in EXHIBITS
        ]

    @property
    def lacking(self) -> list[Exhibit]:
        """The papers' tables that are not on the page, or have cells without runs."""
        absent = {one.name for one in self.missing if one.kind == "table"}
        absent |= {view.name for view in self.tables if any(note.startswith("Not run: ") for note in view.grid.notes)}
        needed = {part: TABLES[part.name].printed or part.name for one in EXHIBITS for part in one.parts if part.kind == "table"}
        return [one for one in EXHIBITS if any(needed.get(part) in absent for part in one.parts)]

    @property
    def leaders(self) -> tuple[Leaders, ...]:
        """The best methods of each setting of the accuracy table."""
        return next((leaders(view.grid) for view in self.tables if view.name == "accuracy"), ())

    @property
    def shown(self) -> tuple[int, ...]:
        """The runs behind the tables and figures."""
        drawn = {run for group in self.figures for figure in group.figures for run in figure.runs}
        return tuple(sorted(drawn.union(*(view.grid.runs for view in self.tables))))

    @property
    def settings(self) -> dict[str, list[Any]]:
        """Those in which the runs differ, with the value of each run."""
        return runs.settings(self.runs)


def build(
    engine: Engine, made: Made, filters: Filters, pages: str = "auto", round_rule: str = "best", *, live: bool = False
) -> Page:
    """The page about the runs that pass the filters.

    pages: which runs have pages of their own: "all", "shown" (those of the tables and figures), "none", their numbers ("3,17"),
    or "auto": all up to MOST runs, else none. round_rule: as of `selection.parse`, for the tables and figures that have one.

    Raises UserError for unknown names and rules, and if there are no runs, unless the page is live.
    """
    if not re.fullmatch(rf"auto|{'|'.join(PAGES)}|\d{{1,15}}(,\d{{1,15}})*", pages):
        raise UserError(f"--runs {pages} is not possible.", f"Write {', '.join(PAGES)}, or numbers of runs: --runs 3,17.")
    parse(round_rule)
    filters = replace(filters, kept={})
    wanted = statuses(filters.status or ["any"])
    empty = live and not distinct(engine, filters.among(engine), "method")
    lines = runs.listed(engine, [] if empty else [run for run in filters.matching(engine) if run.status in wanted])
    most = FIGURES if len(lines) > MOST else None

    def by_rule(report: Callable[..., Any]) -> dict[str, str]:
        return {"round_rule": round_rule} if "round_rule" in signature(report).parameters else {}

    def table(report: Report) -> TableView:
        build = report.load()
        return tables.view(report.name, report.title, build(engine, filters, **by_rule(build)).grid())

    def group(report: Report) -> FigureGroup:
        drawn = figures.pages(report.name, engine, filters, most, **by_rule(report.load("page")))
        return FigureGroup(report.name, report.title, drawn, most is not None and len(drawn) >= most)

    filled, unfilled = _possible(TABLES.values(), table)
    drawn, undrawn = _possible(PLOTS.values(), group)
    page = Page(made, filters, filled, drawn, (*unfilled, *undrawn), lines, frozenset(), live)
    return replace(page, pages=_paged(lines, page.shown, pages))


def _possible(reports: Iterable[Report], view: Callable[[Report], T]) -> tuple[tuple[T, ...], list[Missing]]:
    """The tables or figures for which the database has runs, and the others. Raises UserError if it cannot be read."""
    made, missing = [], []
    for report in reports:
        try:
            made.append(view(report))
        except UserError as error:
            reraise_database_error(error)
            if report.reproducible:
                missing.append(Missing(report.kind, report.name, report.title, error.message, error.hint))
    return tuple(made), missing


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
