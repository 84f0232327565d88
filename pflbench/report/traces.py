"""What a figure shows, without a word of how it is drawn: `render` draws it in print, `web` on a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pflbench.report import scales
from pflbench.report.arrangement import Arranged, SharedSetting
from pflbench.report.looks import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Values = Sequence[float] | np.ndarray[Any, Any]
Draws = Literal["lines", "markers", "lines+markers"]

GREY = "#888888"
PALE = 0.18  # opacity of a band


@dataclass(frozen=True)
class Trace:
    """A line, or points that look alike.

    label: its entry in the legend, one for equal labels, "" for none. Without points it is an entry alone.
    low, high: a band around y or, with `bars`, a bar at each point. steps: y holds until the next x.
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
    draw: Callable[[Axes], None] | None = field(default=None, compare=False)


def at_values(label: str, values: Iterable[float]) -> Axis:
    """A logarithmic axis with ticks at these values and nowhere else."""
    return Axis(label, log=True, ticks={value: f"{value:g}" for value in sorted(values)})


def of_losses(label: str, losses: Sequence[float], *, zero: bool = False) -> Axis:
    """An axis for losses: logarithmic where they span decades. zero: whether a linear one begins at 0."""
    if (scale := scales.of_losses(losses)) is None:
        return Axis(label, zero=zero)
    return Axis(label, log=True, limits=(scale.low, scale.end), ticks={tick: f"{tick:g}" for tick in scale.ticks})


def of_costs(label: str, costs: Sequence[float]) -> Axis:
    """An axis for costs: logarithmic with round numbers, and with a place for 0 where something costs nothing."""
    if (scale := scales.of_costs(costs)) is None:
        return Axis(label, limits=(-0.05, 1))
    ticks = ({} if scale.nothing is None else {0.0: "0"}) | {tick: f"{tick:g}" for tick in scale.ticks}
    begin = scale.low if scale.nothing is None else scale.nothing
    return Axis(label, log=True, limits=(begin / 1.5, scale.end), ticks=ticks, nothing=scale.nothing)


def lettered(titles: Sequence[str]) -> str:
    """'(a) MNIST; (b) Cifar10', as the panels are called; one has no letter."""
    return "; ".join(with_letters(titles))


def with_letters(titles: Sequence[str]) -> list[str]:
    """['(a) MNIST', '(b) Cifar10']; one has no letter."""
    return [f"({chr(ord('a') + k)}) {title}".rstrip() for k, title in enumerate(titles)] if len(titles) > 1 else list(titles)


def of_runs(runs: Sequence[int]) -> str:
    return f"run{'s' * (len(runs) != 1)} {', '.join(map(str, runs))}"


def not_drawn(found: Arranged, drawn: int) -> tuple[str, ...]:
    """A note where not all settings are drawn."""
    if drawn == len(found.settings):
        return ()
    return (f"Drawn: the {drawn} settings with the most runs, of {len(found.settings)}. Choose with --dataset and --partition.",)
