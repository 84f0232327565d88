"""`table clients`: who is worse off than alone, by how much, and how the worst clients fare (methods.md 2.11)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import NothingYet
from pflbench.report import baselines, labels, paper, selection
from pflbench.report import statistics as stats
from pflbench.report.arrangement import Arranged, Row, SharedSetting
from pflbench.report.baselines import FEDAVG, FINE_TUNED, LOCAL
from pflbench.report.selection import Filters
from pflbench.report.statistics import OVER_CLIENTS, Comparison, Values
from pflbench.report.tables.accuracy import protocol
from pflbench.report.tables.grid import CellText, Column, Grid
from pflbench.report.traces import run_numbers
from pflbench.store.rounds import by_client
from pflbench.store.runs import Result, RoundRule

AGAINST = (LOCAL, FEDAVG)


@dataclass(frozen=True)
class ClientRuns:
    """A row's runs in a setting that have results by client. accuracy: in percent, by seed and client."""

    row: Row
    runs: tuple[Result, ...]
    accuracy: Mapping[tuple[int, int], float]


@dataclass(frozen=True)
class Shortfall:
    """A row's clients beside those of another row, paired by seed and client.

    below: pairs in which the row's accuracy is lower. points: their mean shortfall, None if there are none.
    """

    pairs: int
    below: int
    points: float | None
    comparison: Comparison

    @property
    def share(self) -> float:
        """In percent."""
        return 100 * self.below / self.pairs


@dataclass(frozen=True)
class ClientCell:
    """A row in a setting: means over its runs in percent.

    beside: by the method compared with, None without a common pair; the row that is compared with is not beside itself.
    """

    clients: ClientRuns
    mean: float
    worst_tenth: float
    beside: Mapping[str, Shortfall | None]


@dataclass(frozen=True)
class ClientTable:
    """cells[i, j] is row i of `found` in its setting j, where there are results by client."""

    round_rule: str
    found: Arranged
    cells: Mapping[tuple[int, int], ClientCell]
    notes: tuple[str, ...]

    def grid(self) -> Grid:
        records = tuple(self._record(*place) for place in self.cells)
        columns = tuple(column for j in range(len(self.found.settings)) for column in self._columns(j))
        document = {"round_rule": self.round_rule}
        return Grid("Clients that are hurt", tuple(row.label for row in self.found.rows), columns, self.notes, records, document)

    def _columns(self, j: int) -> Iterable[Column]:
        setting = self.found.settings[j]
        cells = [self.cells.get((i, j)) for i in range(len(self.found.rows))]
        if not any(cells):
            return
        runs = [tuple(run.id for run in cell.clients.runs) if cell else () for cell in cells]
        above = ("",) * len(setting.head)
        means = (CellText(f"{cell.mean:.2f}" if cell else "-", runs=of) for cell, of in zip(cells, runs, strict=True))
        yield Column((*setting.head, "mean"), tuple(means))
        worst = (CellText(f"{cell.worst_tenth:.2f}" if cell else "-") for cell in cells)
        yield Column((*above, "worst", "tenth"), tuple(worst), beside=True)
        for method in AGAINST:
            share, points, p = zip(*(_entries(cell, method) for cell in cells), strict=True)
            # The second method begins a group of its own: where there is no room, the table is broken before it.
            first = method == LOCAL
            yield Column((*(above if first else setting.head), f"below {labels.method_title(method)} %"), share, beside=first)
            yield Column((*above, "by", "points"), points, beside=True)
            yield Column((*above, "p"), p, beside=True)

    def _record(self, i: int, j: int) -> dict[str, Any]:
        """Accuracies and shares in percent, full precision."""
        cell, row, setting = self.cells[i, j], self.found.rows[i], self.found.settings[j]
        made: dict[str, Any] = {
            "setting": setting.title,
            "protocol": setting.protocol,
            "partition": setting.partition,
            "row": row.label,
            "method": row.method,
            "version": row.version,
            "hyperparameters": row.hyperparameters,
            "round_rule": self.round_rule,
            "clients": len({client for _, client in cell.clients.accuracy}),
            "mean": cell.mean,
            "worst_tenth": cell.worst_tenth,
        }
        for method in AGAINST:
            of = cell.beside.get(method)
            made |= {
                f"below_{method}": of and of.share,
                f"below_{method}_points": of and of.points,
                f"{method}_row": of and of.comparison.against,
                f"{method}_pairs": of.pairs if of else 0,
                f"{method}_p": of and of.comparison.p,
                f"{method}_p_holm": of and of.comparison.adjusted,
            }
        runs = cell.clients.runs
        return made | {
            "runs": tuple(r.id for r in runs),
            "seeds": tuple(r.seed for r in runs),
            "rounds": tuple(r.round for r in runs),
        }


def build(engine: Engine, filters: Filters = Filters(), *, round_rule: str = "best") -> ClientTable:
    """Each row's clients beside those of Local and of FedAvg in the same setting, under the same seed.

    Local and FedAvg are compared with also where `--method` or `--run` leaves their rows out. Raises UserError as
    `Filters.select`, and NothingYet if no run has results by client.
    """
    rule = selection.parse(round_rule)
    found, every = filters.select(engine, rule), baselines.of_any_method(engine, filters, rule)
    cells: dict[tuple[int, int], ClientCell] = {}
    without: list[int] = []
    for j, setting in enumerate(found.settings):
        tested = clients_of(engine, every, setting, rule)
        rows = {row.key: i for i, row in enumerate(found.rows) if (i, j) in found.cells}
        shown = {i: tested[name] for name, i in rows.items() if name in tested}
        without += [run.id for i in rows.values() for run in found.cells[i, j] if i not in shown or run not in shown[i].runs]
        bases = {method: base_of(tested, method) for method in AGAINST}
        beside = {method: beside_base(list(shown.values()), base) if base else {} for method, base in bases.items()}
        for i, of in shown.items():
            each = [[value for (seed, _), value in of.accuracy.items() if seed == run.seed] for run in of.runs]
            others = [method for method, base in bases.items() if base is None or base.row.key != of.row.key]
            cells[i, j] = ClientCell(
                of,
                float(np.mean([np.mean(one) for one in each])),
                float(np.mean([stats.worst_tenth(one) for one in each])),
                {method: beside[method].get(of.row.key) for method in others},
            )
    if not cells:
        raise NothingYet(
            f"None of {labels.counted(len(found.runs), 'run')} has results by client.", "`pflbench run` stores them."
        )
    notes = _notes(rule, cells, found)
    if without:
        notes.append(f"Left out, without results by client: {run_numbers(without)}.")
    notes += baselines.note(found, every, (*AGAINST, FINE_TUNED))
    return ClientTable(str(rule), found, cells, (*notes, *found.notes))


def clients_of(engine: Engine, found: Arranged, setting: SharedSetting, rule: RoundRule) -> dict[str, ClientRuns]:
    """The rows with results by client in a setting of other runs, by `Row.key`."""
    column = found.column(baselines.same_setting(found, setting))
    rounds = {run.id: run.round for _, runs in column for run in runs if run.round is not None}
    tested = by_client(engine, rounds, rule.last)
    made: dict[str, ClientRuns] = {}
    for row, runs in column:
        own = tuple(run for run in runs if tested.get(run.id))
        accuracy = {(run.seed, client): 100 * value for run in own for client, value in tested[run.id].items()}
        if own:
            made[row.key] = ClientRuns(row, own, accuracy)
    return made


def base_of(tested: Mapping[str, ClientRuns], method: str) -> ClientRuns | None:
    """The row of a method to compare with: of several the one with the default hyperparameters, else the newest version."""
    own = [of for of in tested.values() if of.row.method == method]
    usual = paper.hyperparameters(method)
    return max(own, key=lambda of: (of.row.hyperparameters == usual, of.row.version), default=None)


def beside_base(rows: Sequence[ClientRuns], base: ClientRuns) -> dict[str, Shortfall | None]:
    """The shortfalls of all rows but the base, by `Row.key`; Holm's correction is over them."""
    values: dict[str, Values] = {of.row.key: of.accuracy for of in (base, *rows)}
    compared = stats.compare(values, base.row.key, OVER_CLIENTS)
    return {name: _shortfall(values[name], base, of) for name, of in compared.items()}


def _shortfall(own: Values, base: ClientRuns, comparison: Comparison) -> Shortfall | None:
    d = stats.differences(own, base.accuracy)
    if not len(d):
        return None
    below = d[d < 0]
    named = replace(comparison, against=base.row.label)
    return Shortfall(len(d), len(below), float(-below.mean()) if len(below) else None, named)


def _entries(cell: ClientCell | None, method: str) -> tuple[CellText, CellText, CellText]:
    """Share, points and p; empty in the row that is compared with."""
    if cell is not None and method not in cell.beside:
        return CellText(""), CellText(""), CellText("")
    if cell is None or (of := cell.beside[method]) is None:
        return CellText("-"), CellText("-"), CellText("-")
    p = of.comparison.adjusted
    points = "-" if of.points is None else f"{of.points:.2f}"
    return CellText(f"{of.share:.1f}"), CellText(points), CellText("-" if p is None else stats.p_text(p))


def _notes(rule: RoundRule, cells: Mapping[tuple[int, int], ClientCell], found: Arranged) -> list[str]:
    said = [
        "Accuracy in % of each client on its own test data. mean: over the clients; worst tenth: the mean of the worst 10 % of "
        "them. Both are means over runs that differ in the seed.",
        "below Local, below FedAvg: clients whose accuracy is lower than with that method under the same seed, in % of all; by: "
        "their mean shortfall. Equal accuracies are not below. -: no run of that method with the same seed.",
        selection.sentence(rule),
        f"p: two-sided {stats.TITLES[OVER_CLIENTS]} against that method, after Holm over the rows of a setting. Of a client "
        "counts the mean over the seeds that both methods have.",
    ]
    compared = [of for cell in cells.values() for of in cell.beside.values() if of]
    said += stats.empty_tests([of.comparison for of in compared if of.comparison.p is not None], "clients")
    if any(of.pairs < len(cell.clients.accuracy) for cell in cells.values() for of in cell.beside.values() if of):
        said.append("Not all clients are paired: some were tested by one of two methods only, or under another seed.")
    named = {of.comparison.against for of in compared} - {labels.method_title(method) for method in AGAINST}
    if named:
        said.append(f"Of several rows of Local or FedAvg the one compared with is {' or '.join(sorted(named))}.")
    said += selection.short_runs(rule, [run.used for cell in cells.values() for run in cell.clients.runs])
    return said + protocol([found.settings[j] for j in sorted({j for _, j in cells})])
