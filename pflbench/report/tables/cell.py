"""A cell of an accuracy table: one method's runs in one setting, what the paper has there, and how both are written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report import labels
from pflbench.report import statistics as stats
from pflbench.report.arrangement import TEST_LABELS
from pflbench.report.paper import PrintedValue
from pflbench.report.tables.grid import CellText, Column
from pflbench.report.tables.machines import ELSEWHERE, made_on
from pflbench.store.rounds import by_client
from pflbench.store.runs import Result, RoundRule

REPRODUCED, DIFFERS, NOT_RUN, OTHER_PROTOCOL = "reproduced", "differs", "not run", "protocol differs"
OPEN = "open"  # near enough, but FedALA was not run beside it
TOLERANCE = 1.0  # points


@dataclass(frozen=True)
class Cell:
    """One method in one setting. Accuracies in percent; `std` as asked for, the population's by default (methods.md 2.1).

    `paper` is the paper's value; `differences` says how its protocol differs from the runs', and `difference` (mean
    minus the paper's mean, in points) is given only where it does not.
    """

    mean: float
    std: float | None
    runs: tuple[int, ...]  # the runs' numbers, with seeds, values and rounds in the same order
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    rounds: tuple[int, ...]  # the round of each value; the last one that went into a mean
    method: Mapping[str, Any]  # as in the runs' specifications: name, version, hyperparameters
    paper: PrintedValue | None
    differences: tuple[str, ...]
    used: int  # rounds that went into the value of a run, at least
    best: bool = False
    optimism: float | None = None  # by how many points the runs' best rounds, chosen on test data, exceed their values
    made: tuple[str, ...] = ()  # of each run the machine and its load
    elsewhere: tuple[str, ...] = ()  # where seconds count, the machines that are not that of most runs of the setting
    interval: tuple[float, float] | None = None
    comparison: stats.Comparison | None = None
    clients: tuple[Mapping[int, float], ...] = ()  # of each run the accuracy by client, where the clients are compared

    @property
    def n(self) -> int:
        return len(self.runs)

    @property
    def test_labels(self) -> bool:
        """Whether its clients adapt on labelled test data."""
        return bool(self.method["test_labels"])

    @property
    def difference(self) -> float | None:
        return self.mean - self.paper.mean if self.paper and not self.differences else None

    def paired_by(self, test: stats.Test) -> stats.Values:
        """What this test pairs: the values by seed, or the clients' by seed and client."""
        if test != stats.OVER_CLIENTS:
            return dict(zip(self.seeds, self.values, strict=True))
        return {(seed, k): value for seed, of in zip(self.seeds, self.clients, strict=True) for k, value in of.items()}

    @property
    def medians(self) -> tuple[float, ...]:
        """Of each run the median over its clients; runs without results by client are left out."""
        return tuple(float(np.median(list(of.values()))) for of in self.clients if of)

    @property
    def median(self) -> float | None:
        """Their mean."""
        return float(np.mean(self.medians)) if self.medians else None


Cells = tuple[Cell | None, ...]
"""The cells of one column, by row."""


def make(
    runs: Sequence[Result], wanted: stats.Statistics, paper: PrintedValue | None = None, differences: tuple[str, ...] = ()
) -> Cell:
    values = tuple(100 * run.value for run in runs if run.value is not None)
    above = [100 * (run.best - run.value) for run in runs if run.best is not None and run.value is not None]
    return Cell(
        mean=float(np.mean(values)),
        std=stats.deviation(values, wanted.std),
        runs=tuple(run.id for run in runs),
        seeds=tuple(run.seed for run in runs),
        values=values,
        rounds=tuple(run.round for run in runs if run.round is not None),
        method=runs[0].spec["method"],
        paper=paper,
        differences=differences,
        used=min(run.used for run in runs),
        optimism=float(np.mean(above)) if above else None,
        made=tuple(map(made_on, runs)),
        interval=None if wanted.ci is None else stats.interval(values, wanted.ci),
    )


def mark_best(cells: Cells) -> Cells:
    """Best as it is printed: means that agree to two decimals are ties. A column of one has no best.

    A single run is not marked beside means over several: it may be a lucky seed.
    """
    run = [cell for cell in cells if cell]
    if len(run) < 2:
        return cells
    fewest = min(2, max(cell.n for cell in run))
    top = max(round(cell.mean, 2) for cell in run if cell.n >= fewest)
    return tuple(cell and replace(cell, best=cell.n >= fewest and round(cell.mean, 2) == top) for cell in cells)


def compare(
    cells: Cells, rows: Sequence[str], base: str | None, test: stats.Test, engine: Engine, round_rule: RoundRule
) -> Cells:
    """The cells with their comparisons. base: the row to compare with; None: the best of the column, as it is marked.

    engine, round_rule: where the runs are, and what counts of them.
    """
    if test == stats.OVER_CLIENTS:
        cells = tuple(cell and replace(cell, clients=_clients(engine, cell, round_rule)) for cell in cells)
    here = {label: cell for label, cell in zip(rows, cells, strict=True) if cell}
    against = base or max(here, key=lambda label: (here[label].best, here[label].mean), default=None)
    if against not in here:
        return cells
    found = stats.compare({label: cell.paired_by(test) for label, cell in here.items()}, against, test)
    return tuple(cell and replace(cell, comparison=found.get(label)) for label, cell in zip(rows, cells, strict=True))


def _clients(engine: Engine, cell: Cell, round_rule: RoundRule) -> tuple[dict[int, float], ...]:
    found = by_client(engine, dict(zip(cell.runs, cell.rounds, strict=True)), round_rule.last)
    return tuple({client: 100 * value for client, value in found[run].items()} for run in cell.runs)


def judge(cell: Cell | None, leader: Cell | None, ranked: bool = True) -> str | None:
    """methods.md 6: |difference| <= max(1 point, 3 std of the paper), and the ranking of the leader (FedALA) against it kept.

    ranked: whether there is a leader to be ranked against. Means that print alike are no reversal. None: the paper has no value.
    """
    if cell is None:
        return NOT_RUN
    if cell.paper is None:
        return None
    if cell.difference is None:
        return OTHER_PROTOCOL
    if abs(cell.difference) > max(TOLERANCE, 3 * (cell.paper.std or 0.0)) + 1e-9:
        return DIFFERS
    if not ranked or leader is cell:
        return REPRODUCED
    if leader is None or leader.difference is None or leader.paper is None:
        return OPEN
    ours, theirs = round(leader.mean, 2) - round(cell.mean, 2), leader.paper.mean - cell.paper.mean
    return DIFFERS if ours * theirs < 0 else REPRODUCED


def verdict_notes(verdicts: Collection[str | None], ranked: bool) -> list[str]:
    """The rule, where there is a verdict by it."""
    if not {REPRODUCED, DIFFERS, OPEN} & {*verdicts}:
        return []
    ranking = ", and FedALA ranked against it as in the paper" * ranked
    rule = f"reproduced: within {TOLERANCE:g} point or 3 std of the paper's value{ranking}."
    return [rule + " open: near enough, but FedALA was not run beside it." * (OPEN in verdicts)]


def difference_notes(shown: Iterable[tuple[str, str, tuple[str, ...]]]) -> list[str]:
    """What sets the runs' protocols apart from the paper's. shown: (row, setting, differences) where its value is shown."""
    shown = [item for item in shown if item[2]]
    # What all methods of a setting have in common is the setting's, the rest is the method's.
    common: dict[str, list[str]] = {}
    for _, title, differences in shown:
        common[title] = [d for d in common.get(title, differences) if d in differences]
    where: dict[tuple[str, ...], dict[str, None]] = defaultdict(dict)
    for label, title, differences in shown:
        where[tuple(common[title])][title] = None
        where[tuple(d for d in differences if d not in common[title])][label] = None
    return [f"† protocol differs ({labels.some(list(w))}): {', '.join(d)}." for d, w in where.items() if d]


def record(cell: Cell | None, verdict: str | None) -> dict[str, Any]:
    """The cell for CSV and JSON, in full precision; accuracies in percent."""
    compared = cell.comparison if cell else None
    return {
        "mean": cell and cell.mean,
        "std": cell and cell.std,
        "n": cell.n if cell else 0,
        "best": bool(cell and cell.best),
        "optimism": cell and cell.optimism,
        "interval": cell and cell.interval,
        "compared_with": compared and compared.against,
        "pairs": compared and compared.pairs,
        "p": compared and compared.p,
        "p_holm": compared and compared.adjusted,
        "median_client": cell and cell.median,
        "median_clients": cell.medians if cell else (),
        "made_elsewhere": cell.elsewhere if cell else (),
        "difference": cell and cell.difference,
        "verdict": verdict,
        "runs": cell.runs if cell else (),
        "seeds": cell.seeds if cell else (),
        "values": cell.values if cell else (),
        "rounds": cell.rounds if cell else (),
    }


def ours(cell: Cell | None, with_n: bool) -> CellText:
    if cell is None:
        return CellText("-")
    text = value(cell.mean, cell.std if cell.n > 1 else None)
    if cell.interval:
        text += f" [{cell.interval[0]:.2f}, {cell.interval[1]:.2f}]"
    text += f" ({cell.n})" * with_n + f" {TEST_LABELS}" * cell.test_labels + f" {ELSEWHERE}" * bool(cell.elsewhere)
    return CellText(text + " *" * cell.best, cell.best, cell.runs)


def papers(reference: PrintedValue | None, cell: Cell | None) -> CellText:
    """The paper's value; in brackets our mean minus it, or a dagger where the protocol is not the paper's."""
    if reference is None:
        return CellText("")
    text = value(reference.mean, reference.std)
    if cell is None:
        return CellText(text)
    return CellText(f"{text} †" if cell.difference is None else f"{text} ({cell.difference:+.2f})")


def columns_of_test(cells: Sequence[Cell | None], test: stats.Test) -> list[Column]:
    """p, and before it the median client where the clients are what is compared."""

    def entry(cell: Cell | None) -> CellText:
        if cell is None or cell.comparison is None:
            return CellText("")
        return CellText("-" if cell.comparison.adjusted is None else stats.p_text(cell.comparison.adjusted))

    p = tuple(map(entry, cells))
    if test != stats.OVER_CLIENTS:
        return [Column((f"p ({test})",), p, beside=True)]
    medians = tuple(CellText("" if cell is None or cell.median is None else f"{cell.median:.2f}") for cell in cells)
    return [Column(("median", "client"), medians, beside=True), Column(("p", "(clients)"), p, beside=True)]


def value(mean: float, std: float | None) -> str:
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"


def row_of(asked: str, rows: Mapping[str, str]) -> str:
    """The label of the row that is meant by --against. rows: labels with their methods. Raises UserError for none or several."""
    names = {label: {name.casefold() for name in (label, method, labels.method_title(method))} for label, method in rows.items()}
    fits = [label for label, own in names.items() if asked.casefold() in own]
    if len(fits) != 1:
        raise UserError(f"--against {asked} fits {len(fits)} rows of this table.", f"Name one of: {', '.join(fits or rows)}.")
    return fits[0]
