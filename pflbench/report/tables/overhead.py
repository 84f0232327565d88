"""`table overhead`: time, communication and memory of each method, in the shape of the paper's Table 3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report import labels
from pflbench.report import paper as papers
from pflbench.report.arrangement import Arranged
from pflbench.report.needed import TABLES
from pflbench.report.selection import BEST, Filters
from pflbench.report.tables.accuracy import Paper
from pflbench.report.tables.cell import difference_notes
from pflbench.report.tables.grid import CellText, Column, Grid
from pflbench.report.tables.machines import ELSEWHERE, Machines, made_on
from pflbench.store.rounds import Cost, costs

BASELINE = "fedavg"
TOLERANCE = 0.5  # points
TIMES = ("seconds_total", "seconds_round", "relative_to_fedavg")  # that are marked where runs were made elsewhere
Means = dict[str, float | None]


# Parameters that a client sends and receives in a round (methods.md 1.18): of Table 3, and of the methods that it lacks. Sigma:
# those of a model; alpha_f: the share of its feature extractor; M: the models that a client receives.
_OTHERS = {
    "local": "0",
    **dict.fromkeys(("heurfedamp", "feddeper", "fedavg-ft", "apfl", "moon", "feddyn", "fedrod", "feddbe", "fedpac"), "2 Σ"),
    **dict.fromkeys(("fedper", "fedbabu", "fedas"), "2 α_f Σ"),
    "lg-fedavg": "2 (1 - α_f) Σ",
    "elastic": "3 Σ",
    "scaffold": "4 Σ",
    "fedbn": "2 (Σ - BatchNorm)",
    "fedproto": "prototypes",
    "gpfl": "2 (α_f Σ + valve)",
    "fedcp": "2 (Σ + policy)",
}


@cache
def table_3() -> dict[str, dict[str, float | None]]:
    """What Table 3 has of a method, by the names in the records; times in seconds.

    initial: ALA's initial stage. multiple: communication over Sigma, None for FedRep's.
    """
    iterations = papers.seconds_per_iteration()
    total, initial, multiple = map(
        papers.by_method, ("total_time_min", "total_time_min_initial_stage", "comm_params_per_iter_in_units_of_Sigma")
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


def formula(method: str) -> str:
    """'2 Σ'; plugging in ALA changes nothing. Nothing for a plug-in's method."""
    base = method.partition("+ala")[0]
    printed = (value.setting["formula"] for value in papers.named_values() if value.method == base and "formula" in value.setting)
    plain = next(printed, "").replace("alpha_f", "α_f").replace("Sigma", "Σ").replace("*", " ").replace("+", " + ")
    return _OTHERS.get(base, plain)


_FLOPS = (
    "FLOPs: median over all rounds of reception and update, of all clients together; x FedAvg: as a multiple of FedAvg's in the "
    "same setting."
)


@dataclass(frozen=True)
class CostCell:
    """One method in one setting.

    values: means over its runs, multiples of FedAvg's round in the same setting, and what Table 3 has of the method where its
    setting is the table's ("paper_..."); None where there is nothing. differences: what of the protocol is not the paper's.
    elsewhere: where or how its runs were made, if not as most of the setting.
    """

    values: dict[str, Any]
    runs: tuple[int, ...]
    differences: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()

    @property
    def compared(self) -> bool:
        """Whether the paper's values stand beside it."""
        return self.values["paper_rounds"] is not None


@dataclass(frozen=True)
class OverheadTable:
    """cells[i, j] is row i of `found` in its setting j, where there are runs with costs."""

    found: Arranged
    cells: dict[tuple[int, int], CostCell]
    notes: tuple[str, ...]

    def grid(self) -> Grid:
        columns: list[Column] = []
        for j, setting in enumerate(self.found.settings):
            cells = [self.cells.get((i, j)) for i in range(len(self.found.rows))]
            compared = any(cell and cell.compared for cell in cells)
            flops = [cell.values["flops"] for cell in cells if cell and cell.values["flops"] is not None]
            prefix, factor = labels.prefix(max(flops, default=0))
            hidden = ("paper_",) * (not compared) + ("flops",) * (not flops)
            shown = [column for column in _COLUMNS if not column[1].startswith(hidden)]
            for k, (head, name, form, unit) in enumerate(shown):
                above = ("",) * len(setting.head) if k else setting.head
                if name == "flops":
                    head, unit = (f"{prefix}FLOP", *head), 1 / factor
                entries = [CellText(_text(cell, name, form, unit), runs=cell.runs if cell and k == 0 else ()) for cell in cells]
                columns.append(Column((*above, *head), tuple(entries), beside=k > 0))
        records = tuple(
            {
                **self.found.names(i, j),
                **cell.values,
                "paper_differences": cell.differences,
                "made_elsewhere": cell.elsewhere,
                "runs": cell.runs,
            }
            for (i, j), cell in self.cells.items()
        )
        return Grid("Overhead", tuple(row.label for row in self.found.rows), tuple(columns), self.notes, records)


def build(engine: Engine, filters: Filters = Filters(), *, tolerance: float = TOLERANCE, paper: Paper = "auto") -> OverheadTable:
    """Costs of each method in each setting, means over its runs, beside FedAvg's.

    paper: as of `accuracy.build`; other datasets, models and partitions never have a value. tolerance: a run has converged at the
    first round within so many points of its best accuracy. Raises UserError where there is nothing to show.
    """
    found = filters.select(engine)
    spent = costs(engine, [run.id for run in found.runs], tolerance / 100)
    if not spent:
        raise UserError("None of these runs has a trained and evaluated round.", "`pflbench runs list` shows what there is.")
    known = {place: [spent[run.id] for run in runs if run.id in spent] for place, runs in sorted(found.cells.items())}
    means = {place: _mean(group) for place, group in known.items() if group}
    machines = Machines.of({place: [made_on(run) for run in found.cells[place]] for place in means})
    cells = {place: _cell(means, found, place, paper, machines.elsewhere.get(place, ())) for place in means}
    notes = (
        "Means over runs that differ in the seed. s/round: median over all rounds of reception and update, without evaluation; "
        "x FedAvg: as a multiple of FedAvg's in the same setting.",
        f"Convergence: the first round within {tolerance:g} points of the run's best accuracy; total s: training time up to it, "
        "of which ALA's initial stage.",
        "Communication of one participant in one round, down and up together: parameters, and as a multiple of the model's size "
        "Σ; α_f: the share of the feature extractor, M: the models that a client receives.",
        *([_FLOPS] if any(cell.values["flops"] is not None for cell in cells.values()) else []),
        *_paper_notes(found, cells),
        *machines.notes([row.label for row in found.rows]),
        *found.notes,
    )
    return OverheadTable(found, cells, notes)


def _paper_notes(found: Arranged, cells: Mapping[tuple[int, int], CostCell]) -> list[str]:
    shown = [(found.rows[i].label, found.settings[j].title, cell.differences) for (i, j), cell in cells.items() if cell.compared]
    if not shown:
        return []
    return [
        "paper: FedALA paper (AAAI 2023), Table 3, in seconds, on their GPUs: compare the multiples. Its rounds are those that "
        "its total time, without the initial stage, and its time per iteration imply; M = 20.",
        *difference_notes(shown),
    ]


def _mean(group: Sequence[Cost]) -> Means:
    rows = [asdict(cost) for cost in group]
    return {
        name: None if any(row[name] is None for row in rows) else float(np.mean([row[name] for row in rows])) for name in rows[0]
    }


def _cell(
    means: Mapping[tuple[int, int], Means], found: Arranged, place: tuple[int, int], shown: Paper, elsewhere: tuple[str, ...]
) -> CostCell:
    method, runs, cost = found.rows[place[0]].method, found.cells[place], means[place]
    baselines = (mean for (i, j), mean in means.items() if (found.rows[i].method, j) == (BASELINE, place[1]))
    baseline = next(baselines, {})

    def multiple(name: str) -> float | None:
        own, of = cost[name], baseline.get(name)
        return own / of if own is not None and of else None

    (of_table_3,) = TABLES["overhead"].places
    differences: tuple[str, ...] = ()
    printed = None
    if shown != "never" and papers.is_at(runs[0].spec, of_table_3):
        differences = papers.differences(runs[0].spec, BEST, of_table_3)
        printed = table_3().get(method) if shown == "always" or not differences else None
    values: dict[str, Any] = {
        **cost,
        "relative_to_fedavg": multiple("seconds_round"),
        "flops_relative_to_fedavg": multiple("flops"),
        "formula": formula(method),
        **(printed or dict.fromkeys(table_3()[BASELINE])),
    }
    return CostCell(values, tuple(run.id for run in runs), differences if printed else (), elsewhere)


def _text(cell: CostCell | None, name: str, form: str, unit: float) -> str:
    if cell is None:
        return "-"
    value, is_paper = cell.values[name], name.startswith("paper_")
    if value is None:
        return "" if is_paper else "-"
    text = value if isinstance(value, str) else labels.number(value * unit, form)
    return text + " †" * (is_paper and bool(cell.differences)) + f" {ELSEWHERE}" * (name in TIMES and bool(cell.elsewhere))


# Head, name of the value, its format and unit; those of FLOPs begin with the unit, which the largest value decides.
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
    (("per round",), "flops", ".4g", 1),
    (("FLOPs", "x FedAvg"), "flops_relative_to_fedavg", ".2f", 1),
    (("communi-", "cation"), "formula", "", 1),
    (("x Σ",), "multiple", ".4g", 1),
    (("paper", "x Σ"), "paper_multiple", ".4g", 1),
    (("para-", "meters"), "parameters", ",.0f", 1),
    (("MB",), "bytes", ".4g", 1e-6),
    (("peak", "memory MB"), "peak_memory", ".0f", 1e-6),
)
