"""Panels of traces on a page: figures of plotly.js as plain JSON, that look as those in print do.

Colours of text, grid and background are the page's, which knows whether it is light or dark; those here are legible on both.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pflbench.errors import UserError
from pflbench.report import looks
from pflbench.report.arrangement import protocol
from pflbench.report.traces import PALE, Axis, Panel, Trace

Json = dict[str, Any]
T = TypeVar("T")
U = TypeVar("U")

FEW = 12  # whole numbers that all have room on an axis
DIGITS = 6  # of a number: more cannot be seen, and makes pages large
PIXELS = 2  # to a point of print
# As on paper, but for the black that a dark page would swallow.
COLOURS = {"#000000": "#767676"}
SYMBOLS = {
    "o": "circle",
    "s": "square",
    "^": "triangle-up",
    "D": "diamond",
    "v": "triangle-down",
    "P": "cross",
    "X": "x",
    "<": "triangle-left",
    ">": "triangle-right",
    "|": "line-ns-open",
    "*": "star",
}
OPEN = 1.5  # pixels, of the edge of a marker that is not filled
FILLS = ("", "-dot", "-open", "-open-dot")  # as those of `looks`
SHADES = (0.33, 0.72)  # the part of the scale that is neither too dark for a dark page nor too light for a light one


@dataclass(frozen=True)
class Interactive:
    """A figure for a page. id: a slug, unique on the page; runs: the numbers of those it shows; spec: {"data", "layout"}."""

    id: str
    title: str
    caption: str
    notes: tuple[str, ...]
    runs: tuple[int, ...]
    spec: Json


def figure(
    name: str, panel: Panel, caption: str, notes: Iterable[str] = (), *, data: Sequence[Json] = (), **layout: Any
) -> Interactive:
    """A panel as a figure. name: of the kind of figure; with the title it makes the id.

    data: what traces cannot say, as Plotly has it. It lies below the traces. layout: the same.
    """
    bands = [_band(trace) for trace in panel.traces if trace.low is not None and not trace.bars]
    spec = {
        "data": [*data, *bands, *(_trace(trace, panel.x) for trace in panel.traces)],
        "layout": _layout(panel) | layout,
    }
    said = f"{caption} {protocol(panel.settings)}" if panel.settings else caption
    return Interactive(slug(name, panel.title), panel.title, said, tuple(notes), tuple(sorted(set(panel.runs))), spec)


def slug(*texts: str) -> str:
    """'curves', 'MNIST, Dir(0.1)' -> 'curves-mnist-dir-0-1'."""
    return "-".join(filter(None, (re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") for text in texts)))


def possible(items: Iterable[T], of: Callable[[T], U]) -> tuple[list[U], tuple[str, ...]]:
    """What `of` makes of each item, and a note for each item for which the database lacks something."""
    made, left_out = [], []
    for item in items:
        try:
            made.append(of(item))
        except UserError as error:
            reraise_database_error(error)
            left_out.append(f"Left out: {error.message}")
    return made, tuple(left_out)


def reraise_database_error(error: UserError) -> None:
    """Raises it again where the database could not be read: such an error has a cause, one about its content has none."""
    if error.__cause__ is not None:
        raise error


def numbers(values: Iterable[float]) -> list[float | None]:
    """Numbers as JSON has them: whole ones without a fraction, None for what is not finite."""
    return [_number(float(value)) for value in values]


def _number(value: float) -> float | None:
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() else float(f"{value:.{DIGITS}g}")


def text(label: str) -> str:
    """Plotly reads a part of HTML in every text."""
    return html.escape(label, quote=False).replace("\n", "<br>")


def _trace(trace: Trace, across: Axis) -> Json:
    colour = legible(trace.look.colour)
    dash = ",".join(f"{PIXELS * length:g}px" for length in looks.dashes(trace.look.dash)) or "solid"
    symbol, size = SYMBOLS[trace.look.marker] + FILLS[trace.look.fill], PIXELS * trace.size
    made: Json = {
        "type": "scatter",
        "mode": trace.draws,
        "name": text(trace.label),
        # Entries in groups stand line by line, others in columns as wide as the longest.
        "legendgroup": trace.group or trace.label,
        "showlegend": bool(trace.label),
        "x": numbers(across.nothing if x == 0 and across.nothing else x for x in trace.x) or [None],
        "y": numbers(trace.y) or [None],
    }
    if "lines" in trace.draws:
        drawn = colour if trace.opacity == 1 else faint(colour, trace.opacity)
        made["line"] = {"color": drawn, "width": PIXELS * trace.width} | ({"shape": "hv"} if trace.steps else {"dash": dash})
    if "markers" in trace.draws:
        few = {} if trace.every is None else {"maxdisplayed": 8}
        made["marker"] = {"color": colour, "symbol": symbol, "size": size, "line": {"width": OPEN * ("open" in symbol)}} | few
    if trace.bars and trace.low is not None and trace.high is not None:
        made["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": numbers(high - y for high, y in zip(trace.high, trace.y, strict=True)),
            "arrayminus": numbers(y - low for low, y in zip(trace.low, trace.y, strict=True)),
            "thickness": 1.2,
            "width": 0,
        }
    if not trace.hover:
        return made | {"hoverinfo": "skip"}
    named = f"<b>{text(trace.label)}</b><br>" if trace.label else ""
    data = [[text(value) if isinstance(value, str) else _number(float(value)) for value in row] for row in trace.data]
    return made | {"hovertemplate": f"{named}{trace.hover}<extra></extra>", "customdata": data}


def _band(trace: Trace) -> Json:
    """Along the lowest values and back along the highest."""
    assert trace.low is not None
    assert trace.high is not None
    return {
        "type": "scatter",
        "mode": "lines",
        "name": text(trace.label),
        "legendgroup": trace.group or trace.label,
        "showlegend": False,
        "hoverinfo": "skip",
        "x": numbers([*trace.x, *trace.x[::-1]]),
        "y": numbers([*trace.low, *trace.high[::-1]]),
        "fill": "toself",
        "fillcolor": faint(legible(trace.look.colour)),
        "line": {"width": 0},
    }


def legible(printed: str) -> str:
    """The colour that is in print, or the one in its place."""
    return COLOURS.get(printed, printed)


def faint(colour: str, opacity: float = PALE) -> str:
    """'#0072B2' -> 'rgba(0,114,178,0.18)'."""
    red, green, blue = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"


def _axis(axis: Axis, largest: float) -> Json:
    """largest: of the numbers on it."""
    made: Json = {"title": {"text": axis.text}, "automargin": True, "zeroline": False}
    if axis.whole or axis.zero:
        made["rangemode"] = "tozero"
    if axis.whole and largest <= FEW:
        made["dtick"] = 1
    if axis.log:
        made["type"] = "log"
    if axis.limits is not None:
        made["range"] = [math.log10(limit) for limit in axis.limits] if axis.log else list(axis.limits)
    if axis.ticks is not None:
        at = numbers(axis.nothing if tick == 0 and axis.nothing else tick for tick in axis.ticks)
        made |= {"tickmode": "array", "tickvals": at, "ticktext": list(map(text, axis.ticks.values()))}
    return made if axis.grid else made | {"showgrid": False}


def _layout(panel: Panel) -> Json:
    """The height is without the legend below the axes: the page makes a figure as much higher as that needs."""
    return {
        "height": panel.height,
        "margin": {"l": 64, "r": 16, "t": 8, "b": 52},
        "hovermode": "closest",
        "showlegend": any(trace.label for trace in panel.traces),
        "legend": {"orientation": "h", "x": 0, "xref": "container", "y": 0, "yref": "container", "yanchor": "bottom"},
        "xaxis": _axis(panel.x, max((x for trace in panel.traces for x in trace.x), default=0)),
        "yaxis": _axis(panel.y, max((y for trace in panel.traces for y in trace.y), default=0)),
    }
