"""`table overhead`: time, communication and memory of each method, in the shape of the paper's Table 3."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.papers import values
from pflbench.report import paper as papers
from pflbench.report.arrangement import Arranged, Row, SharedSetting
from pflbench.report.declared import TABLES
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


@dataclass(frozen=True)
class PrintedCost:
    """What Table 3 has of a method; times in seconds.

    initial: ALA's initial stage. multiple: communication over Sigma, None for FedRep's.
    """

    total: float
    initial: float | None
    iteration: float
    multiple: float | None

    @property
    def rounds(self) -> float:
        """Iterations until convergence, which total and iteration imply."""
        return (self.total - (self.initial or 0.0)) / self.iteration


@cache
def table_3() -> dict[str, PrintedCost]:
    """By method."""
    found: dict[str, dict[str, float]] = {}
    for value in values():
        if value.table == "table3" and value.mean is not None:
            found.setdefault(papers.name(value.method), {})[value.metric] = value.mean
    return {
        method: PrintedCost(
            60 * own["total_time_min"],
            60 * own["total_time_min_initial_stage"] if "total_time_min_initial_stage" in own else None,
            60 * own["time_per_iter_min"],
            own.get("comm_params_per_iter_in_units_of_Sigma"),
        )
        for method, own in found.items()
    }


@cache
def _formulas() -> dict[str, str]:
    said = {papers.name(v.method): v.setting["formula"] for v in values() if v.table == "table3" and "formula" in v.setting}
    plain = {m: f.replace("alpha_f", "α_f").replace("Sigma", "Σ").replace("*", " ").replace("+", " + ") for m, f in said.items()}
    return {**plain, **_OTHERS}


def formula(method: str) -> str:
    """'2 Σ'; plugging in ALA changes nothing. Nothing for a plug-in's method."""
    return _formulas().get(method.partition("+ala")[0], "")


def _differences(spec: dict[str, Any]) -> tuple[str, ...] | None:
    """What sets a run's protocol apart from the table's; None where dataset, model or partition is another."""
    (place,) = TABLES["overhead"].needs.places
    if not papers.is_at(spec, place):
        return None
    return papers.differences(spec, BEST, place)


@dataclass(frozen=True)
class CostCell:
    """One method in one setting: means over its runs. `relative`: to FedAvg in the same setting.

    paper: what Table 3 has of the method, where its setting is the table's; differences: what of the protocol is not.
    """

    cost: dict[str, float | None]
    runs: tuple[int, ...]
    relative: float | None
    formula: str
    paper: PrintedCost | None = None
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
                tuple(CellText(_text(c, show), runs=c.runs if c and k == 0 else ()) for c in cells),
                beside=k > 0,
            )
            for setting, cells in zip(self.settings, zip(*self.cells, strict=True), strict=True)
            for k, (head, show) in enumerate(_columns(cells))
        ]
        records = tuple(
            {
                "setting": setting.title,
                "protocol": setting.protocol,
                "row": row.label,
                "method": row.method,
                "hyperparameters": row.hyperparameters,
                **cell.cost,
                "relative_to_fedavg": cell.relative,
                "formula": cell.formula,
                "paper_rounds": cell.paper and cell.paper.rounds,
                "paper_seconds_total": cell.paper and cell.paper.total,
                "paper_seconds_initial": cell.paper and cell.paper.initial,
                "paper_seconds_round": cell.paper and cell.paper.iteration,
                "paper_relative_to_fedavg": _relative(cell),
                "paper_multiple": cell.paper and cell.paper.multiple,
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
    means = {
        place: (_mean([spent[run.id] for run in runs if run.id in spent]), tuple(run.id for run in runs))
        for place, runs in found.cells.items()
        if any(run.id in spent for run in runs)
    }
    places = range(len(found.settings))
    cells = [[_with_paper(_cell(means, found, i, j), found, i, j, paper) for j in places] for i in range(len(found.rows))]
    notes = (
        "Means over runs that differ in the seed. s/round: median over all rounds of reception and update, without evaluation; "
        "x FedAvg: as a multiple of FedAvg's in the same setting.",
        f"Convergence: the first round within {tolerance:g} points of the run's best accuracy; total s: training time up to it, "
        "of which ALA's initial stage.",
        "Communication of one participant in one round, down and up together: parameters, and as a multiple of the model's size "
        "Σ; α_f: the share of the feature extractor, M: the models that a client receives.",
        *_paper_notes(found, cells),
        *_devices(found.settings),
        *found.notes,
    )
    return OverheadTable(found.settings, found.rows, tuple(map(tuple, cells)), notes)


def _devices(settings: Sequence[SharedSetting]) -> list[str]:
    said = ["Times of different machines do not compare.", "`pflbench runs show` names the machine of a run."]
    return said if settings else []


def _paper_notes(found: Arranged, cells: Sequence[Sequence[CostCell | None]]) -> list[str]:
    shown = [
        (row.label, setting.title, cell.differences)
        for row, line in zip(found.rows, cells, strict=True)
        for setting, cell in zip(found.settings, line, strict=True)
        if cell and cell.paper
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


def _cell(means: dict[tuple[int, int], Any], found: Arranged, i: int, j: int) -> CostCell | None:
    if (i, j) not in means:
        return None
    cost, runs = means[i, j]
    baseline = next((means[k, j][0] for k, row in enumerate(found.rows) if row.method == BASELINE and (k, j) in means), None)
    relative = cost["seconds_round"] / baseline["seconds_round"] if baseline and baseline["seconds_round"] else None
    return CostCell(cost, runs, relative, formula(found.rows[i].method))


def _with_paper(cell: CostCell | None, found: Arranged, i: int, j: int, shown: Paper) -> CostCell | None:
    own = table_3().get(found.rows[i].method)
    if cell is None or own is None or shown == "never":
        return cell
    differences = _differences(found.cells[i, j][0].spec)
    if differences is None or (differences and shown == "auto"):
        return cell
    return replace(cell, paper=own, differences=differences)


def _relative(cell: CostCell) -> float | None:
    return cell.paper.iteration / table_3()[BASELINE].iteration if cell.paper else None


def _columns(cells: Sequence[CostCell | None]) -> list[tuple[tuple[str, ...], Any]]:
    """With the paper's columns beside ours where one of these cells has its values."""
    compared = any(cell and cell.paper for cell in cells)
    return [(head, show) for head, show, is_paper in _COLUMNS if compared or not is_paper]


def _text(cell: CostCell | None, show: Any) -> str:
    return "-" if cell is None else show(cell)


def _number(name: str, form: str, scale: float = 1.0) -> Any:
    def show(cell: CostCell) -> str:
        value = cell.cost[name]
        return "-" if value is None else format(value * scale, form)

    return show


def _paper(of: Any, form: str) -> Any:
    def show(cell: CostCell) -> str:
        value = of(cell) if cell.paper else None
        return "" if value is None else format(value, form) + " †" * bool(cell.differences)

    return show


# Head, text of a cell, whether it is the paper's.
_COLUMNS: tuple[tuple[tuple[str, ...], Any, bool], ...] = (
    (("best %",), _number("best", ".2f", 100), False),
    (("rounds to", "convergence"), _number("converged", ".0f"), False),
    (("paper", "rounds"), _paper(lambda cell: cell.paper.rounds, ".0f"), True),
    (("total s",), _number("seconds_total", ".1f"), False),
    (("of which", "initial"), _number("seconds_initial", ".1f"), False),
    (("paper", "total s"), _paper(lambda cell: cell.paper.total, ",.0f"), True),
    (("paper", "initial"), _paper(lambda cell: cell.paper.initial, ",.0f"), True),
    (("s/round",), _number("seconds_round", ".3g"), False),
    (("paper", "s/round"), _paper(lambda cell: cell.paper.iteration, ",.1f"), True),
    (("x FedAvg",), lambda cell: "-" if cell.relative is None else f"{cell.relative:.2f}", False),
    (("paper", "x FedAvg"), _paper(_relative, ".2f"), True),
    (("communi-", "cation"), lambda cell: cell.formula, False),
    (("x Σ",), _number("multiple", ".4g"), False),
    (("paper", "x Σ"), _paper(lambda cell: cell.paper.multiple, ".4g"), True),
    (("para-", "meters"), _number("parameters", ",.0f"), False),
    (("MB",), _number("bytes", ".4g", 1e-6), False),
    (("peak", "memory MB"), _number("peak_memory", ".0f", 1e-6), False),
)
