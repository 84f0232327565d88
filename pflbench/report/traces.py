"""What a figure shows, without a word of how it is drawn: `render` draws it in print, `web` on a page."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pflbench.report import labels
from pflbench.report.arrangement import Arranged, SharedSetting
from pflbench.report.looks import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Values = Sequence[float] | np.ndarray[Any, Any]
Draws = Literal["lines", "markers", "lines+markers"]

GREY = "#888888"
PALE = 0.18  # opacity of a band
DECADE = 10  # of the largest to the smallest loss: from here on a logarithmic axis tells more
MOST = 7  # its ticks
FEW = 4  # ticks of an axis for costs: figures of costs stand side by side
BESIDE = 0.12  # of an axis for a few values, at both ends


@dataclass(frozen=True)
class Trace:
    """A line, or points that look alike.

    label: its entry in the legend, one for equal labels, "" for none. Without points it is an entry alone.
    low, high: a band around y or, with `bars`, a bar at each point. steps: y holds until the next x.
    aside: how far it is moved to the right in print, in points, so that bars at the same x stand side by side.
    width, size: of line and marker, in points of print. every: where the markers are, as (first, step).
    hover: the text at a point of a page, a template of Plotly's; `data` has a row for each point, its `customdata`.
    group: traces that a click on a page's legend shows and hides together; by default those with the same label.
    """

    x: Values
    y: Values
    look: Look
    label: str = ""
    draws: Draws = "lines+markers"
    low: Values | None = None
    high: Values | None = None
    bars: bool = False
    steps: bool = False
    aside: float = 0.0
    width: float = 1.1
    size: float = 3.5
    opacity: float = 1.0
    every: tuple[int, int] | None = None
    hover: str = ""
    data: Sequence[Sequence[Any]] = ()
    group: str = ""


@dataclass(frozen=True)
class Axis:
    """ticks: where they are, and their texts. whole: ticks at whole numbers only, as for rounds. zero: it begins at 0.

    nothing: where 0 stands on a logarithmic axis, None where there is no 0.
    """

    label: str
    log: bool = False
    limits: tuple[float, float] | None = None
    ticks: Mapping[float, str] | None = None
    whole: bool = False
    zero: bool = False
    nothing: float | None = None
    grid: bool = True

    @property
    def text(self) -> str:
        """The label, with the scale if it is logarithmic."""
        return f"{self.label}, log scale" if self.log else self.label


@dataclass(frozen=True)
class Panel:
    """One pair of axes in print, one figure on a page, where `title` is unlike those of the other panels.

    height: on a page, in pixels. draw: what traces cannot say, in print.
    """

    title: str
    x: Axis
    y: Axis
    traces: Sequence[Trace] = ()
    runs: tuple[int, ...] = ()
    settings: tuple[SharedSetting, ...] = ()
    height: int = 400
    draw: Callable[[Axes], object] | None = field(default=None, compare=False)

    @property
    def quantity(self) -> tuple[str, ...]:
        """What the y axis shows, and on which data: accuracies on different datasets are different quantities."""
        return self.y.label, *sorted({labels.dataset_title(setting.spec) for setting in self.settings})


def axis_at_values(label: str, values: Iterable[float]) -> Axis:
    """A logarithmic axis with ticks at these values and nowhere else, and room for bars beside the first and the last."""
    ticks = _texts(sorted(values))
    low, high = min(ticks), max(ticks)
    beside = (high / low) ** BESIDE
    return Axis(label, log=True, limits=(low / beside, high * beside), ticks=ticks)


def loss_axis(label: str, losses: Sequence[float], *, zero: bool = False) -> Axis:
    """An axis for losses: logarithmic where they span a decade and none is 0. zero: whether a linear one begins at 0."""
    if min(losses, default=0) <= 0 or max(losses) < DECADE * min(losses):
        return Axis(label, zero=zero)
    limits = min(losses) / 1.3, max(losses) * 1.3
    ticks = _round_numbers(*limits, 3)
    return Axis(label, log=True, limits=limits, ticks=_texts(_few(ticks, MOST)))


def with_one_loss_axis(panels: Sequence[Panel], *, zero: bool = False) -> list[Panel]:
    """Panels of losses with one y axis for all of the same quantity."""
    losses: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for panel in panels:
        losses[panel.quantity] += [loss for trace in panel.traces for loss in trace.y]
    return [replace(panel, y=loss_axis(panel.y.label, losses[panel.quantity], zero=zero)) for panel in panels]


def cost_axis(label: str, costs: Sequence[float]) -> Axis:
    """An axis for costs: logarithmic with round numbers, and with a place for 0 where something costs nothing."""
    some = [cost for cost in costs if cost > 0]
    if not some:
        return Axis(label, limits=(-0.05, 1))
    low, end, free = min(some), 1.5 * max(some), min(costs) == 0
    ticks = _texts(_few(_round_numbers(low / 1.5, end, 3 - free), FEW))
    if not free:
        return Axis(label, log=True, limits=(low / 1.5, end), ticks=ticks)
    # As far below the smallest cost as in print, whose axis is linear for half a decade.
    nothing = low / 2 / math.sqrt(10)
    return Axis(label, log=True, limits=(nothing / 1.5, end), ticks={0.0: "0"} | ticks, nothing=nothing)


def _texts(ticks: Iterable[float]) -> dict[float, str]:
    return {tick: f"{tick:g}" for tick in ticks}


def _few(ticks: Sequence[float], most: int) -> Sequence[float]:
    """All ticks, or every second, third, ... of them: at most so many."""
    return ticks[:: -(-len(ticks) // most)]


def _round_numbers(low: float, high: float, fewest: int) -> tuple[float, ...]:
    """Ticks of a logarithmic axis: powers of ten, or more of them where these are few."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        ticks = tuple(tick for decade in decades for step in steps if low <= (tick := step * 10.0**decade) <= high)
        if len(ticks) >= fewest:
            break
    return ticks


def lettered(titles: Sequence[str]) -> str:
    """'(a) MNIST; (b) Cifar10', as the panels are called; one has no letter."""
    return "; ".join(with_letters(titles))


def with_letters(titles: Sequence[str]) -> list[str]:
    """['(a) MNIST', '(b) Cifar10'], after (z) comes (aa); one has no letter."""
    letters = [first + second for first in ("", *ascii_lowercase) for second in ascii_lowercase]
    return [f"({of}) {title}".rstrip() for of, title in zip(letters, titles, strict=False)] if len(titles) > 1 else list(titles)


def run_numbers(runs: Sequence[int]) -> str:
    return f"run{'s' * (len(runs) != 1)} {', '.join(map(str, runs))}"


def not_drawn(found: Arranged, drawn: int) -> tuple[str, ...]:
    """A note where not all settings are drawn."""
    if drawn == len(found.settings):
        return ()
    most = "setting" if drawn == 1 else f"{drawn} settings"
    return (f"Drawn: the {most} with the most runs, of {len(found.settings)}. Choose with --dataset and --partition.",)
