"""What interactive figures have in common: plotly.js figures as plain JSON that look alike, and like those in print.

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
from pflbench.report import looks, scales
from pflbench.report.arrangement import Row

Json = dict[str, Any]
T = TypeVar("T")
U = TypeVar("U")

CLEAR = "rgba(0,0,0,0)"
GREY = "#888888"
BAND = 0.18  # opacity
FEW = 12  # whole numbers that all have room on an axis
HEIGHT = 400  # pixels
DIGITS = 6  # of a number: more cannot be seen, and makes pages large
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
}
DASHES = {"-": "solid", "--": "dash", "-.": "dashdot", ":": "dot"}
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

    @property
    def height(self) -> int:
        """In pixels."""
        return int(self.spec["layout"]["height"])


def make(
    name: str,
    title: str,
    caption: str,
    data: Sequence[Json],
    layout: Json,
    *,
    notes: Iterable[str] = (),
    runs: Iterable[int] = (),
) -> Interactive:
    """name: of the kind of figure; with the title it makes the id."""
    spec = {"data": list(data), "layout": layout}
    return Interactive(slug(name, title), title, caption, tuple(notes), tuple(sorted(set(runs))), spec)


def slug(*texts: str) -> str:
    """'curves', 'MNIST, Dir(0.1)' -> 'curves-mnist-dir-0-1'."""
    return "-".join(filter(None, (re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") for text in texts)))


def possible(items: Iterable[T], of: Callable[[T], U]) -> tuple[list[U], tuple[str, ...]]:
    """What can be made of these; and in words what could not, because the database has not what it takes."""
    made, left_out = [], []
    for item in items:
        try:
            made.append(of(item))
        except UserError as error:
            unless_absent(error)
            left_out.append(f"Left out: {error.message}")
    return made, tuple(left_out)


def unless_absent(error: UserError) -> None:
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
    return html.escape(label, quote=False)


def without_unit(label: str) -> str:
    """'Training time (s)' -> 'training time'."""
    return label.partition(" (")[0].lower()


def of_runs(runs: Sequence[int]) -> str:
    return f"run{'s' * (len(runs) != 1)} {', '.join(map(str, runs))}"


def colour(row: Row) -> str:
    return _legible(row.look.colour)


def colour_of(method: str) -> str:
    return _legible(looks.of(method).colour)


def _legible(printed: str) -> str:
    return COLOURS.get(printed, printed)


def symbol(row: Row) -> str:
    return SYMBOLS[row.look.marker]


def point_symbol(row: Row) -> str:
    """With what a variant, or ALA plugged in, changes: how the marker is filled."""
    return symbol(row) + FILLS[row.look.fill]


def line(row: Row) -> Json:
    """Colour, marker and dashes of a method, as parts of a trace."""
    # Plotly takes pixels, not widths of the line.
    dash = ",".join(f"{2 * length:g}px" for length in looks.dashes(row.look.dash)) or "solid"
    return {
        "mode": "lines+markers",
        "line": {"color": colour(row), "dash": dash, "width": 2},
        "marker": {"color": colour(row), "symbol": point_symbol(row), "size": 7},
    }


def faint(colour: str, opacity: float = BAND) -> str:
    """'#0072B2' -> 'rgba(0,114,178,0.18)'."""
    red, green, blue = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"


def axis(title: str, **more: Any) -> Json:
    return {"title": {"text": title}, "automargin": True, "zeroline": False, **more}


def whole(title: str, largest: int, **more: Any) -> Json:
    """An axis of whole numbers up to this one, as rounds and clients: without ticks between them."""
    return axis(title, **({"dtick": 1} if largest <= FEW else {}), **more)


def losses(title: str, of: Sequence[float], **linear: Any) -> Json:
    """An axis for losses: logarithmic where it is in print, otherwise with what `linear` says."""
    if (scale := scales.of_losses(of)) is None:
        return axis(title, **linear)
    span = [math.log10(scale.low), math.log10(scale.end)]
    return axis(title, type="log", range=span, tickvals=numbers(scale.ticks), ticktext=[f"{tick:g}" for tick in scale.ticks])


def layout(x: Json, y: Json, *, legend: bool = False, height: int = HEIGHT, **more: Any) -> Json:
    """height: in pixels, without the legend below the axes: the page makes a figure as much higher as that needs."""
    below = {"orientation": "h", "x": 0, "xref": "container", "y": 0, "yref": "container", "yanchor": "bottom"}
    return {
        "height": height,
        "autosize": True,
        "margin": {"l": 64, "r": 16, "t": 8, "b": 52},
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "hovermode": "closest",
        "showlegend": legend,
        "legend": {**below, "bgcolor": CLEAR},
        "xaxis": x,
        "yaxis": y,
        **more,
    }
