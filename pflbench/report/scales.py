"""Scales of axes that figures in print and on pages share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

DECADE = 10  # of the largest to the smallest: from here on a logarithmic axis tells more
MOST = 7  # ticks


@dataclass(frozen=True)
class CostScale:
    """An axis for costs that are not all 0: logarithmic, with round numbers as ticks.

    low: the smallest cost above 0. nothing: where on a logarithmic axis 0 stands, None where everything costs something.
    end: of the axis.
    """

    low: float
    nothing: float | None
    ticks: tuple[float, ...]
    end: float

    def place(self, cost: float) -> float:
        """Where a cost stands on a logarithmic axis."""
        return self.nothing if cost == 0 and self.nothing is not None else cost


def of_costs(costs: Sequence[float]) -> CostScale | None:
    """None where nothing costs anything: there are no decades."""
    some = [cost for cost in costs if cost > 0]
    if not some:
        return None
    low, high = min(some), max(some)
    free = min(costs) == 0
    ticks = _round_numbers(low / 1.5, 1.5 * high, 3 - free)
    # As far below the smallest cost as on paper, whose axis is linear for half a decade.
    return CostScale(low, low / 2 / math.sqrt(10) if free else None, ticks, 1.5 * high)


@dataclass(frozen=True)
class LossScale:
    """A logarithmic axis from low to end with round numbers as ticks."""

    low: float
    ticks: tuple[float, ...]
    end: float


def of_losses(losses: Sequence[float]) -> LossScale | None:
    """None where a linear axis shows them as well: where they do not span a decade, or one is 0."""
    if min(losses, default=0) <= 0 or max(losses) < DECADE * min(losses):
        return None
    low, end = min(losses) / 1.3, max(losses) * 1.3
    ticks = _round_numbers(low, end, 3)
    return LossScale(low, ticks[:: -(-len(ticks) // MOST)], end)


def _round_numbers(low: float, high: float, fewest: int) -> tuple[float, ...]:
    """Ticks of a logarithmic axis: powers of ten, or more of them where these are few."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        ticks = tuple(tick for decade in decades for step in steps if low <= (tick := step * 10.0**decade) <= high)
        if len(ticks) >= fewest:
            break
    return ticks
