"""`table overhead`: time, communication and memory of each method, in the shape of the paper's Table 3."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report import paper as papers
from pflbench.report.arrangement import Arranged, Row, SharedSetting
from pflbench.report.needed import TABLES
from pflbench.report.selection import BEST, Filters
from pflbench.report.tables.accuracy import Paper
from pflbench.report.tables.cell import difference_notes
from pflbench.report.tables.grid import CellText, Column, Grid
from pflbench.store.rounds import Cost, costs

BASELINE = "fedavg"
TOLERANCE = 0.5  # points


# Parameters that a client sends and receives in a round (methods.md 1.18): of Table 3, and of the methods that it lacks. Sigma:
# those of a model; alpha_f: the share of its feature extractor; M: the models that a client receives.
_OTHERS = {"local": "0", "heurfedamp": "2 Σ", "feddeper": "2 Σ", "elastic": "3 Σ"}


@cache
def table_3() -> dict[str, dict[str, float | None]]:
    """What Table 3 has of a method, by the names in the records; times in seconds.

    initial: ALA's initial stage. multiple: communication over Sigma, None for FedRep's.
    """
    iterations = papers.seconds_per_iteration()
    total, initial, multiple = map(
        papers.by_method,
        ("total_time_min", "total_time_min_initial_stage", "comm_params_per_iter_in_units_of_Sigma"),
    )
    return {
        method: {
            "paper_rounds": (60 * total[method] - 60 * initial.get(method, 0.0)) / seconds,
            "paper_seconds_total": 60 * total[method],
            "paper_seconds_initial": 60 * initial[method] if method in initial else None,
            "paper_seconds_round": seconds,
            "paper_relative_to_fedavg": seconds / iterations[BASELINE],
            "paper_multiple": multiple.get(method),
        }
        for method, seconds in iterations.items()
    }


@cache
def _formulas() -> dict[str, str]:
    found = {value.method: value.setting["formula"] for value in papers.printed() if "formula" in value.setting}
    plain = {m: f.replace("alpha_f", "α_f").replace("Sigma", "Σ").replace("*", " ").replace("+", " + ") for m, f in found.items()}
    return {**plain, **_OTHERS}


def formula(method: str) -> str:
    """'2 Σ'; plugging in ALA changes nothing. Nothing for a plug-in's method."""
    return _formulas().get(method.partition("+ala")[0], "")


def _differences(spec: dict[str, Any]) -> tuple[str, ...] | None:
    """What sets a run's protocol apart from the table's; None where dataset, model or partition is another."""
    (place,) = TABLES["overhead"].places
    if not papers.is_at(spec, place):
        return None
    return papers.differences(spec, BEST, place)


@dataclass(frozen=True)
class CostCell:
    """One method in one setting.

    values: means over its runs, the multiple of FedAvg's round in the same setting, and what Table 3 has of the method where its
    setting is the table's ("paper_..."); None where there is nothing. differences: what of the protocol is not the paper's.
    """

    values: dict[str, Any]
    runs: tuple[int, ...]
    differences: tuple[str, ...] = ()


@dataclass(frozen=True)
class OverheadTable:
    """cells[i][j] is rows[i] in settings[j]; None where there are no runs."""

    settings: tuple[SharedSetting, ...]
    rows: tuple[Row, ...]
    cells: tuple[tuple[CostCell | None, ...], ...]
    notes: tuple[str, ...]

    def grid(self) -> Grid:
        columns = [
            Column(
                (*(setting.head if k == 0 else ("",) * len(setting.head)), *head),
                tuple(CellText(_text(c, name, form, unit), runs=c.runs if c and k == 0 else ()) for c in cells),
                beside=k > 0,
            )
            for setting, cells in zip(self.settings, zip(*self.cells, strict=True), strict=True)
            for k, (head, name, form, unit) in enumerate(_columns(cells))
        ]
        records = tuple(
            {
                "setting": setting.title,
                "protocol": setting.protocol,
                "row": row.label,
                "method": row.method,
                "hyperparameters": row.hyperparameters,
                **cell.values,
                "paper_differences": cell.differences,
                "runs": cell.runs,
            }
            for row, cells in zip(self.rows, self.cells, strict=True)
            for setting, cell in zip(self.settings, cells, strict=True)
            if cell
        )
        runs = tuple(run for row in self.cells for cell in row if cell for run in cell.runs)
        return Grid("Overhead", tuple(row.label for row in self.rows), tuple(columns), self.notes, records, runs)


def build(
    engine: Engine,
    filters: Filters = Filters(),
    *,
    tolerance: float = TOLERANCE,
    paper: Paper = "auto",
) -> OverheadTable:
    """Costs of each method in each setting, means over its runs, beside FedAvg's.

    paper: as of `accuracy.build`; other datasets, models and partitions never have a value. tolerance: a run has converged at the
    first round within so many points of its best accuracy. Raises UserError for a tolerance below 0 and where there is nothing to
    show.
    """
    if not (tolerance >= 0 and math.isfinite(tolerance)):
        raise UserError(f"--tolerance {tolerance:g} is not possible.", "It is in points of accuracy, 0 or more.")
    found = filters.select(engine)
    spent = costs(engine, [run.id for runs in found.cells.values() for run in runs], tolerance / 100)
    if not spent:
        raise UserError("None of these runs has a trained and evaluated round.", "`pflbench runs list` shows what there is.")
    known = {place: [spent[run.id] for run in runs if run.id in spent] for place, runs in found.cells.items()}
    means = {place: _mean(group) for place, group in known.items() if group}
    cells = [[_cell(means, found, i, j, paper) for j in range(len(found.settings))] for i in range(len(found.rows))]
    notes = (
        "Means over runs that differ in the seed. s/round: median over all rounds of reception and update, without evaluation; "
        "x FedAvg: as a multiple of FedAvg's in the same setting.",
        f"Convergence: the first round within {tolerance:g} points of the run's best accuracy; total s: training time up to it, "
        "of which ALA's initial stage.",
        "Communication of one participant in one round, down and up together: parameters, and as a multiple of the model's size "
        "Σ; α_f: the share of the feature extractor, M: the models that a client receives.",
        *_paper_notes(found, cells),
        "Times of different machines do not compare.",
        "`pflbench runs show` names the machine of a run.",
        *found.notes,
    )
    return OverheadTable(found.settings, found.rows, tuple(map(tuple, cells)), notes)


def _paper_notes(found: Arranged, cells: Sequence[Sequence[CostCell | None]]) -> list[str]:
    shown = [
        (found.rows[i].label, found.settings[j].title, cell.differences)
        for i, line in enumerate(cells)
        for j, cell in enumerate(line)
        if cell and cell.values["paper_rounds"] is not None
    ]
    if not shown:
        return []
    return [
        "paper: FedALA paper (AAAI 2023), Table 3, in seconds, on their GPUs: compare the multiples. Its rounds are those that "
        "its total time, without the initial stage, and its time per iteration imply; M = 20.",
        *difference_notes(shown),
    ]


def _mean(group: Sequence[Cost]) -> dict[str, float | None]:
    rows = [asdict(cost) for cost in group]
    return {
        name: None if any(row[name] is None for row in rows) else float(np.mean([row[name] for row in rows])) for name in rows[0]
    }


def _cell(
    means: dict[tuple[int, int], dict[str, float | None]], found: Arranged, i: int, j: int, shown: Paper
) -> CostCell | None:
    if (i, j) not in means:
        return None
    method, runs, cost = found.rows[i].method, found.cells[i, j], means[i, j]
    baselines = (means[k, j]["seconds_round"] for k, row in enumerate(found.rows) if row.method == BASELINE and (k, j) in means)
    own, baseline = cost["seconds_round"], next(baselines, None)
    differences = None if shown == "never" else _differences(runs[0].spec)
    printed = None if differences is None or (differences and shown == "auto") else table_3().get(method)
    values: dict[str, Any] = {
        **cost,
        "relative_to_fedavg": own / baseline if own is not None and baseline else None,
        "formula": formula(method),
        **(printed or dict.fromkeys(table_3()[BASELINE])),
    }
    return CostCell(values, tuple(run.id for run in runs), (differences or ()) if printed else ())


def _columns(cells: Sequence[CostCell | None]) -> list[tuple[tuple[str, ...], str, str, float]]:
    """With the paper's columns beside ours where one of these cells has its values."""
    compared = any(cell and cell.values["paper_rounds"] is not None for cell in cells)
    return [column for column in _COLUMNS if compared or not column[1].startswith("paper_")]


def _text(cell: CostCell | None, name: str, form: str, unit: float) -> str:
    if cell is None:
        return "-"
    value, is_paper = cell.values[name], name.startswith("paper_")
    if value is None:
        return "" if is_paper else "-"
    text = value if isinstance(value, str) else format(value * unit, form)
    return text + " †" * (is_paper and bool(cell.differences))


# Head, name of the value, its format and unit.
_COLUMNS: tuple[tuple[tuple[str, ...], str, str, float], ...] = (
    (("best %",), "best", ".2f", 100),
    (("rounds to", "convergence"), "converged", ".0f", 1),
    (("paper", "rounds"), "paper_rounds", ".0f", 1),
    (("total s",), "seconds_total", ".1f", 1),
    (("of which", "initial"), "seconds_initial", ".1f", 1),
    (("paper", "total s"), "paper_seconds_total", ",.0f", 1),
    (("paper", "initial"), "paper_seconds_initial", ",.0f", 1),
    (("s/round",), "seconds_round", ".3g", 1),
    (("paper", "s/round"), "paper_seconds_round", ",.1f", 1),
    (("x FedAvg",), "relative_to_fedavg", ".2f", 1),
    (("paper", "x FedAvg"), "paper_relative_to_fedavg", ".2f", 1),
    (("communi-", "cation"), "formula", "", 1),
    (("x Σ",), "multiple", ".4g", 1),
    (("paper", "x Σ"), "paper_multiple", ".4g", 1),
    (("para-", "meters"), "parameters", ",.0f", 1),
    (("MB",), "bytes", ".4g", 1e-6),
    (("peak", "memory MB"), "peak_memory", ".0f", 1e-6),
)
