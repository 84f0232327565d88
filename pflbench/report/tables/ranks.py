"""`table ranks`: average ranks of the methods over settings, with Friedman's test and Nemenyi's (Demsar, JMLR 2006)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import Engine

from pflbench.errors import NothingYet
from pflbench.report import selection
from pflbench.report.arrangement import Arranged, Row, SharedSetting
from pflbench.report.labels import counted
from pflbench.report.selection import Filters
from pflbench.report.statistics import LEVEL, p_text
from pflbench.report.tables.grid import CellText, Column, Grid
from pflbench.report.tables.machines import ELSEWHERE, Machines, made_on
from pflbench.report.tables.tuned import tuning_notes
from pflbench.store.runs import RoundRule, RunScope, results

_ROWS, _SETTINGS = 3, 2  # that ranks need
_PASSES, _PASSED = "↑", "↓"
_FEWEST = 10  # settings, below which the distribution of Friedman's statistic is only roughly that of chi squared


_FLIPS = (
    f"{_PASSES}: ranks better than a row that ranks better without --at; {_PASSED}: ranks worse than one that ranks worse "
    "without it. Both ranks are of the same runs."
)


@dataclass(frozen=True)
class Ranks:
    """Rows from the best average rank on. accuracy: mean over seeds in percent, [rows, settings]. average: 1 is best, ties share.

    statistic, p: Friedman's. nemenyi: p of each pair of rows. critical: ranks further apart than this differ at 0.05.
    findings: how it was tested and with what result, in words. left_out: which runs do not count. unlimited: the average ranks of
    the same runs without the rule's budget, if it has one. elsewhere: where seconds count, by row the machines that are not that
    of most runs of a setting.
    """

    round_rule: str
    settings: tuple[SharedSetting, ...]
    rows: tuple[Row, ...]
    accuracy: npt.NDArray[np.float64]
    average: npt.NDArray[np.float64]
    statistic: float
    p: float
    nemenyi: npt.NDArray[np.float64]
    critical: float
    runs: tuple[tuple[int, ...], ...]  # by row
    findings: tuple[str, ...]
    left_out: tuple[str, ...]
    unlimited: npt.NDArray[np.float64] | None = None
    elsewhere: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    @property
    def rejected(self) -> bool:
        """Whether Friedman's test finds that the rows differ at all."""
        return self.p < LEVEL

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self.findings, *self.left_out)

    def grid(self) -> Grid:
        names = tuple(row.label for row in self.rows)
        means = self.accuracy.mean(axis=1)
        marks = [f" {ELSEWHERE}" * bool(self.elsewhere.get(i)) for i in range(len(names))]
        ranks = tuple(
            CellText(f"{rank:.2f}{marks[i]}" + " *" * (i == 0), i == 0, self.runs[i]) for i, rank in enumerate(self.average)
        )
        p = (CellText(""), *(CellText(p_text(float(p))) for p in self.nemenyi[1:, 0]))
        columns = [
            Column(("average", "rank"), ranks),
            Column(("mean over", "settings"), tuple(CellText(f"{mean:.2f}") for mean in means)),
            Column(("p (Nemenyi)", f"against {names[0]}"), p),
        ]
        notes, at_cost = self.notes, [dict[str, Any]() for _ in names]
        if self.unlimited is not None:
            notes = (*self.findings, _FLIPS, *self.left_out)
            texts = []
            for i, rank in enumerate(self.unlimited):
                flips = self.flips(i)
                texts.append(f"{rank:.2f} {''.join(mark for mark, of in flips.items() if of)}".rstrip())
                at_cost[i] = {
                    "rank_without_at": float(rank),
                    "passes": tuple(flips[_PASSES]),
                    "passed_by": tuple(flips[_PASSED]),
                    "made_elsewhere": self.elsewhere.get(i, ()),
                }
            columns.insert(1, Column(("rank", "without --at"), tuple(map(CellText, texts))))
        records = tuple(
            {
                "row": row.label,
                "method": row.method,
                "hyperparameters": row.hyperparameters,
                "round_rule": self.round_rule,
                "average_rank": float(self.average[i]),
                **at_cost[i],
                "mean": float(means[i]),
                "nemenyi": {name: float(p) for k, (name, p) in enumerate(zip(names, self.nemenyi[i], strict=True)) if k != i},
                "runs": self.runs[i],
            }
            for i, row in enumerate(self.rows)
        )
        document = {
            "settings": [setting.title for setting in self.settings],
            "friedman": {"statistic": self.statistic, "p": self.p},
            "critical_difference": self.critical,
        }
        return Grid("Average ranks", names, tuple(columns), notes, records, document)

    def flips(self, i: int) -> dict[str, list[str]]:
        """The rows whose order with row i is the opposite without the budget: those that i passes, and that pass it."""
        assert self.unlimited is not None
        here, there = self.average - self.average[i], self.unlimited - self.unlimited[i]
        passes, passed = (here > 0) & (there < 0), (here < 0) & (there > 0)
        return {mark: [self.rows[k].label for k in np.flatnonzero(of)] for mark, of in ((_PASSES, passes), (_PASSED, passed))}


def build(engine: Engine, filters: Filters = Filters(), *, round_rule: str = "best", at: str | None = None) -> Ranks:
    """Ranks by the mean over seeds, over settings in which every row has runs; rows with too few settings are left out.

    at: as of `budgets.parse`; then the ranks of the same runs without it stand beside them.
    Raises UserError for fewer than three rows or two such settings: then there is nothing to test.
    """
    rule = selection.parse(round_rule, at)
    found = filters.select(engine, rule)
    rows, full = _complete(found)
    if len(rows) < _ROWS or len(full) < _SETTINGS:
        raise NothingYet(
            f"Ranks need three rows with runs in the same two settings; "
            f"here: {counted(len(rows), 'row')}, {counted(len(full), 'setting')} in common.",
            "Choose methods that were run in the same settings with -m: `pflbench table accuracy` shows which.",
        )
    values = {run.id: run.value for run in found.runs}
    accuracy = _means(values, found, rows, full)
    average, statistic, p = friedman(accuracy)
    order = np.argsort(average, kind="stable")
    ordered = [rows[k] for k in order]
    findings, unlimited = _findings(rule, len(rows), len(full), statistic, p), None
    elsewhere: dict[int, tuple[str, ...]] = {}
    if rule.at is not None:
        whole = results(engine, RunScope(frozenset(values)), replace(rule, at=None))
        unlimited = friedman(_means({run.id: run.value for run in whole}, found, ordered, full))[0]
    if rule.at is not None and rule.at.measure == "seconds":
        machines = Machines.of({(k, j): [made_on(run) for run in found.cells[i, j]] for k, i in enumerate(ordered) for j in full})
        for k in range(len(ordered)):
            others = chain.from_iterable(of for (row, _), of in machines.elsewhere.items() if row == k)
            elsewhere[k] = tuple(dict.fromkeys(others))
        findings += tuple(machines.notes([found.rows[i].label for i in ordered]))
    missing = len(found.settings) - len(full)
    left_out = (f"Left out: {counted(missing, 'setting')} without runs of every row.",) if missing else ()
    held = Counter(i for i, _ in found.cells)
    few = [f"{row.label} ({counted(held[i], 'setting')})" for i, row in enumerate(found.rows) if i not in rows]
    if few:
        left_out = (f"Left out, with runs in too few settings: {', '.join(few)}.", *left_out)
    behind = tuple(tuple(run.id for j in full for run in found.cells[i, j]) for i in ordered)
    tuning = tuning_notes(engine, {found.rows[i].label: runs for i, runs in zip(ordered, behind, strict=True)})
    return Ranks(
        round_rule=str(rule),
        settings=tuple(found.settings[j] for j in full),
        rows=tuple(found.rows[i] for i in ordered),
        accuracy=accuracy[order],
        average=average[order],
        statistic=statistic,
        p=p,
        nemenyi=nemenyi(average[order], len(full)),
        critical=critical_difference(len(rows), len(full)),
        runs=behind,
        findings=findings,
        left_out=(*tuning, *left_out, *found.notes),
        unlimited=unlimited,
        elsewhere=elsewhere,
    )


def _means(
    values: Mapping[int, float | None], found: Arranged, rows: Sequence[int], settings: Sequence[int]
) -> npt.NDArray[np.float64]:
    """Means over seeds in percent, [rows, settings]. values: by run."""
    return np.array([[np.mean([100 * (values[run.id] or 0.0) for run in found.cells[i, j]]) for j in settings] for i in rows])


def _complete(found: Arranged) -> tuple[list[int], list[int]]:
    """Rows, and the settings in which all of them have runs: so that as many cells as possible count.

    Rows with the fewest settings are left out first. Of equally many cells, those with more settings.
    """
    held = [{j for row, j in found.cells if row == i} for i in range(len(found.rows))]
    order = sorted(range(len(held)), key=lambda i: -len(held[i]))
    first = [order[:n] for n in range(min(_ROWS, len(order)), len(order) + 1)]
    choices = [(sorted(rows), sorted(set.intersection(*(held[i] for i in rows)))) for rows in first]
    return max(choices, key=lambda choice: (len(choice[1]) >= _SETTINGS, len(choice[0]) * len(choice[1])))


def _findings(rule: RoundRule, rows: int, settings: int, statistic: float, p: float) -> tuple[str, ...]:
    from scipy.stats import chi2

    relation = f"p = {p_text(p)}".replace("= <", "< ")
    said = [
        f"Rank 1 is best; over the {settings} settings in which all {rows} rows have runs, by the mean over seeds.",
        selection.sentence(rule),
        f"Friedman: chi squared = {statistic:.4g}, {relation}. Nemenyi: ranks that differ by more than "
        f"{critical_difference(rows, settings):.3g} differ at {LEVEL:g}.",
    ]
    if p >= LEVEL:
        said.append("Friedman's test finds no difference between the rows: Nemenyi's p is not to be read as one.")
    if (least := float(chi2.sf(settings * (rows - 1), rows - 1))) >= LEVEL:  # the same order of the rows in every setting
        said.append(
            f"Empty test: {rows} rows in {settings} settings cannot give p < {LEVEL:g}; the smallest possible is {least:.3g}."
        )
    if settings < _FEWEST:
        said.append(f"Fewer than {_FEWEST} settings: these p are rough.")
    return tuple(said)


def friedman(accuracy: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], float, float]:
    """Average ranks [rows], the statistic and its p of accuracies [rows, settings]; p is 1 where all are tied everywhere."""
    from scipy.stats import friedmanchisquare, rankdata

    # Not NumPy's round(2), which differs from the printed text at x.xx5.
    as_printed = np.array([[round(float(mean), 2) for mean in row] for row in accuracy])
    average = rankdata(-as_printed, axis=0).mean(axis=1)
    if not np.ptp(as_printed, axis=0).any():
        return average, 0.0, 1.0
    found = friedmanchisquare(*as_printed)
    return average, float(found.statistic), float(found.pvalue)


def nemenyi(average: npt.NDArray[np.float64], settings: int) -> npt.NDArray[np.float64]:
    """p of each pair of rows with these average ranks, [rows, rows]: the studentized range beyond their difference in units of
    sqrt(k (k + 1) / (12 N)) (Demsar, JMLR 2006, section 3.2.2).
    """
    from scipy.stats import studentized_range

    rows = len(average)
    differences = np.abs(average[:, None] - average) / math.sqrt(rows * (rows + 1) / (12 * settings))
    return np.asarray(studentized_range.sf(differences, rows, np.inf), dtype=np.float64)


def critical_difference(rows: int, settings: int) -> float:
    """q sqrt(k (k + 1) / (6 N)) at 0.05, q of the studentized range over sqrt(2)."""
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(1 - LEVEL, rows, np.inf)) / math.sqrt(2)
    return q * math.sqrt(rows * (rows + 1) / (6 * settings))
