"""`table overhead`: time, communication and memory of each method, in the shape of the paper's Table 3."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report import paper as reference
from pflbench.report.collect import Row, Setting, collect
from pflbench.report.grid import Column, Entry, Grid
from pflbench.store.costs import Cost, costs
from pflbench.store.read import Select

BASELINE = "fedavg"
TOLERANCE = 0.5  # points


@dataclass(frozen=True)
class Cell:
    """One method in one setting: means over its runs. `relative`: to FedAvg in the same setting; `paper`: that in Table 3."""

    cost: dict[str, float | None]
    runs: tuple[int, ...]
    relative: float | None
    paper: float | None


@dataclass(frozen=True)
class Table:
    """cells[i][j] is rows[i] in settings[j]; None where there are no runs."""

    settings: tuple[Setting, ...]
    rows: tuple[Row, ...]
    cells: tuple[tuple[Cell | None, ...], ...]
    notes: tuple[str, ...]

    def grid(self) -> Grid:
        columns = [
            Column(
                (*(setting.head if k == 0 else ("",) * len(setting.head)), *head),
                tuple(Entry(_text(c, show), runs=c.runs if c and k == 0 else ()) for c in cells),
            )
            for setting, cells in zip(self.settings, zip(*self.cells, strict=True), strict=True)
            for k, (head, show) in enumerate(_COLUMNS)
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
                "paper_relative_to_fedavg": cell.paper,
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
    *,
    methods: Iterable[str] = (),
    datasets: Iterable[str] = (),
    partitions: Iterable[str] = (),
    status: Collection[str] = ("finished",),
    tolerance: float = TOLERANCE,
) -> Table:
    """Costs of each method in each setting, means over its runs, beside FedAvg's.

    tolerance: a run has converged at the first round within so many points of its best accuracy. Raises UserError for a tolerance
    below 0 and where there is nothing to show.
    """
    if not (tolerance >= 0 and math.isfinite(tolerance)):
        raise UserError(f"--tolerance {tolerance:g} is not possible.", "It is in points of accuracy, 0 or more.")
    found = collect(engine, Select("best"), methods=methods, datasets=datasets, partitions=partitions, status=status)
    spent = costs(engine, [run.id for runs in found.cells.values() for run in runs], tolerance / 100)
    if not spent:
        raise UserError("None of these runs has a trained and evaluated round.", "`pflbench runs list` shows what there is.")
    means = {
        place: (_mean([spent[run.id] for run in runs if run.id in spent]), tuple(run.id for run in runs))
        for place, runs in found.cells.items()
        if any(run.id in spent for run in runs)
    }
    cells = [[_cell(means, found.rows, i, j) for j in range(len(found.settings))] for i in range(len(found.rows))]
    notes = (
        "Means over runs that differ in the seed. s/round: median over rounds of reception and update, without evaluation; "
        "x FedAvg: as a multiple of FedAvg's in the same setting.",
        f"Convergence: the first round within {tolerance:g} points of the run's best accuracy; total s: training time up to it, "
        "of which ALA's initial stage.",
        "Communication of one participant in one round, down and up together: parameters in multiples of the model's size Sigma.",
        "paper x FedAvg: FedALA paper (AAAI 2023), Table 3, ResNet-18 on Tiny-ImageNet, time per iteration on their GPUs.",
        *_devices(found.settings),
        *found.notes,
    )
    return Table(found.settings, found.rows, tuple(map(tuple, cells)), notes)


def _devices(settings: Sequence[Setting]) -> list[str]:
    return ["Times of different machines do not compare: `pflbench runs show` names the machine of a run."] if settings else []


def _mean(group: Sequence[Cost]) -> dict[str, float | None]:
    rows = [asdict(cost) for cost in group]
    return {
        name: None if any(row[name] is None for row in rows) else float(np.mean([row[name] for row in rows])) for name in rows[0]
    }


def _cell(means: dict[tuple[int, int], Any], rows: Sequence[Row], i: int, j: int) -> Cell | None:
    if (i, j) not in means:
        return None
    cost, runs = means[i, j]
    baseline = next((means[k, j][0] for k, row in enumerate(rows) if row.method == BASELINE and (k, j) in means), None)
    relative = cost["seconds_round"] / baseline["seconds_round"] if baseline and baseline["seconds_round"] else None
    paper = reference.seconds_per_iteration()
    ratio = paper[rows[i].method] / paper[BASELINE] if rows[i].method in paper else None
    return Cell(cost, runs, relative, ratio)


def _text(cell: Cell | None, show: Any) -> str:
    return "-" if cell is None else show(cell)


def _number(name: str, form: str, scale: float = 1.0) -> Any:
    def show(cell: Cell) -> str:
        value = cell.cost[name]
        return "-" if value is None else format(value * scale, form)

    return show


_COLUMNS: tuple[tuple[tuple[str, ...], Any], ...] = (
    (("best %",), _number("best", ".2f", 100)),
    (("rounds to", "convergence"), _number("converged", ".0f")),
    (("total s",), _number("seconds_total", ".1f")),
    (("of which", "initial"), _number("seconds_initial", ".1f")),
    (("s/round",), _number("seconds_round", ".3g")),
    (("x FedAvg",), lambda cell: "-" if cell.relative is None else f"{cell.relative:.2f}"),
    (("paper", "x FedAvg"), lambda cell: "" if cell.paper is None else f"{cell.paper:.2f}"),
    (("x Sigma",), _number("multiple", ".4g")),
    (("MB",), _number("bytes", ".4g", 1e-6)),
    (("peak", "memory MB"), _number("peak_memory", ".0f", 1e-6)),
)
