"""`table accuracy`: methods x settings in the shape of the paper's Table 2, the paper's value beside ours.

Plain data; `render` turns it into text, Markdown, LaTeX, CSV or JSON.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import unknown
from pflbench.report import labels
from pflbench.report import paper as reference
from pflbench.report import select as selection
from pflbench.report.collect import Row, Setting, collect
from pflbench.store.read import Result, Select

Paper = Literal["auto", "always", "never"]
PAPER: tuple[Paper, ...] = ("auto", "always", "never")

# Of a protocol, what a reader needs beside the table; the rest is in the specification of each run.
_PROTOCOL = {
    "model": "model",
    "partition.clients": "clients",
    "train.join_ratio": "join ratio",
    "train.rounds": "rounds",
    "train.local_epochs": "local epochs",
    "train.batch_size": "batch size",
    "train.lr": "learning rate",
}


@dataclass(frozen=True)
class Cell:
    """One method in one setting. Accuracies in percent; `std` is the population std over the runs (methods.md 2.1).

    `paper` is the paper's value; `differences` says how its protocol differs from the runs', and `difference` (mean
    minus the paper's mean, in points) is given only where it does not.
    """

    mean: float
    std: float
    runs: tuple[int, ...]  # the runs' numbers, with seeds, values and rounds in the same order
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    rounds: tuple[int, ...]  # the round of each value; the last one that went into a mean
    best: bool
    paper: reference.Reference | None
    differences: tuple[str, ...]

    @property
    def n(self) -> int:
        return len(self.runs)

    @property
    def difference(self) -> float | None:
        return self.mean - self.paper.mean if self.paper and not self.differences else None


@dataclass(frozen=True)
class Table:
    """cells[i][j] is rows[i] in settings[j]; None where there are no runs."""

    title: str
    select: str
    settings: tuple[Setting, ...]
    rows: tuple[Row, ...]
    cells: tuple[tuple[Cell | None, ...], ...]
    notes: tuple[str, ...]


def build(
    engine: Engine,
    *,
    methods: Iterable[str] = (),
    datasets: Iterable[str] = (),
    partitions: Iterable[str] = (),
    select: Select | str = "best",
    status: Collection[str] = ("finished",),
    paper: Paper = "auto",
) -> Table:
    """Mean and population std over the runs (seeds) of each method in each setting; the best are marked, ties too.

    `paper`: 'auto' shows the paper's value where the protocol is the paper's, 'always' also where it is not (marked,
    with the differences), 'never' not at all. Raises UserError for unknown names and when there is nothing to show.
    """
    if paper not in PAPER:
        raise unknown("value of --paper", paper, PAPER)
    chosen = selection.parse(select) if isinstance(select, str) else select
    found = collect(engine, chosen, methods=methods, datasets=datasets, partitions=partitions, status=status)
    cells: list[list[Cell | None]] = [[None] * len(found.settings) for _ in found.rows]
    for (i, j), runs in found.cells.items():
        cells[i][j] = _cell(runs, chosen, paper)
    marked = _mark_best(cells)
    everything = [cell for row in marked for cell in row if cell]
    used = min(result.used for runs in found.cells.values() for result in runs)
    notes = [
        "Accuracy in %, pooled over the clients' test data; mean ± population std over runs that differ in the seed.",
        _counts(everything),
        selection.sentence(chosen),
    ]
    if used < chosen.last:
        notes.append(f"A run with fewer than {chosen.last} evaluated rounds counts with all it has (shortest: {used}).")
    notes += [*_protocol(found.settings), *_paper_notes(found.rows, found.settings, marked), *found.notes]
    return Table("Accuracy", str(chosen), found.settings, found.rows, tuple(map(tuple, marked)), tuple(notes))


def _cell(runs: Sequence[Result], select: Select, paper: Paper) -> Cell:
    values = np.array([100 * run.value for run in runs if run.value is not None])
    match = None if paper == "never" else reference.find(runs[0].spec, select)
    if match and match.differences and paper == "auto":
        match = None
    return Cell(
        mean=float(values.mean()),
        std=float(values.std()),
        runs=tuple(run.id for run in runs),
        seeds=tuple(run.seed for run in runs),
        values=tuple(values.tolist()),
        rounds=tuple(run.round for run in runs if run.round is not None),
        best=False,
        paper=match.reference if match else None,
        differences=match.differences if match else (),
    )


def _mark_best(cells: Sequence[Sequence[Cell | None]]) -> list[list[Cell | None]]:
    """Best of a column as it is printed: means that agree to two decimals are ties. A column of one has no best."""
    columns = [[cell for cell in column if cell] for column in zip(*cells, strict=True)]
    tops = [round(max(cell.mean for cell in column), 2) if len(column) > 1 else None for column in columns]
    return [
        [cell and replace(cell, best=round(cell.mean, 2) == top) for cell, top in zip(row, tops, strict=True)] for row in cells
    ]


def _counts(cells: Sequence[Cell]) -> str:
    counts = {cell.n for cell in cells}
    if len(counts) == 1:
        n = counts.pop()
        return f"n = {n} run{'s' * (n != 1)} in every cell."
    return f"(n): number of runs, {min(counts)} to {max(counts)}."


def _protocol(settings: Sequence[Setting]) -> list[str]:
    """What all settings share in one line; what they do not, by value, unless the heads say it."""
    flat = [labels.flat(s.spec) for s in settings]
    shared, notes = [], []
    for key, name in _PROTOCOL.items():
        where: dict[str, list[str]] = defaultdict(list)
        for setting, spec in zip(settings, flat, strict=True):
            value = spec[key]
            text = labels.words(key, value) if key == "model" else f"{value:g}"
            where[text].append(setting.title)
        if len(where) == 1:
            shared.append(f"{name} {next(iter(where))}")
        elif not all(labels.words(key, spec[key]) in s.head for s, spec in zip(settings, flat, strict=True)):
            notes.append(f"{name.capitalize()}: " + "; ".join(f"{v} ({_some(titles)})" for v, titles in where.items()) + ".")
    return ([f"In all settings: {', '.join(shared)}."] if shared else []) + notes


def _some(titles: Sequence[str], most: int = 4) -> str:
    rest = len(titles) - most
    return " / ".join(titles[:most]) + (f" and {rest} more" if rest > 0 else "")


def _paper_notes(rows: Sequence[Row], settings: Sequence[Setting], cells: Sequence[Sequence[Cell | None]]) -> list[str]:
    shown = [
        (row.label, settings[j].title, cell)
        for row, line in zip(rows, cells, strict=True)
        for j, cell in enumerate(line)
        if cell and cell.paper
    ]
    if not shown:
        return []
    tables = sorted({cell.paper.table for _, _, cell in shown if cell.paper})
    compared = any(cell.difference is not None for _, _, cell in shown)
    notes = [
        f"paper: FedALA paper (AAAI 2023), {' and '.join(tables)}"
        + ("; in brackets our mean minus the paper's." if compared else ".")
    ]
    # What all methods of a setting have in common is the setting's, the rest is the method's.
    common: dict[str, list[str]] = {}
    for _, title, cell in shown:
        common[title] = [d for d in common.get(title, cell.differences) if d in cell.differences]
    where: dict[tuple[str, ...], dict[str, None]] = defaultdict(dict)
    for label, title, cell in shown:
        where[tuple(common[title])][title] = None
        where[tuple(d for d in cell.differences if d not in common[title])][label] = None
    return notes + [f"† protocol differs ({_some(list(w))}): {', '.join(d)}." for d, w in where.items() if d]
