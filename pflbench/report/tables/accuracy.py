"""`table accuracy`: methods x settings in the shape of the paper's Table 2, the paper's value beside ours."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sqlalchemy import Engine

from pflbench.errors import unknown
from pflbench.report import labels, selection
from pflbench.report import paper as reference
from pflbench.report import statistics as stats
from pflbench.report.arrangement import Row, SharedSetting
from pflbench.report.selection import Filters
from pflbench.report.tables import cell as cellular
from pflbench.report.tables.cell import Cell as Cell
from pflbench.report.tables.grid import CellText, Column, Grid
from pflbench.store.runs import Result, Select

Paper = Literal["auto", "always", "never"]
PAPER: tuple[Paper, ...] = ("auto", "always", "never")
LEADER = "fedala"

# Of a protocol, what a reader needs beside the table; the rest is in the specification of each run.
_PROTOCOL = {
    "model": "model",
    "partition.clients": "clients",
    "train.join_ratio": "join ratio",
    "train.rounds": "rounds",
    "train.local_epochs": "local epochs",
    "train.batch_size": "batch size",
    "train.lr": "learning rate",
    "train.optimizer": "optimizer",
    "train.momentum": "momentum",
    "train.weight_decay": "weight decay",
    "train.optimizer_state": "optimizer state",
    "train.lr_schedule": "learning rate schedule",
}


@dataclass(frozen=True)
class AccuracyTable:
    """cells[i][j] is rows[i] in settings[j]; None where there are no runs."""

    title: str
    select: str
    wanted: stats.Statistics
    settings: tuple[SharedSetting, ...]
    rows: tuple[Row, ...]
    cells: tuple[tuple[Cell | None, ...], ...]
    notes: tuple[str, ...]

    def grid(self) -> Grid:
        """A column per setting and, after it, the paper's values and the verdict where it has any."""
        settings = [
            {"title": s.title, "protocol": s.protocol, "partition": s.partition, "spec": _shared(s.spec)} for s in self.settings
        ]
        return Grid(
            title=self.title,
            labels=tuple(row.label for row in self.rows),
            columns=tuple(_columns(self)),
            notes=self.notes,
            records=tuple(_records(self)),
            runs=tuple(run for row in self.cells for cell in row if cell for run in cell.runs),
            document={"select": self.select, "settings": settings},
        )


def build(
    engine: Engine,
    filters: Filters = Filters(),
    *,
    select: Select | str = "best",
    paper: Paper = "auto",
    std: stats.Std = "population",
    ci: float | None = None,
    test: stats.Test | None = None,
    against: str | None = None,
) -> AccuracyTable:
    """Mean and std over the runs (seeds) of each method in each setting; the best are marked, ties too.

    `paper`: 'auto' shows the paper's value where the protocol is the paper's, 'always' also where it is not (marked,
    with the differences), 'never' not at all. std, ci, test, against: see `statistics.Statistics`. Raises UserError for unknown
    names and when there is nothing to show.
    """
    if paper not in PAPER:
        raise unknown("value of --paper", paper, PAPER)
    wanted = stats.Statistics(std, ci, test, against)
    rule = selection.parse(select) if isinstance(select, str) else select
    found = filters.select(engine, rule)
    cells: list[list[Cell | None]] = [[None] * len(found.settings) for _ in found.rows]
    for (i, j), runs in found.cells.items():
        cells[i][j] = _cell(runs, rule, paper, wanted)
    names, named = [row.label for row in found.rows], [row.method for row in found.rows]
    cells = cellular.compare(cellular.mark_best(cells), names, named, wanted, engine, rule)
    cells = _judged(found.rows, cells)
    everything = [cell for row in cells for cell in row if cell]
    used = min(result.used for runs in found.cells.values() for result in runs)
    notes = [
        f"Accuracy in %, pooled over the clients' test data; mean ± {wanted.std} std over runs that differ in the seed.",
        counts(everything),
        selection.sentence(rule),
        *stats.notes(wanted, [cell.n for cell in everything], [c.comparison for c in everything if c.comparison]),
    ]
    if used < rule.last:
        notes.append(f"A run with fewer than {rule.last} evaluated rounds counts with all it has (shortest: {used}).")
    notes += [*protocol(found.settings), *_paper_notes(found.rows, found.settings, cells), *found.notes]
    return AccuracyTable("Accuracy", str(rule), wanted, found.settings, found.rows, tuple(map(tuple, cells)), tuple(notes))


def _cell(runs: Sequence[Result], select: Select, paper: Paper, wanted: stats.Statistics) -> Cell:
    match = None if paper == "never" else reference.find(runs[0].spec, select)
    if match and match.differences and paper == "auto":
        match = None
    return cellular.make(runs, wanted, match.reference if match else None, match.differences if match else ())


def _judged(rows: Sequence[Row], cells: cellular.Cells) -> list[list[Cell | None]]:
    columns = []
    for column in zip(*cells, strict=True):
        leading = (c for row, c in zip(rows, column, strict=True) if row.method == LEADER and c and c.difference is not None)
        leader = next(leading, None)
        columns.append([c and replace(c, verdict=cellular.judge(c, leader)) for c in column])
    return [list(row) for row in zip(*columns, strict=True)]


def counts(cells: Sequence[Cell]) -> str:
    """How many runs the cells hold, in words."""
    numbers = {cell.n for cell in cells}
    if len(numbers) == 1:
        n = numbers.pop()
        return f"n = {n} run{'s' * (n != 1)} in every cell."
    return f"(n): number of runs, {min(numbers)} to {max(numbers)}."


def protocol(settings: Sequence[SharedSetting]) -> list[str]:
    """What all settings share in one line; what they do not, by value, unless the heads say it."""
    flat = [labels.flat(s.spec) for s in settings]
    shared, notes = [], []
    for key, name in _PROTOCOL.items():
        if not all(key in spec for spec in flat):  # what goes without saying: the heads name what does not
            continue
        where: dict[str, list[str]] = defaultdict(list)
        for setting, spec in zip(settings, flat, strict=True):
            value = spec[key]
            text = labels.words(key, value) if key == "model" else str(value) if isinstance(value, str) else f"{value:g}"
            where[text].append(setting.title)
        if len(where) == 1:
            shared.append(f"{name} {next(iter(where))}")
        elif not all(labels.words(key, spec[key]) in s.head for s, spec in zip(settings, flat, strict=True)):
            listed = "; ".join(f"{value} ({labels.some(titles)})" for value, titles in where.items())
            notes.append(f"{name.capitalize()}: {listed}.")
    return ([f"In all settings: {', '.join(shared)}."] if shared else []) + notes


def _paper_notes(rows: Sequence[Row], settings: Sequence[SharedSetting], cells: Sequence[Sequence[Cell | None]]) -> list[str]:
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
    notes += cellular.verdict_notes(cell.verdict for _, _, cell in shown if cell.difference is not None)
    return notes + cellular.difference_notes((row, title, cell.differences) for row, title, cell in shown)


def _shared(spec: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in spec.items() if key not in ("method", "seed")}


def _records(table: AccuracyTable) -> list[dict[str, object]]:
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
            "paper_mean": cell.paper.mean if cell.paper else None,
            "paper_std": cell.paper.std if cell.paper else None,
            "paper_table": cell.paper.table if cell.paper else None,
            "paper_differences": cell.differences,
            "std_kind": table.wanted.std,
            **cellular.record(cell),
        }
        for row, cells in zip(table.rows, table.cells, strict=True)
        for setting, cell in zip(table.settings, cells, strict=True)
        if cell
    ]


def _columns(table: AccuracyTable) -> list[Column]:
    numbers = {cell.n for row in table.cells for cell in row if cell}
    columns = []
    for setting, cells in zip(table.settings, zip(*table.cells, strict=True), strict=True):
        columns.append(Column(setting.head, tuple(cellular.ours(cell, len(numbers) > 1) for cell in cells)))
        if any(cell and cell.paper for cell in cells):
            columns.append(Column(("paper",), tuple(cellular.papers(cell and cell.paper, cell) for cell in cells), beside=True))
            columns.append(Column(("verdict",), tuple(CellText((cell and cell.verdict) or "") for cell in cells), beside=True))
        if table.wanted.test is not None:
            columns += cellular.columns_of_test(cells, table.wanted.test)
    return columns
