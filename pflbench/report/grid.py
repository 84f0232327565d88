"""What every table is made of, whatever it shows: rows, columns of text, notes, and the numbers behind them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Entry:
    text: str
    best: bool = False
    runs: tuple[int, ...] = ()  # those it is made of


@dataclass(frozen=True)
class Column:
    """beside: it belongs to the column before it, whose head names the setting of both."""

    head: tuple[str, ...]
    entries: tuple[Entry, ...]
    beside: bool = False

    def under(self, first: Column) -> Column:
        """The same, standing alone: with the setting that `first` names, above its own head."""
        blank = next((k for k, line in enumerate(self.head) if line), len(self.head))
        return replace(self, head=(*(first.head[:blank] if blank else first.head), *self.head[blank:]), beside=False)


@dataclass(frozen=True)
class Grid:
    """columns[j].entries[i] stands in the row labels[i]. records: a line of CSV for each cell, in full precision."""

    title: str
    labels: tuple[str, ...]
    columns: tuple[Column, ...]
    notes: tuple[str, ...]
    records: tuple[dict[str, Any], ...]
    runs: tuple[int, ...]  # all that the table is made of
    document: dict[str, Any] = field(default_factory=dict)  # what JSON says beside the records

    def with_runs(self) -> Grid:
        """The same with the numbers of its runs in every cell that has any."""

        def named(entry: Entry) -> Entry:
            if not entry.runs:
                return entry
            text = entry.text.removesuffix(" *")
            numbers = ", ".join(map(str, entry.runs))
            return replace(entry, text=f"{text} #{numbers}" + entry.text.removeprefix(text))

        columns = (replace(column, entries=tuple(map(named, column.entries))) for column in self.columns)
        return replace(self, columns=tuple(columns), notes=(*self.notes, "#: the runs of a cell, as in `pflbench runs show`."))
