"""`table evidence`: what the papers say of the order of methods, and whether these runs confirm it (methods.md 2.15)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.stats import spearmanr
from sqlalchemy import Engine

from pflbench.errors import NothingYet
from pflbench.report import paper, selection
from pflbench.report.arrangement import TEST_LABELS, Arranged, Row
from pflbench.report.claims import Claim, claims, rankings
from pflbench.report.labels import counted, words
from pflbench.report.selection import Filters
from pflbench.report.statistics import p_text
from pflbench.report.tables.grid import CellText, Column, Grid
from pflbench.report.tables.machines import Machines, made_on
from pflbench.store import partitions
from pflbench.store.rounds import tested
from pflbench.store.runs import RoundRule

Verdict = Literal["confirmed", "not confirmed", "not resolvable"]
_NORMAL = 1.96  # standard errors within which 95 % of a normal distribution lie
_FEWEST = 4  # methods, below which an order says nothing


@dataclass(frozen=True)
class Side:
    """The runs of one method in a setting. values: accuracies in [0, 1], by run. samples: the fewest that a run was tested on.

    variant: as of `_variant`. test_labels: it adapts on the test's labels.
    """

    runs: tuple[int, ...]
    values: tuple[float, ...]
    samples: int
    variant: str = ""
    test_labels: bool = False

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def variance(self) -> float:
        """Of the mean: of the drawing of the test samples, which all seeds share, and of the seeds, if there are several."""
        of_seeds = float(np.var(self.values, ddof=1)) / len(self.values) if len(self.values) > 1 else 0.0
        return self.mean * (1 - self.mean) / self.samples + of_seeds


@dataclass(frozen=True)
class ClaimResult:
    """A claim in a setting. gap: of the means, and resolution: half of its 95 % interval; both in points."""

    better: Side
    worse: Side

    @property
    def gap(self) -> float:
        return 100 * (self.better.mean - self.worse.mean)

    @property
    def resolution(self) -> float:
        return 100 * _NORMAL * math.sqrt(self.better.variance + self.worse.variance)

    @property
    def verdict(self) -> Verdict:
        if abs(self.gap) <= self.resolution:
            return "not resolvable"
        return "confirmed" if self.gap > 0 else "not confirmed"

    @property
    def test_labels(self) -> bool:
        return self.better.test_labels or self.worse.test_labels

    @property
    def variants(self) -> list[str]:
        return [side.variant for side in (self.better, self.worse) if side.variant]

    @property
    def runs(self) -> tuple[int, ...]:
        return (*self.better.runs, *self.worse.runs)


@dataclass(frozen=True)
class Agreement:
    """How far the order of the methods in a setting is that of a source's ranking: Spearman's correlation, and its p."""

    setting: str
    source: str
    methods: int
    rho: float
    p: float


@dataclass(frozen=True)
class EvidenceTable:
    """findings[i, j]: of claim i in setting j of `found`, where both methods have runs."""

    round_rule: RoundRule
    found: Arranged
    claims: tuple[Claim, ...]
    findings: Mapping[tuple[int, int], ClaimResult]
    agreements: tuple[Agreement, ...]

    def grid(self) -> Grid:
        sources = Column(("source",), tuple(CellText(claim.source) for claim in self.claims))
        printed = Column(("printed, points", "(settings)"), tuple(CellText(_span(claim.printed)) for claim in self.claims))
        columns = [sources, printed]
        for j in sorted({j for _, j in self.findings}):
            setting = self.found.settings[j]
            here = [self.findings.get((i, j)) for i in range(len(self.claims))]
            gaps = [CellText(f"{one.gap:+.2f} ± {one.resolution:.2f}", runs=one.runs) if one else CellText("") for one in here]
            verdicts = [CellText(f"{one.verdict}{f' {TEST_LABELS}' * one.test_labels}" if one else "not run") for one in here]
            columns.append(Column((*setting.head, "here, points"), tuple(gaps)))
            columns.append(Column((*("",) * len(setting.head), "verdict"), tuple(verdicts), beside=True))
        records = tuple(self._record(i, j, one) for (i, j), one in self.findings.items())
        document = {"orders": [vars(one) for one in self.agreements]}
        names = tuple(claim.text for claim in self.claims)
        return Grid("Evidence", names, tuple(columns), self.notes, records, document, row_head="Claim")

    def _record(self, i: int, j: int, found: ClaimResult) -> dict[str, Any]:
        claim, setting = self.claims[i], self.found.settings[j]
        return {
            "setting": setting.title,
            "protocol": setting.protocol,
            "claim": claim.text,
            "source": claim.source,
            "better": claim.better,
            "worse": claim.worse,
            "printed": claim.printed,
            "round_rule": str(self.round_rule),
            "mean_better": 100 * found.better.mean,
            "mean_worse": 100 * found.worse.mean,
            "gap": found.gap,
            "resolution": found.resolution,
            "verdict": found.verdict,
            "variants": found.variants,
            "test_labels": found.test_labels,
            "samples": min(found.better.samples, found.worse.samples),
            "runs": found.runs,
        }

    @property
    def notes(self) -> tuple[str, ...]:
        return (
            "Here: the difference of the means over seeds, and half of its 95 % interval by the number of test samples and the "
            "spread of the seeds, if there are several; that of a single seed is not known. Smaller gaps are not resolvable.",
            selection.sentence(self.round_rule),
            *([f"Not the paper's hyperparameters: {'; '.join(self._variants)}."] if self._variants else []),
            *(self._tally(j) for j in range(len(self.found.settings))),
            *(
                f"{one.setting}: order of {one.methods} methods against their mean rank in the {one.source}: "
                f"Spearman's rho {one.rho:.2f}, p = {p_text(one.p)}."
                for one in self.agreements
            ),
            *self.found.notes,
            *self._machines,
        )

    @property
    def _machines(self) -> list[str]:
        """The notes about machines, where accuracy depends on seconds."""
        if self.round_rule.at is None or self.round_rule.at.measure != "seconds":
            return []
        made = {place: [made_on(run) for run in runs] for place, runs in self.found.cells.items()}
        return Machines.of(made).notes([row.label for row in self.found.rows], marked=False)

    @property
    def _variants(self) -> list[str]:
        return sorted({f"{one}, {self.found.settings[j].title}" for (_, j), of in self.findings.items() for one in of.variants})

    def _tally(self, j: int) -> str:
        here = Counter(one.verdict for (_, k), one in self.findings.items() if k == j)
        verdicts = ", ".join(f"{number} {verdict}" for verdict, number in sorted(here.items()))
        tally = f"of {counted(here.total(), 'claim')} {verdicts}" if here else "no claim has runs of both its methods"
        return f"{self.found.settings[j].title}: {tally}."


def build(engine: Engine, filters: Filters = Filters(), *, round_rule: str = "best", at: str | None = None) -> EvidenceTable:
    """The claims of which both methods have runs in a setting. at: as of `budgets.parse`.

    Raises UserError where there is none.
    """
    rule = selection.parse(round_rule, at)
    found = filters.select(engine, rule)
    sides = _sides(engine, found)
    both = {
        (claim, j): (sides[claim.better, j], sides[claim.worse, j])
        for claim in claims()
        for j in range(len(found.settings))
        if {(claim.better, j), (claim.worse, j)} <= sides.keys()
    }
    if not both:
        raise NothingYet(
            "No two of these methods stand in a claim of the papers that is known here.",
            "Run two that do: pflbench run -m fedavg -m fedala -d digits",
        )
    shown = tuple(dict.fromkeys(claim for claim, _ in both))
    findings = {(shown.index(claim), j): ClaimResult(*of) for (claim, j), of in both.items()}
    return EvidenceTable(rule, found, shown, findings, tuple(_agreements(found, sides)))


def _sides(engine: Engine, found: Arranged) -> dict[tuple[str, int], Side]:
    """By method and setting, of runs with results by client. Of a method's rows that with the usual hyperparameters comes first:
    its label names none.
    """
    by_client = tested(engine, {run.id: run.round for run in found.runs if run.round is not None})
    samples = {run: sum(of.values()) for run, of in by_client.items()}
    # Of a random test that is read several times (`--eval-repeats`) each client's samples count once.
    hashes = {run.partition for run in found.runs if run.partition is not None}
    held = {hash: partitions.find(engine, hash).test.sum(axis=1) for hash in hashes}
    for run in found.runs:
        if run.id in samples and run.partition:
            samples[run.id] = sum(min(n, int(held[run.partition][client])) for client, n in by_client[run.id].items())
    made: dict[tuple[str, int], Side] = {}
    for j in range(len(found.settings)):
        for row, runs in sorted(found.column(j), key=lambda one: one[0].label != one[0].title):
            own = {run.id: run.value for run in runs if run.id in samples and run.value is not None}
            if own:
                fewest = min(samples[run] for run in own)
                made.setdefault((row.method, j), Side(tuple(own), tuple(own.values()), fewest, _variant(row), row.test_labels))
    return made


def _variant(row: Row) -> str:
    """The row with those of its hyperparameters that are not its paper's, "FedALA (adapt=False)"; empty if there are none."""
    usual = paper.hyperparameters(row.method)
    other = [words(name, value) for name, value in row.hyperparameters.items() if usual.get(name, value) != value]
    return f"{row.title} ({', '.join(other)})" if other else ""


def _agreements(found: Arranged, sides: Mapping[tuple[str, int], Side]) -> Iterator[Agreement]:
    for j, setting in enumerate(found.settings):
        for source, rank in rankings().items():
            names = [name for name in rank if (name, j) in sides]
            if len(names) >= _FEWEST:
                rho, p = spearmanr([rank[name] for name in names], [-sides[name, j].mean for name in names])
                yield Agreement(setting.title, source, len(names), float(rho), float(p))


def _span(printed: Sequence[float]) -> str:
    """The least and the largest difference, and of how many."""
    if len(printed) == 1:
        return f"{printed[0]:+.2f} (1)"
    return f"{min(printed):+.2f} to {max(printed):+.2f} ({len(printed)})"
