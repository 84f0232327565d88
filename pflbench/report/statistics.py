"""Statistics on request: standard deviations, bootstrap intervals, paired tests. SciPy is imported when one of them needs it.

Of all values NumPy's float64 is taken as printed to 1e-9: differences that are rounding errors count as none.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pflbench.errors import UserError, unknown

Std = Literal["population", "sample"]
Test = Literal["wilcoxon", "t"]
STDS: tuple[Std, ...] = ("population", "sample")
TESTS: tuple[Test, ...] = ("wilcoxon", "t")
TITLES = {"wilcoxon": "Wilcoxon signed-rank test", "t": "t-test"}
ENOUGH = 5  # runs, below which an interval from resampling them says little
LEVEL = 0.05
_RESAMPLES = 9999
_DIGITS = 9


@dataclass(frozen=True)
class Wanted:
    """What to compute beside the mean. Raises UserError for unknown names and an impossible level.

    std: divisor n or n - 1. ci: level of a bootstrap interval of the mean. test: paired by seed, `against` a method or row, or
    where that is None the best of each setting.
    """

    std: Std = "population"
    ci: float | None = None
    test: Test | None = None
    against: str | None = None

    def __post_init__(self) -> None:
        if self.std not in STDS:
            raise unknown("value of --std", self.std, STDS)
        if self.test is not None and self.test not in TESTS:
            raise unknown("test", self.test, TESTS)
        if self.ci is not None and not 0 < self.ci < 1:
            raise UserError(f"--ci {self.ci:g} is not possible.", "It is the level of the interval, e.g. 0.95.")
        if self.against is not None and self.test is None:
            raise UserError("--against needs a test.", "Add --test wilcoxon or --test t.")


@dataclass(frozen=True)
class Comparison:
    """Two rows of a setting, paired by seed. p is two-sided, `adjusted` after Holm over the comparisons of the setting."""

    against: str  # the row
    pairs: int
    p: float | None  # None: fewer than two pairs
    adjusted: float | None = None
    least: float = 0.0  # the smallest adjusted p that so many pairs could give


def deviation(values: Sequence[float], kind: Std) -> float | None:
    """None where there is none: the sample std of one value."""
    if kind == "sample" and len(values) < 2:
        return None
    return float(np.std(values, ddof=kind == "sample"))


def interval(values: Sequence[float], level: float) -> tuple[float, float] | None:
    """Bootstrap interval of the mean: BCa (Efron 1987), percentile where that is undefined. None for fewer than two values.

    The resamples are the same in every call.
    """
    if len(values) < 2:
        return None
    if max(values) - min(values) < 10**-_DIGITS:
        return (min(values), max(values))
    from scipy.stats import bootstrap

    for method in ("BCa", "percentile"):
        found = bootstrap(
            (np.asarray(values),),
            np.mean,
            confidence_level=level,
            n_resamples=_RESAMPLES,
            method=method,
            rng=np.random.default_rng(0),
        ).confidence_interval
        if math.isfinite(found.low) and math.isfinite(found.high):
            break
    return float(found.low), float(found.high)


def paired(a: Mapping[int, float], b: Mapping[int, float], test: Test) -> tuple[float | None, int]:
    """(two-sided p, number of pairs) of values by seed; p is None for fewer than two pairs, 1 where no pair differs."""
    seeds = sorted(a.keys() & b.keys())
    d = np.array([a[seed] - b[seed] for seed in seeds]).round(_DIGITS)
    if len(d) < 2:
        return None, len(d)
    if not d.any():
        return 1.0, len(d)
    if test == "wilcoxon":
        from scipy.stats import wilcoxon

        return float(wilcoxon(d).pvalue), len(d)
    if np.ptp(d) == 0:  # the same difference in every pair: no spread to hold it against
        return 0.0, len(d)
    from scipy.stats import ttest_1samp

    return float(ttest_1samp(d, 0).pvalue), len(d)


def least_p(pairs: int, test: Test) -> float:
    """The smallest two-sided p that so many pairs can give: Wilcoxon's is that of one sign throughout, 2 / 2^n."""
    return 2.0 ** (1 - pairs) if test == "wilcoxon" else 0.0


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down correction (1979), in the given order."""
    adjusted, running = [0.0] * len(p), 0.0
    for rank, k in enumerate(sorted(range(len(p)), key=lambda k: p[k])):
        running = max(running, min(1.0, (len(p) - rank) * p[k]))
        adjusted[k] = running
    return adjusted


def compare(values: Mapping[str, Mapping[int, float]], against: str, test: Test) -> dict[str, Comparison]:
    """By row of a setting, its values by seed against those of the row `against`; Holm's correction over all of them."""
    raw = {row: paired(own, values[against], test) for row, own in values.items() if row != against}
    tested = {row: p for row, (p, _) in raw.items() if p is not None}
    corrected = dict(zip(tested, holm(list(tested.values())), strict=True))
    return {
        row: Comparison(against, pairs, p, corrected.get(row), min(1.0, len(tested) * least_p(pairs, test)))
        for row, (p, pairs) in raw.items()
    }


def p_text(p: float) -> str:
    return f"{p:.3g}" if p >= 1e-10 else "<1e-10"  # below it is what rounding leaves


def notes(wanted: Wanted, counts: Collection[int], comparisons: Collection[Comparison]) -> list[str]:
    """What a table says of its statistics, and where there are too few runs for them. counts: runs in each cell."""
    said = []
    if wanted.ci is not None:
        said.append(f"[low, high]: {100 * wanted.ci:g} % bootstrap interval of the mean (BCa, {_RESAMPLES} resamples).")
        if min(counts) < ENOUGH:
            said.append(f"With fewer than {ENOUGH} runs (fewest: {min(counts)}) a bootstrap interval is too narrow to rely on.")
    if wanted.test is None:
        return said
    named = next((c.against for c in comparisons), wanted.against)
    whom = named if wanted.against else "the best of the setting"
    said.append(f"p: two-sided {TITLES[wanted.test]} against {whom}, paired by seed, after Holm over the rows of a setting.")
    empty = [c for c in comparisons if c.p is not None and c.least >= LEVEL]
    if empty:
        fewest = min(empty, key=lambda c: c.pairs)
        alone = least_p(fewest.pairs, wanted.test)
        seeds = f"{fewest.pairs} paired seeds"
        if alone >= LEVEL:
            said.append(f"Empty test: {seeds} cannot give p < {LEVEL:g}; the smallest possible is {alone:.4g} before Holm.")
        else:
            said.append(
                f"Empty test: {seeds} cannot give p < {LEVEL:g} after Holm over so many rows; the smallest is {fewest.least:.4g}."
            )
    if wanted.test == "t" and any(c.p is not None and c.pairs < ENOUGH for c in comparisons):
        said.append(f"Fewer than {ENOUGH} pairs: the t-test rests on the normality of the differences alone.")
    if any(c.p is None for c in comparisons):
        said.append("p is missing where fewer than two seeds are paired.")
    return said
