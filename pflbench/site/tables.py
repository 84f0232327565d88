"""The tables of `pflbench table` for a page: with grouped heads for HTML, and sort keys of cells."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass

from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report.declared import TABLES
from pflbench.report.papermap import sources
from pflbench.report.selection import Filters
from pflbench.report.tables.grid import CellText, Column, Grid, render
from pflbench.site.papermap import Missing

LEADING = 3  # methods of a setting that stand on top of the page
_NUMBER = re.compile(r"[<>]?\s*([+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)")


@dataclass(frozen=True)
class HeadGroup:
    """A head above `span` columns; empty above columns without a common head."""

    head: tuple[str, ...]
    span: int


@dataclass(frozen=True)
class CellView:
    """A cell. sort: the number or text by which it is sorted, empty for an empty cell."""

    text: str
    sort: str
    best: bool
    runs: tuple[int, ...]


@dataclass(frozen=True)
class TableView:
    """A table. rows: label and cells. csv: a data URL with the table in full precision."""

    name: str
    title: str
    summary: str
    groups: tuple[HeadGroup, ...]
    heads: tuple[tuple[str, ...], ...]
    rows: tuple[tuple[str, tuple[CellView, ...]], ...]
    notes: tuple[str, ...]
    runs: tuple[int, ...]
    csv: str

    @property
    def source(self) -> str:
        """The papers' name for it: "FedALA, Table 4"."""
        return sources("table", self.name)


def views(engine: Engine, filters: Filters) -> tuple[tuple[TableView, ...], tuple[Missing, ...]]:
    """The tables for which the database has runs, and the others."""
    filled, empty = [], []
    for name, entry in TABLES.items():
        try:
            grid = entry.build(engine, filters).grid()
        except UserError as error:
            empty.append(Missing("table", name, entry.title, error.message, error.hint))
        else:
            filled.append(view(name, entry.title, grid))
    return tuple(filled), tuple(empty)


def view(name: str, summary: str, grid: Grid) -> TableView:
    rows = tuple((label, tuple(_cell(column.entries[i]) for column in grid.columns)) for i, label in enumerate(grid.labels))
    groups, heads = _heads(grid.columns)
    marked = any(entry.best for column in grid.columns for entry in column.entries)
    notes = (*grid.notes, *(("Bold: the best of its column; beside means, a single run is never marked.",) if marked else ()))
    data = base64.b64encode(render(grid, "csv").encode()).decode()
    runs = tuple(sorted(set(grid.runs)))
    return TableView(name, grid.title, summary, groups, heads, rows, notes, runs, f"data:text/csv;charset=utf-8;base64,{data}")


@dataclass(frozen=True)
class Leaders:
    """The best methods of a setting: labels and cells, best first. without: labels of methods that have no run in it."""

    setting: str
    best: tuple[tuple[str, CellView], ...]
    without: tuple[str, ...]


def leaders(accuracy: TableView) -> tuple[Leaders, ...]:
    """Of each column of the accuracy table that is a setting."""
    found = []
    heads = [head for group in accuracy.groups for head in [group.head] * group.span] or [()] * len(accuracy.heads)
    for j, (group, head) in enumerate(zip(heads, accuracy.heads, strict=True)):
        cells = [(label, row[j]) for label, row in accuracy.rows]
        run = [(label, cell) for label, cell in cells if cell.runs]
        if not run:
            continue
        best = sorted(run, key=lambda pair: -float(pair[1].sort or 0))[:LEADING]
        missing = tuple(label for label, cell in cells if not cell.runs)
        found.append(Leaders(", ".join((*group, *head)), tuple(best), missing))
    return tuple(found)


def _cell(entry: CellText) -> CellView:
    return CellView(entry.text.removesuffix(" *"), sort_value(entry.text), entry.best, entry.runs)


def sort_value(text: str) -> str:
    """'85.77 ± 1.15 *' -> '85.77': the number at the beginning, else the text."""
    if text in ("", "-"):
        return ""
    number = _NUMBER.match(text)
    return number[1].replace(",", "") if number else text


def _heads(columns: tuple[Column, ...]) -> tuple[tuple[HeadGroup, ...], tuple[tuple[str, ...], ...]]:
    """A column whose head begins with empty lines belongs to the group of the column before it, which has the group's lines."""
    groups: list[HeadGroup] = []
    heads: list[tuple[str, ...]] = []
    empty = [next((k for k, line in enumerate(column.head) if line), 0) for column in columns]
    for column, above, following in zip(columns, empty, (*empty[1:], 0), strict=True):
        if above:
            groups[-1] = HeadGroup(groups[-1].head, groups[-1].span + 1)
        else:
            groups.append(HeadGroup(column.head[:following], 1))
        heads.append(column.head[above or following :])
    return (tuple(groups) if any(group.head for group in groups) else ()), tuple(heads)
