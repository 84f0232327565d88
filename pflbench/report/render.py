"""A Table as text (Rich), Markdown, LaTeX (booktabs), CSV or JSON.

Text, Markdown and LaTeX show the same grid: a column per setting and, after it, one with the paper's values where it
has any. CSV (a line per cell) and JSON carry every number in full precision, and the runs behind it.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pflbench.errors import unknown
from pflbench.report.accuracy import Cell, Table

PLUS_MINUS = "±"
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "†": r"$^\dagger$", "<": "$<$", ">": "$>$",
}  # fmt: skip


@dataclass(frozen=True)
class _Entry:
    text: str
    best: bool = False


@dataclass(frozen=True)
class _Column:
    head: tuple[str, ...]
    entries: tuple[_Entry, ...]


def render(table: Table, format: str = "text", *, width: int | None = None) -> str:
    """The table in one of FORMATS. `width` is that of the terminal (text only): what does not fit is split into blocks.

    Raises UserError for an unknown format.
    """
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    return FORMATS[format](table, width).rstrip("\n") + "\n"


def _text(table: Table, width: int | None) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    names = max(len(row.label) for row in table.rows)
    columns = _columns(table)
    # Three more characters for each column: its padding and the line after it.
    widths = [max(len(line) for line in (*c.head, *(e.text for e in c.entries))) + 3 for c in columns]
    out = io.StringIO()
    console = Console(file=out, width=max(width or 0, names + 3 + max(widths)) if width else names + sum(widths) + 8)
    for block in _blocks(widths, console.width - names - 6):
        grid = RichTable(box=box.SIMPLE_HEAD)
        grid.add_column("", no_wrap=True, min_width=names)
        for j in block:
            grid.add_column(Text("\n".join(columns[j].head)), justify="right", no_wrap=True)
        for i, row in enumerate(table.rows):
            grid.add_row(Text(row.label), *(Text(columns[j].entries[i].text) for j in block))
        console.print(grid)
    for note in table.notes:
        console.print(note, markup=False, highlight=False, soft_wrap=width is None)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _markdown(table: Table, width: int | None) -> str:
    columns = _columns(table)

    def line(texts: Sequence[str]) -> str:
        return "| " + " | ".join(text.replace("|", r"\|") for text in texts) + " |"

    lines = [line(["Method", *("<br>".join(c.head) for c in columns)]), line(["---", *("---:" for _ in columns)])]
    for i, row in enumerate(table.rows):
        entries = [c.entries[i] for c in columns]
        lines.append(line([row.label, *(f"**{e.text.removesuffix(' *')}**" if e.best else e.text for e in entries)]))
    return "\n".join([*lines, "", *(f"- {note}" for note in table.notes)])


def _latex(table: Table, width: int | None) -> str:
    columns = _columns(table)

    def head(column: _Column) -> str:
        inner = r" \\ ".join(_escape(part) for part in column.head)
        return rf"\shortstack{{{inner}}}" if len(column.head) > 1 else inner

    def entry(e: _Entry) -> str:
        text = _escape(e.text.removesuffix(" *"))
        return rf"\textbf{{{text}}}" if e.best else text

    rows = [" & ".join([_escape(row.label), *(entry(c.entries[i]) for c in columns)]) for i, row in enumerate(table.rows)]
    return "\n".join(
        [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_escape(table.title)}. {_escape(' '.join(table.notes))}}}",
            rf"\begin{{tabular}}{{l{'r' * len(columns)}}}",
            r"\toprule",
            " & ".join(["Method", *map(head, columns)]) + r" \\",
            r"\midrule",
            *(row + r" \\" for row in rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def _csv(table: Table, width: int | None) -> str:
    records = _records(table)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(records[0]), lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({k: _csv_value(v) for k, v in record.items()})
    return out.getvalue()


def _csv_value(value: object) -> object:
    if isinstance(value, tuple):
        return (" " if all(isinstance(v, int) for v in value) else "; ").join(map(str, value))
    return json.dumps(value, sort_keys=True) if isinstance(value, dict) else value


def _json(table: Table, width: int | None) -> str:
    settings = [
        {"title": s.title, "protocol": s.protocol, "partition": s.partition, "spec": _shared(s.spec)} for s in table.settings
    ]
    document = {
        "title": table.title,
        "select": table.select,
        "settings": settings,
        "cells": _records(table),
        "notes": table.notes,
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def _shared(spec: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in spec.items() if key not in ("method", "seed")}


def _records(table: Table) -> list[dict[str, object]]:
    """One record per cell that holds runs; accuracies in percent."""
    return [
        {
            "setting": setting.title,
            "protocol": setting.protocol,
            "partition": setting.partition,
            "row": row.label,
            "method": row.method,
            "version": row.version,
            "hyperparameters": row.hyperparameters,
            "select": table.select,
            "mean": cell.mean,
            "std": cell.std,
            "n": cell.n,
            "best": cell.best,
            "paper_mean": cell.paper.mean if cell.paper else None,
            "paper_std": cell.paper.std if cell.paper else None,
            "paper_table": cell.paper.table if cell.paper else None,
            "paper_differences": cell.differences,
            "difference": cell.difference,
            "runs": cell.runs,
            "seeds": cell.seeds,
            "values": cell.values,
            "rounds": cell.rounds,
        }
        for row, cells in zip(table.rows, table.cells, strict=True)
        for setting, cell in zip(table.settings, cells, strict=True)
        if cell
    ]


def _columns(table: Table) -> list[_Column]:
    counts = {cell.n for row in table.cells for cell in row if cell}
    columns = []
    for setting, cells in zip(table.settings, zip(*table.cells, strict=True), strict=True):
        columns.append(_Column(setting.head, tuple(_ours(cell, len(counts) > 1) for cell in cells)))
        if any(cell and cell.paper for cell in cells):
            columns.append(_Column(("paper",), tuple(_paper(cell) for cell in cells)))
    return columns


def _ours(cell: Cell | None, with_n: bool) -> _Entry:
    if cell is None:
        return _Entry("-")
    text = _value(cell.mean, cell.std if cell.n > 1 else None) + (f" ({cell.n})" if with_n else "")
    return _Entry(text + " *" * cell.best, cell.best)


def _paper(cell: Cell | None) -> _Entry:
    if cell is None or cell.paper is None:
        return _Entry("")
    text = _value(cell.paper.mean, cell.paper.std)
    return _Entry(f"{text} †" if cell.difference is None else f"{text} ({cell.difference:+.2f})")


def _value(mean: float, std: float | None) -> str:
    return f"{mean:.2f}" if std is None else f"{mean:.2f} {PLUS_MINUS} {std:.2f}"


def _blocks(widths: Sequence[int], room: int) -> list[list[int]]:
    """Columns that fit beside each other, in order."""
    blocks: list[list[int]] = []
    used = room + 1
    for j, width in enumerate(widths):
        if used + width > room:
            blocks.append([])
            used = 0
        blocks[-1].append(j)
        used += width
    return blocks


def _escape(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in text)


FORMATS: dict[str, Callable[[Table, int | None], str]] = {
    "text": _text,
    "markdown": _markdown,
    "latex": _latex,
    "csv": _csv,
    "json": _json,
}
