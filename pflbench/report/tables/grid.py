"""What every table is made of, whatever it shows; and the same as text (Rich), Markdown, LaTeX (booktabs), CSV or JSON.

Text, Markdown and LaTeX show the same grid. CSV (a line per cell) and JSON carry every number in full precision, and the runs
behind it.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pflbench.plain import in_csv

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "†": r"$^\dagger$", "‡": r"$^\ddagger$",
    "<": "$<$", ">": "$>$", "|": r"\textbar{}", "[": "{[}", "]": "{]}", "*": "{*}",
    "\N{MINUS SIGN}": "$-$", "Σ": r"$\Sigma$", "α": r"$\alpha$", "β": r"$\beta$", "²": "$^2$",
    "↑": r"$\uparrow$", "↓": r"$\downarrow$", "§": r"\S{}",
}  # fmt: skip
_MARKS = re.compile(r"[\\`*~$\[\]|&]|<(?=[A-Za-z/!?])|(?<!\w)_|_(?!\w)")  # what Markdown reads in a text, or HTML in that
_COMMAND = re.compile(r"((?<!`)`[^`]+`(?!`))")
_HEAD = 24  # characters of a head's line beyond which it is broken at its commas
_BEST = {"text": "*", "markdown": "Bold", "latex": "Bold"}
_PIPED = 120  # characters in a line of text where there is no terminal, as in a file
_LATEX_COLUMN, _LATEX_PAGE = 50, 110  # characters in a column of text, and over a page in \footnotesize


@dataclass(frozen=True)
class CellText:
    text: str
    best: bool = False
    runs: tuple[int, ...] = ()  # those it is made of


@dataclass(frozen=True)
class Column:
    """beside: it belongs to the column before it, whose head names the setting of both."""

    head: tuple[str, ...]
    entries: tuple[CellText, ...]
    beside: bool = False

    def under(self, first: Column) -> Column:
        """The same, standing alone: with the setting that `first` names, above its own head."""
        blank = next((k for k, line in enumerate(self.head) if line), len(self.head))
        return replace(self, head=(*(first.head[:blank] if blank else first.head), *self.head[blank:]), beside=False)


@dataclass(frozen=True)
class Grid:
    """Rows, columns of text, notes, and the numbers behind them.

    columns[j].entries[i] stands in the row labels[i]. records: a line of CSV for each cell, in full precision, with its
    "runs". row_head: the head of the labels.
    """

    title: str
    labels: tuple[str, ...]
    columns: tuple[Column, ...]
    notes: tuple[str, ...]
    records: tuple[dict[str, Any], ...]
    document: dict[str, Any] = field(default_factory=dict)  # what JSON says beside the records
    row_head: str = "Method"

    @property
    def runs(self) -> tuple[int, ...]:
        """All that the table is made of."""
        return tuple(sorted({run for record in self.records for run in record["runs"]}))

    def marked(self, mark: str) -> Grid:
        """The same with a note on the mark of the best cells, if there are any."""
        if not any(entry.best for column in self.columns for entry in column.entries):
            return self
        return replace(self, notes=(*self.notes, f"{mark}: the best of its column; beside means, a single run is never marked."))

    def with_runs(self) -> Grid:
        """The same with the numbers of its runs in every cell that has any."""

        def named(entry: CellText) -> CellText:
            if not entry.runs:
                return entry
            text = entry.text.removesuffix(" *")
            numbers = ", ".join(map(str, entry.runs))
            return replace(entry, text=f"{text} #{numbers}" + entry.text.removeprefix(text))

        columns = (replace(column, entries=tuple(map(named, column.entries))) for column in self.columns)
        return replace(self, columns=tuple(columns), notes=(*self.notes, "#: the runs of a cell, as in `pflbench runs show`."))


def render(table: Grid, format: str = "text", *, width: int | None = None) -> str:
    """The table in one of FORMATS. `width` is that of the terminal (text only): what does not fit is split into blocks.

    Without one the columns are split so as to be read, and notes are not.
    """
    if format in _BEST:
        table = table.marked(_BEST[format])
    return FORMATS[format](table, width).rstrip("\n") + "\n"


def _text(table: Grid, width: int | None) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    names = max(len(label) for label in table.labels)
    columns = table.columns
    # Three more characters for each column: its padding and the line after it.
    widths = [max(len(line) for line in (*_lines(c), *(e.text for e in c.entries))) + 3 for c in columns]
    out = io.StringIO()
    console = Console(file=out, width=max(width or _PIPED, names + 3 + max(widths)))
    for block in _blocks(columns, widths, console.width - names - 6):
        grid = RichTable(box=box.SIMPLE_HEAD)
        grid.add_column("", no_wrap=True, min_width=names)
        for column in block:
            grid.add_column(Text("\n".join(_lines(column))), justify="right", no_wrap=True)
        for i, label in enumerate(table.labels):
            grid.add_row(Text(_line(label)), *(Text(_line(column.entries[i].text)) for column in block))
        console.print(grid)
    for note in table.notes:
        console.print(_line(note), markup=False, highlight=False, soft_wrap=width is None)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _markdown(table: Grid, width: int | None) -> str:
    columns = table.columns

    def line(texts: Sequence[str]) -> str:
        return "| " + " | ".join(texts) + " |"

    heads = ("<br>".join(map(_as_markdown, c.head)) for c in columns)
    lines = [line([table.row_head, *heads]), line(["---", *("---:" for _ in columns)])]
    for i, label in enumerate(table.labels):
        entries = [c.entries[i] for c in columns]
        texts = (f"**{_as_markdown(e.text.removesuffix(' *'))}**" if e.best else _as_markdown(e.text) for e in entries)
        lines.append(line([_as_markdown(label), *texts]))
    # Commands in a note stay as they are: every second part.
    notes = (
        "".join(part if k % 2 else _as_markdown(part) for k, part in enumerate(_COMMAND.split(_line(note))))
        for note in table.notes
    )
    return "\n".join([*lines, "", *(f"- {note}" for note in notes)])


def _as_markdown(text: str) -> str:
    return _MARKS.sub(r"\\\g<0>", _line(text))


def _latex(table: Grid, width: int | None) -> str:
    """As wide as its columns need: `table*` over both columns of a page, in blocks beyond its width."""
    columns = table.columns
    widths = [max(len(line) for line in (*_lines(c), *(e.text.removesuffix(" *") for e in c.entries))) + 2 for c in columns]
    names = max(len(label) for label in table.labels)
    kind = "table*" if names + sum(widths) > _LATEX_COLUMN else "table"
    blocks = _blocks(columns, widths, max(_LATEX_PAGE - names, *widths))
    said = [note for note in table.notes if not _for_the_shell(note)]
    lines = [
        *(f"% {_line(note)}" for note in ("needs \\usepackage{booktabs}", *filter(_for_the_shell, table.notes))),
        rf"\begin{{{kind}}}",
        r"\centering",
        *(["\\footnotesize"] if kind == "table*" else []),
        rf"\caption[{_escape(table.title)}]{{{_escape(' '.join((table.title + '.', *said)))}}}",
        rf"\label{{tab:{'-'.join(re.findall('[a-z0-9]+', table.title.lower()))}}}",
    ]
    for k, block in enumerate(blocks):
        lines += [*([r"\medskip", ""] if k else []), *_tabular(table, block)]
    return "\n".join([*lines, rf"\end{{{kind}}}"])


def _tabular(table: Grid, columns: Sequence[Column]) -> list[str]:
    def head(column: Column) -> str:
        parts = [_escape(part) for part in _lines(column) if part]
        inner = r" \\ ".join(parts)
        return rf"\shortstack[r]{{{inner}}}" if len(parts) > 1 else inner

    def entry(e: CellText) -> str:
        text = "--" if e.text == "-" else _escape(e.text.removesuffix(" *"))
        return rf"\textbf{{{text}}}" if e.best else text

    rows = [" & ".join([_escape(label), *(entry(c.entries[i]) for c in columns)]) for i, label in enumerate(table.labels)]
    return [
        rf"\begin{{tabular}}{{l{'r' * len(columns)}}}",
        r"\toprule",
        " & ".join([table.row_head, *map(head, columns)]) + r" \\",
        r"\midrule",
        *(row + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]


def _for_the_shell(note: str) -> bool:
    """Commands are for the person who makes the table, not for its readers."""
    return "`" in note or "pflbench " in note or note.startswith("#")


def _csv(table: Grid, width: int | None) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(table.records[0]), lineterminator="\n")
    writer.writeheader()
    for record in table.records:
        writer.writerow({k: in_csv(_csv_value(v)) for k, v in record.items()})
    return out.getvalue()


def _csv_value(value: object) -> object:
    if isinstance(value, tuple):
        return (" " if all(isinstance(v, int) for v in value) else "; ").join(map(str, value))
    return json.dumps(value, sort_keys=True) if isinstance(value, dict) else value


def _json(table: Grid, width: int | None) -> str:
    document = {"title": table.title, **table.document, "cells": table.records, "notes": table.notes}
    return json.dumps(document, indent=2, ensure_ascii=False)


def _blocks(columns: Sequence[Column], widths: Sequence[int], room: int) -> list[list[Column]]:
    """Columns that fit beside each other, in order. Those of a setting stay together, or each part of them names it."""
    blocks: list[list[Column]] = [[]]
    left = room
    firsts = [j for j, column in enumerate(columns) if j == 0 or not column.beside]
    for group in map(range, firsts, [*firsts[1:], len(columns)]):
        needed = sum(widths[j] for j in group)
        if needed > left and blocks[-1]:
            blocks.append([])
            left = room
        for j in group:
            if widths[j] > left and blocks[-1]:
                blocks.append([])
                left = room
            names_setting = not blocks[-1] and j != group[0]
            blocks[-1].append(columns[j].under(columns[group[0]]) if names_setting else columns[j])
            left -= max(widths[j], widths[group[0]]) if names_setting else widths[j]
    return blocks


def _lines(column: Column) -> list[str]:
    """Its head, where a line that is too long is several."""
    lines = map(_line, column.head)
    return [part for line in lines for part in (line.split(", ") if len(line) > _HEAD else [line])]


def _line(text: str) -> str:
    """On one line: a name from a database may have several, and a line ends a comment."""
    return " ".join(text.splitlines())


def _escape(text: str) -> str:
    """A minus is no hyphen, and two hyphens, as of an option, are no dash."""
    text = re.sub(r"(?<![\w-])-(?=\d)", "\N{MINUS SIGN}", _line(text))
    escaped = "".join(_LATEX.get(c, c) for c in text)
    return re.sub("-(?=-)", "-{}", escaped).replace(r"$\alpha$\_f", r"$\alpha_f$")


FORMATS: dict[str, Callable[[Grid, int | None], str]] = {
    "text": _text,
    "markdown": _markdown,
    "latex": _latex,
    "csv": _csv,
    "json": _json,
}
SUFFIXES = {".txt": "text", ".md": "markdown", ".tex": "latex", ".csv": "csv", ".json": "json"}
