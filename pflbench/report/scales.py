"""Scales of axes that figures in print and on pages share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


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
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        ticks = [tick for decade in decades for step in steps if low / 1.5 <= (tick := step * 10.0**decade) <= 1.5 * high]
        if len(ticks) + free > 2:
            break
    # As far below the smallest cost as on paper, whose axis is linear for half a decade.
    return CostScale(low, low / 2 / math.sqrt(10) if free else None, tuple(ticks), 1.5 * high)
