"""Statistics on request: standard deviations, bootstrap intervals, paired tests. SciPy is imported when one of them needs it.

Differences are rounded to 1e-9, so that rounding errors count as none.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pflbench.errors import UserError

Std = Literal["population", "sample"]
Test = Literal["wilcoxon", "t", "wilcoxon-clients"]
OVER_CLIENTS: Test = "wilcoxon-clients"  # what is paired are the clients, not the seeds
TITLES = {"wilcoxon": "Wilcoxon signed-rank test", "t": "t-test", OVER_CLIENTS: "Wilcoxon signed-rank test over the clients"}
ENOUGH = 5  # runs, below which an interval from resampling them says little
LEVEL = 0.05
Values = Mapping[Any, float]  # by seed, or by client, or by seed and client
_RESAMPLES = 9999
_DIGITS = 9


@dataclass(frozen=True)
class Statistics:
    """What to compute beside the mean. Raises UserError for an impossible level.

    std: divisor n or n - 1. ci: level of a bootstrap interval of the mean. test: paired by seed or by client, `against` a method
    or row, or where that is None the best of each setting.
    """

    std: Std = "population"
    ci: float | None = None
    test: Test | None = None
    against: str | None = None

    def __post_init__(self) -> None:
        if self.ci is not None and not 0 < self.ci < 1:
            raise UserError(f"--ci {self.ci:g} is not possible.", "It is the level of the interval, e.g. 0.95.")
        if self.against is not None and self.test is None:
            raise UserError("--against needs a test.", "Add --test wilcoxon, t or wilcoxon-clients.")


@dataclass(frozen=True)
class Comparison:
    """Two rows of a setting, paired by seed or by client.

    p is two-sided, `adjusted` after Holm over the comparisons of the setting.
    """

    against: str  # the row
    pairs: int
    p: float | None  # None: fewer than two pairs, or a t-test of differences that are all the same
    adjusted: float | None = None
    least: float = 0.0  # the smallest adjusted p that so many pairs could give beside the p of the other rows


def deviation(values: Sequence[float], kind: Std) -> float | None:
    """None for the sample std of one value."""
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


def paired(a: Values, b: Values, test: Test) -> tuple[float | None, int]:
    """(two-sided p, number of pairs) of values by seed or client.

    p is None for fewer than two pairs, and of a t-test where all differences are the same: without a spread there is no t.
    """
    d = differences(a, b)
    if len(d) < 2 or (test == "t" and np.ptp(d) == 0):
        return None, len(d)
    if not d.any():
        return 1.0, len(d)
    from scipy.stats import ttest_1samp, wilcoxon

    # SciPy drops zeros, too, but then approximates p beyond 13 pairs even if few of them differ.
    found = ttest_1samp(d, 0) if test == "t" else wilcoxon(d[d != 0])
    return float(found.pvalue), len(d)


def differences(a: Values, b: Values) -> npt.NDArray[np.float64]:
    """a - b where both have a value, in the order of the keys."""
    return np.array([a[key] - b[key] for key in sorted(a.keys() & b.keys())], dtype=np.float64).round(_DIGITS)


def by_client(a: Values, b: Values) -> tuple[Values, Values]:
    """Each client's mean over the seeds in which both rows tested it, since the seeds of a client are not independent pairs.

    a, b: by seed and client.
    """
    shared = sorted(a.keys() & b.keys())
    clients = {client for _, client in shared}
    found = [{client: float(np.mean([row[key] for key in shared if key[1] == client])) for client in clients} for row in (a, b)]
    return found[0], found[1]


def worst_tenth(values: Collection[float] | npt.NDArray[np.float64]) -> float:
    """The mean of the smallest tenth of the values, at least one."""
    return float(np.sort(np.asarray(values))[: -(-len(values) // 10)].mean())


def least_p(pairs: int, test: Test) -> float:
    """The smallest two-sided p for so many pairs: Wilcoxon's is 2 / 2^n, with one sign throughout."""
    return 0.0 if test == "t" else min(1.0, 2.0 ** (1 - pairs))


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down correction (1979), in the given order."""
    adjusted, running = [0.0] * len(p), 0.0
    for rank, k in enumerate(sorted(range(len(p)), key=lambda k: p[k])):
        running = max(running, min(1.0, (len(p) - rank) * p[k]))
        adjusted[k] = running
    return adjusted


def compare(values: Mapping[str, Values], against: str, test: Test) -> dict[str, Comparison]:
    """Tests each row of a setting against the row `against`, with Holm's correction over all rows.

    values: of each row by seed, for a test over the clients by seed and client.
    """
    pairs = {row: (own, values[against]) for row, own in values.items() if row != against}
    if test == OVER_CLIENTS:
        pairs = {row: by_client(*both) for row, both in pairs.items()}
    raw = {row: paired(*both, test) for row, both in pairs.items()}
    tested = {row: p for row, (p, _) in raw.items() if p is not None}
    corrected = dict(zip(tested, holm(list(tested.values())), strict=True))
    found = {}
    for row, (p, number) in raw.items():
        differing = int(np.count_nonzero(differences(*pairs[row])))  # Wilcoxon's test drops the other pairs
        extreme = {**tested, row: least_p(differing, test)}
        least = dict(zip(extreme, holm(list(extreme.values())), strict=True))[row]
        found[row] = Comparison(against, number, p, corrected.get(row), least)
    return found


def empty_tests(tested: Collection[Comparison], pairs: str) -> list[str]:
    """A note on the comparisons that could not have found a difference. pairs: what is paired, as "clients"."""
    if not (empty := [c for c in tested if c.least >= LEVEL]):
        return []
    return [
        f"Empty test in {len(empty)} of {len(tested)} comparisons: so few {pairs} that differ cannot give p < {LEVEL:g} "
        "after Holm."
    ]


def p_text(p: float) -> str:
    return f"{p:.3g}" if p >= 1e-10 else "<1e-10"  # below it is what rounding leaves


def notes(wanted: Statistics, counts: Collection[int], comparisons: Collection[Comparison]) -> list[str]:
    """A table's notes about its statistics, also where there are too few runs. counts: runs in each cell."""
    said = []
    if wanted.ci is not None:
        said.append(f"[low, high]: {100 * wanted.ci:g} % bootstrap interval of the mean (BCa, {_RESAMPLES} resamples).")
        if min(counts) < ENOUGH:
            said.append(f"With fewer than {ENOUGH} runs (fewest: {min(counts)}) a bootstrap interval is too narrow to rely on.")
    if wanted.test is None:
        return said
    clients = wanted.test == OVER_CLIENTS
    named = next((c.against for c in comparisons), wanted.against)
    whom = named if wanted.against else "the best of the setting"
    pairs = "clients" if clients else "seeds"
    how = f"{TITLES[wanted.test]} against {whom}, paired by {pairs[:-1]}"
    said.append(f"p: two-sided {how}, after Holm over the rows of a setting.")
    if clients:
        said.append(
            "Of a client counts the mean over the seeds that both methods have. SciPy's defaults: pairs without a difference are "
            "dropped, equal differences share their rank. median client: mean over runs of the median over the clients."
        )
    tested = [c for c in comparisons if c.p is not None]
    said += empty_tests(tested, pairs)
    if wanted.test == "t" and any(c.pairs < ENOUGH for c in tested):
        said.append(f"Fewer than {ENOUGH} pairs: the t-test rests on the normality of the differences alone.")
    if len(tested) < len(comparisons):
        said.append(f"p is missing where fewer than two {pairs} are paired, or a t-test has the same difference in every pair.")
    return said
