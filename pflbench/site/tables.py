"""The tables of `pflbench table` for a page: with grouped heads for HTML, and sort keys of cells."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass

from pflbench.report import baselines
from pflbench.report.tables.grid import CellText, Column, Grid, render

_NUMBER = re.compile(r"[<>]?\s*([+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)")


@dataclass(frozen=True)
class HeadGroup:
    """A head above `span` columns; empty above columns without a common head."""

    head: tuple[str, ...]
    span: int


@dataclass(frozen=True)
class TableView:
    """A table. heads: of its columns, below the groups; csv: a data URL with the table in full precision."""

    name: str
    summary: str
    grid: Grid
    groups: tuple[HeadGroup, ...]
    heads: tuple[tuple[str, ...], ...]
    csv: str


def view(name: str, summary: str, grid: Grid) -> TableView:
    data = base64.b64encode(render(grid, "csv").encode()).decode()
    return TableView(name, summary, grid.marked("Bold"), *_heads(grid.columns), f"data:text/csv;charset=utf-8;base64,{data}")


@dataclass(frozen=True)
class Leaders:
    """The methods of a setting: labels and cells, best first. without: labels of methods that have no run in it."""

    setting: str
    best: tuple[tuple[str, CellText], ...]
    without: tuple[str, ...]


def leaders(accuracy: Grid) -> tuple[Leaders, ...]:
    """Of each column of the accuracy table that is a setting."""
    found = []
    for column in accuracy.columns:
        cells = [pair for pair in zip(accuracy.labels, column.entries, strict=True) if pair[0] != baselines.MAJORITY]
        if run := [(label, cell) for label, cell in cells if cell.runs]:
            best = sorted(run, key=lambda pair: (not pair[1].best, -float(sort_value(pair[1].text) or 0)))
            found.append(Leaders(", ".join(column.head), tuple(best), tuple(label for label, cell in cells if not cell.runs)))
    return tuple(found)


def sort_value(text: str) -> str:
    """'85.77 ± 1.15 *' -> '85.77': the number at the beginning, else the text; empty for an empty cell."""
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
