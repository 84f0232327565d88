"""Two stored measurements, arm by arm: is the second faster, or is the difference noise?

Noise is what the rounds of a measurement show. A machine that is busier in one of the two is none of it: the ceilings, measured
beside the rounds, tell of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import numpy as np

from pflbench.errors import UserError
from pflbench.store.measurements import Arm, Measurement

LEVEL = 0.95
# With fewer, an interval from resampling them is too narrow: of two samples of one distribution, more than 5 % would differ.
FEWEST = 5
MACHINE = ("processor", "cores", "torch_threads")
DRIFT = 0.1  # by more than that share the ceilings differ only if the machine itself was not equally fast
_RESAMPLES = 9999

Verdict = Literal["faster", "slower", "no difference", "too few rounds"]


@dataclass(frozen=True)
class ArmComparison:
    """One arm in both.

    speedup: the first measurement's median round over the second's. low, high: its interval, None for too few rounds.
    """

    method: str
    engine: str
    before: float
    after: float
    speedup: float
    low: float | None
    high: float | None
    verdict: Verdict

    @property
    def text(self) -> str:
        """The verdict in words."""
        if self.low is None or self.high is None:
            return "too few rounds to tell"
        if self.verdict == "no difference":
            return f"no difference within noise ({self.low:.2f}-{self.high:.2f})"
        if self.verdict == "slower":
            return f"slower {1 / self.speedup:.2f}x ({1 / self.high:.2f}-{1 / self.low:.2f})"
        return f"faster {self.speedup:.2f}x ({self.low:.2f}-{self.high:.2f})"


def compare(before: Measurement, after: Measurement) -> list[ArmComparison]:
    """The arms that both have. Raises UserError if there are none, or the two did not measure the same work."""
    differing = [name for name in before.setting if before.setting[name] != after.setting.get(name)]
    if differing:
        told = ", ".join(f"{name} {before.setting[name]} and {after.setting.get(name)}" for name in differing)
        raise UserError(f"Measurements {before.id} and {after.id} are not of the same work: {told}.")
    both = _pairs(before, after)
    if not both:
        raise UserError(f"Measurements {before.id} and {after.id} have no method and executor in common.")
    return [_comparison(*pair) for pair in both]


def warnings(before: Measurement, after: Measurement) -> Iterator[str]:
    """What else differs between the two than the code."""
    machine: dict[str, tuple[Any, Any]] = {"device": (before.device, after.device)}
    machine |= {name: (before.environment.get(name), after.environment.get(name)) for name in MACHINE}
    told = [f"{name} {first} and {second}" for name, (first, second) in machine.items() if first != second]
    if told:
        yield f"The machines differ: {', '.join(told)}."
    torch = [measurement.environment.get("packages", {}).get("torch") for measurement in (before, after)]
    if torch[0] != torch[1]:
        yield f"PyTorch differs: {torch[0]} and {torch[1]}."
    for name, unit in (("flops", "GFLOP/s in the matrix product"), ("bandwidth", "GB/s in the copy")):
        slower, faster = (value / 1e9 for value in sorted(m.ceilings[name] or 0.0 for m in (before, after)))
        if faster > (1 + DRIFT) * slower:
            yield f"The machine itself was not equally fast ({slower:,.3g} and {faster:,.3g} {unit}): that is in the differences."
    for one, other in _pairs(before, after):
        if one.spec["method"] != other.spec["method"]:
            yield f"{one.method} on {one.engine} has other hyperparameters or another version."


def _pairs(before: Measurement, after: Measurement) -> list[tuple[Arm, Arm]]:
    """The arms that both have."""
    later = {(arm.method, arm.engine): arm for arm in after.arms}
    return [(arm, later[arm.method, arm.engine]) for arm in before.arms if (arm.method, arm.engine) in later]


def _comparison(before: Arm, after: Arm) -> ArmComparison:
    a, b = before.rounds(), after.rounds()
    speedup = median(a) / median(b)
    if min(len(a), len(b)) < FEWEST:
        return ArmComparison(before.method, before.engine, median(a), median(b), speedup, None, None, "too few rounds")
    low, high = interval(a, b)
    verdict: Verdict = "faster" if low > 1 else "slower" if high < 1 else "no difference"
    return ArmComparison(before.method, before.engine, median(a), median(b), speedup, low, high, verdict)


def interval(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """Percentile bootstrap of median(a) / median(b), 95 %. The resamples are the same in every call."""
    from scipy.stats import bootstrap

    found = bootstrap(
        (np.asarray(a), np.asarray(b)),
        _ratio,
        confidence_level=LEVEL,
        n_resamples=_RESAMPLES,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(0),
    ).confidence_interval
    return float(found.low), float(found.high)


def _ratio(a: Any, b: Any, axis: int) -> Any:
    return np.median(a, axis=axis) / np.median(b, axis=axis)
