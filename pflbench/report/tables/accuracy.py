"""Accuracies of methods by setting: `table accuracy` of whatever was run, and the papers' own tables, run or not.

Both have the paper's value beside ours, the difference, and a verdict. `table accuracy` has a column for each setting that has
runs; a paper's table has the rows and places of the paper (see `places`). Settings are never averaged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report import baselines, labels, paper, selection
from pflbench.report import statistics as stats
from pflbench.report.arrangement import TEST_LABELS, Arranged, SharedSetting
from pflbench.report.needed import LEADER, MethodLine, TableNeeds
from pflbench.report.selection import Filters
from pflbench.report.tables import cell as cellular
from pflbench.report.tables import places
from pflbench.report.tables.cell import Cell
from pflbench.report.tables.grid import CellText, Column, Grid
from pflbench.report.tables.machines import Machines
from pflbench.report.tables.places import AccuracyColumn
from pflbench.report.tables.tuned import tuning_notes
from pflbench.spec import LATER
from pflbench.store.measures import COLUMNS, TITLES
from pflbench.store.runs import RoundRule

Paper = Literal["auto", "always", "never"]
_UNPRINTED = "No paper's values stand beside these: what is at hand of FedAMP's paper, a review, prints none, and no protocol."

# What the notes say of a protocol; the rest is in the specification of each run.
_TRAIN = (
    "join_ratio",
    "rounds",
    "local_epochs",
    "batch_size",
    "lr",
    "optimizer",
    "momentum",
    "weight_decay",
    "optimizer_state",
    *LATER,
)
_PROTOCOL = ("model", "partition.clients", *(f"train.{name}" for name in (*_TRAIN, "lr_schedule")))

# Further columns of a paper's table, by their names in the records: head, format, and what stands where there is none.
_EXTRA = {
    "improvement": ("improvement", "+.2f", "-"),
    "paper_improvement": ("paper", "+.2f", ""),
    "weights": ("weights", ",d", ""),
    "paper_weights": ("paper", ",d", ""),
    "range": ("range", "", ""),
}


@dataclass(frozen=True)
class AccuracyTable:
    """rows: of a paper's table its lines. declared: that table; None where it shows whatever was run."""

    round_rule: str
    paper: Paper
    wanted: stats.Statistics
    rows: tuple[MethodLine, ...]
    columns: tuple[AccuracyColumn, ...]
    notes: tuple[str, ...]
    declared: TableNeeds | None = None
    metric: str | None = None

    def grid(self) -> Grid:
        """A column for each setting and, after it, the paper's values and the verdict where it has any."""
        rows = zip(*(column.cells for column in self.columns), strict=True)
        marks = [f" {TEST_LABELS}" * any(cell and cell.test_labels for cell in row) for row in rows]
        names = [row.label.removesuffix(mark) + mark for row, mark in zip(self.rows, marks, strict=True)]
        floor = [baselines.MAJORITY] * any(column.majority is not None for column in self.columns)
        document: dict[str, Any] = {"round_rule": self.round_rule, **({"metric": self.metric} if self.metric else {})}
        if self.declared is not None:
            document |= {"table": self.declared.name, "source": self.declared.source}
        else:
            document["settings"] = [
                {"title": c.title, "protocol": c.setting.protocol, "partition": c.setting.partition, "spec": c.setting.shared}
                for c in self.columns
                if c.setting
            ]
        return Grid(
            title=self.declared.title if self.declared else TITLES[self.metric] if self.metric else "Accuracy",
            labels=(*names, *floor),
            columns=tuple(column for one in self.columns for column in self._columns(one, floor=bool(floor))),
            notes=self.notes,
            records=tuple(self._records()),
            document=document,
        )

    def _columns(self, of: AccuracyColumn, *, floor: bool) -> list[Column]:
        """floor: with a last row for the majority class."""
        several = len({cell.n for column in self.columns for cell in column.cells if cell}) > 1
        # Neither cell nor verdict at a place of the paper: a range beyond the model's blocks.
        ours = (
            cellular.ours(cell, several) if of.place is None or cell or verdict else CellText("")
            for cell, verdict in zip(of.cells, of.verdicts, strict=True)
        )
        columns = [Column(of.head, tuple(ours))]
        if self.round_rule.startswith("val") and self.metric is None:
            texts = ("" if cell is None or cell.optimism is None else f"{cell.optimism:+.2f}" for cell in of.cells)
            columns.append(_beside("optimism", map(CellText, texts)))
        if any(of.printed):
            papers = (
                cellular.papers(None if self.paper == "auto" and cell and cell.differences else value, cell)
                for value, cell in zip(of.printed, of.cells, strict=True)
            )
            columns.append(_beside("paper", papers))
            columns.append(_beside("verdict", (CellText(verdict or "") for verdict in of.verdicts)))
        if self.wanted.test is not None:
            columns += cellular.columns_of_test(of.cells, self.wanted.test)
        for name, values in of.extra.items():
            head, form, missing = _EXTRA[name]
            if head != "paper" or self.paper != "never":
                texts = (" ".join(v) if isinstance(v, tuple) else missing if v is None else format(v, form) for v in values)
                columns.append(_beside(head, map(CellText, texts)))
        if floor:
            last = ["" if of.majority is None else f"{of.majority:.2f}", *[""] * (len(columns) - 1)]
            columns = [replace(c, entries=(*c.entries, CellText(text))) for c, text in zip(columns, last, strict=True)]
        return columns

    def _records(self) -> Iterator[dict[str, Any]]:
        """One for each cell, of `table accuracy` for those with runs; accuracies in percent."""
        for i, row in enumerate(self.rows):
            for column in self.columns:
                cell, printed, setting = column.cells[i], column.printed[i], column.setting
                if cell is None and self.declared is None:
                    continue
                method = cell.method if cell else {}
                yield {
                    "setting": column.title,
                    "protocol": setting and setting.protocol,
                    "partition": setting and setting.partition,
                    "row": row.label,
                    "method": row.method,
                    "version": method.get("version"),
                    "hyperparameters": method.get("hyperparameters", dict(row.varied)),
                    "round_rule": self.round_rule,
                    "paper_mean": printed and printed.mean,
                    "paper_std": printed and printed.std,
                    "paper_table": printed and printed.table,
                    "paper_differences": cell.differences if cell else (),
                    "std_kind": self.wanted.std,
                    "majority_class": column.majority,
                    **cellular.record(cell, column.verdicts[i]),
                    **{name: values[i] for name, values in column.extra.items()},
                }


def build(
    engine: Engine,
    filters: Filters = Filters(),
    *,
    declared: TableNeeds | None = None,
    round_rule: str = "best",
    at: str | None = None,
    paper: Paper | None = None,
    std: stats.Std = "population",
    ci: float | None = None,
    test: stats.Test | None = None,
    against: str | None = None,
    metric: str | None = None,
) -> AccuracyTable:
    """Mean and std over the runs (seeds) of each method in each setting; the best are marked, ties too.

    declared: the paper's table that is wanted, of whose rows and columns are shown those that the filters name. paper: 'auto'
    shows the paper's value where the protocol is the paper's, 'always' also where it is not (marked, with the differences),
    'never' not at all; by default always in a paper's table, else auto. std, ci, test, against: see `statistics.Statistics`.
    at: as of `budgets.parse`. metric: one of `measures.TITLES` instead of accuracy, beside which no paper's values stand.
    Raises UserError for unknown names and when there is nothing to show.
    """
    rule = selection.parse(round_rule, at)
    if metric and (paper == "always" or test == stats.OVER_CLIENTS):
        raise UserError(
            "--metric excludes --paper always and --test wilcoxon-clients, which are about accuracy.", "Leave it out."
        )
    if declared is None:
        paper, wanted = "never" if metric else paper or "auto", stats.Statistics(std, ci, test, against)
        found = filters.select(engine, rule) if metric is None else selection.measured(engine, filters, metric, rule)
        rows = tuple(MethodLine(row.method, title=row.label) for row in found.rows)
        columns, left = [_run(found, j, rule, paper, wanted) for j in range(len(found.settings))], list(found.notes)
    elif metric is not None:
        raise UserError("The papers' tables show accuracy alone.", f"pflbench table accuracy --metric {metric}")
    else:
        declared = places.filtered(declared, filters)
        wanted, rows = declared.wanted(std, ci, test, against), declared.lines
        paper = (paper or "always") if declared.prints_values else "never"
        shown = replace(declared, prints_values=paper != "never")
        columns, left = places.columns(engine, filters, shown, rule, wanted)
    columns = [replace(column, cells=cellular.mark_best(column.cells)) for column in columns]
    columns = [replace(c, majority=baselines.majority(engine, c.setting, metric) if c.setting else None) for c in columns]
    if wanted.test is not None:
        names = {row.label: row.method for row in rows}
        base = None if wanted.against is None else cellular.row_of(wanted.against, names)
        columns = [
            replace(column, cells=cellular.compare(column.cells, list(names), base, wanted.test, engine, rule))
            for column in columns
        ]
    if declared is None:
        left += baselines.note(found, baselines.of_any_method(engine, filters, rule))
    columns, machines = _with_machines(columns, rows) if rule.at and rule.at.measure == "seconds" else (columns, [])
    notes = _notes(rule, wanted, rows, columns, declared, metric) + machines
    behind = {row.label: [run for c in columns if (one := c.cells[i]) for run in one.runs] for i, row in enumerate(rows)}
    notes += tuning_notes(engine, behind)
    return AccuracyTable(str(rule), paper, wanted, rows, tuple(columns), (*notes, *left), declared, metric)


def _run(found: Arranged, j: int, rule: RoundRule, shown: Paper, wanted: stats.Statistics) -> AccuracyColumn:
    """A setting that was run, the paper's value for each of its cells."""
    cells: list[Cell | None] = [None] * len(found.rows)
    for i in range(len(cells)):
        if runs := found.cells.get((i, j)):
            match = None if shown == "never" else paper.find(runs[0].spec, rule)
            value, differences = match or (None, ())
            if differences and shown == "auto":
                value, differences = None, ()
            cells[i] = cellular.make(runs, wanted, value, differences)
    leading = (cell for cell in cells if cell and cell.method["name"] == LEADER and cell.difference is not None)
    leader = next(leading, None)
    return AccuracyColumn(
        found.settings[j].head,
        found.settings[j],
        tuple(cells),
        tuple(cell.paper if cell else None for cell in cells),
        tuple(cellular.judge(cell, leader) if cell else None for cell in cells),
    )


def _with_machines(columns: Sequence[AccuracyColumn], rows: Sequence[MethodLine]) -> tuple[list[AccuracyColumn], list[str]]:
    """The columns with marks at cells with runs of another machine than most of the column, and notes."""
    cells = {(i, j): cell for j, column in enumerate(columns) for i, cell in enumerate(column.cells) if cell}
    machines = Machines.of({place: cell.made for place, cell in cells.items()})
    marked = [
        replace(
            column,
            cells=tuple(c and replace(c, elsewhere=machines.elsewhere.get((i, j), ())) for i, c in enumerate(column.cells)),
        )
        for j, column in enumerate(columns)
    ]
    return marked, machines.notes([row.label for row in rows])


def _notes(
    rule: RoundRule,
    wanted: stats.Statistics,
    rows: Sequence[MethodLine],
    columns: Sequence[AccuracyColumn],
    declared: TableNeeds | None,
    metric: str | None,
) -> list[str]:
    cells = [cell for column in columns for cell in column.cells if cell]
    n = {cell.n for cell in cells}
    central = declared is not None and declared.places[0].central
    tested = "of the global model on a central test set" if central else "pooled over the clients' test data"
    notes = [
        f"{TITLES[metric] if metric else 'Accuracy'} in %, {tested}; mean ± {wanted.std} std over runs that differ in the seed.",
        f"n = {labels.counted(max(n), 'run')} in every cell." if len(n) == 1 else f"(n): number of runs, {min(n)} to {max(n)}.",
        selection.sentence(rule),
        *(
            ["optimism: points by which a run's best round, chosen on the test data, exceeds this."]
            * (rule.rule == "val" and metric is None)
        ),
        *([baselines.MAJORITY_SAID] * any(column.majority is not None for column in columns)),
        *(["The rule chooses among the rounds in which it was computed."] * (metric in COLUMNS)),
        *stats.notes(wanted, [cell.n for cell in cells], [c.comparison for c in cells if c.comparison]),
    ]
    notes += selection.short_runs(rule, [cell.used for cell in cells])
    if declared is not None and not declared.prints_values:
        notes.append(_UNPRINTED)
    if declared is not None and declared.remark:
        notes.append(declared.remark)
    if declared is None or not declared.prints_values:
        notes += protocol([column.setting for column in columns if column.setting])
    return notes + _paper_notes(rows, columns, declared)


def protocol(settings: Sequence[SharedSetting]) -> list[str]:
    """What all settings share in one line; what they do not, by value, unless the heads say it."""
    flat = [labels.flat(s.spec) for s in settings]
    shared, notes = [], []
    for key in _PROTOCOL:
        name = key.rpartition(".")[2].replace("_", " ").replace("lr", "learning rate")
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


def _paper_notes(rows: Sequence[MethodLine], columns: Sequence[AccuracyColumn], declared: TableNeeds | None) -> list[str]:
    """Where the values come from, the rule of the verdicts, and what sets protocols apart."""
    if not any(value for column in columns for value in column.printed):
        return []
    shown = [
        (row.label, column.title, cell)
        for column in columns
        for row, cell in zip(rows, column.cells, strict=True)
        if cell and (declared is not None or cell.paper)
    ]
    source = declared.source if declared is not None else "FedALA paper (AAAI 2023)"
    notes = [f"paper: {source}; in brackets our mean minus the paper's."]
    verdicts = {verdict for column in columns for verdict in column.verdicts}
    notes += cellular.verdict_notes(verdicts, declared is None or declared.ranked)
    if declared is not None and declared.extra == "weights":
        notes.append("weights: parameters in ALA's range, those that it learns. The paper counts models with 10 classes.")
    return notes + cellular.difference_notes((row, title, cell.differences) for row, title, cell in shown)


def _beside(name: str, entries: Iterable[CellText]) -> Column:
    return Column((name,), tuple(entries), beside=True)
