"""How figures are written, and what they have in common. Sizes are in inches at print size: 3.3 is a column, 6.9 a page."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pflbench.errors import UserError, unknown
from pflbench.report import scales

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN, PAGE = 3.3, 6.9
DPI = 300
# Unasked, a figure has few panels and is quick; what is chosen by name is drawn as long as it fits on a page.
PANELS_UNASKED, PANELS_CHOSEN = 4, 12
SUFFIXES = (".png", ".pdf", ".svg")
FRONT: dict[str, Any] = {"color": "#888888", "linestyle": "-", "linewidth": 0.8}
_RC: dict[Any, Any] = {
    "font.size": 7,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "axes.titley": 1.0,  # where it would be anyway, without a measurement of all ticks
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.4,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.5,
    "legend.frameon": False,
    "legend.handlelength": 2.8,
    "svg.fonttype": "none",
    "svg.hashsalt": "pflbench",
    "pdf.fonttype": 42,
}


@dataclass(frozen=True)
class Drawing:
    """A figure, what to write under it, and what the person who asked for it should know (not part of the figure)."""

    figure: Figure
    caption: str
    notes: tuple[str, ...] = field(default=())
    runs: tuple[int, ...] = ()  # the numbers of the runs it shows
    protocol: str = ""  # what these runs have in common

    def save(self, path: Path, provenance: str = "") -> None:
        """PNG (300 dpi), PDF or SVG by suffix, with the caption and where it comes from in the file's metadata.

        Caption, protocol, notes and provenance are written beside it too: FIGURE.caption.txt. Another suffix is a UserError.
        """
        suffix = path.suffix.lower()
        if suffix not in SUFFIXES:
            raise unknown("figure format", path.suffix or path.name, SUFFIXES)
        entry = {".png": "Description", ".pdf": "Subject", ".svg": "Description"}[suffix]
        # No time stamp: the same runs give the same file.
        fixed: dict[str, Any] = {".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}[suffix]
        # Compressing harder takes longer than everything else and saves a tenth.
        fast: dict[str, Any] = {"pil_kwargs": {"compress_level": 1}} if suffix == ".png" else {}
        try:
            with context():
                self.figure.savefig(path, metadata={entry: f"{self.caption} {provenance}".strip(), **fixed}, **fast)
            said = (self.caption, self.protocol, *self.notes, provenance)
            path.with_suffix(".caption.txt").write_text("".join(f"{line}\n" for line in said if line), encoding="utf-8")
        except OSError as error:
            raise UserError(
                f"Cannot write the figure {path}: {error.strerror or error}.",
                "Give a file in a writable folder with -o.",
            ) from None


@contextmanager
def context() -> Iterator[None]:
    """Matplotlib with our settings, restored afterwards. Figures are made without pyplot: nothing is shown or kept."""
    os.environ.setdefault("MPLBACKEND", "agg")
    import matplotlib

    with matplotlib.rc_context(_RC):
        yield


def legend(texts: Sequence[str], width: float) -> tuple[list[str], int, float]:
    """For a legend of these entries in `width` inches: the texts, wrapped where need be, the columns, the height."""
    # At 7 pt: 0.56 inches for the handle and the space to the next column, 0.064 for a letter, 0.15 for a line.
    wrapped = [textwrap.fill(text, int((width - 0.56) / 0.064)) for text in texts]
    for columns in range(len(texts), 0, -1):
        long, more = divmod(len(texts), columns)  # column by column, the first ones one longer, as Matplotlib does
        ends = [(k + 1) * long + min(k + 1, more) for k in range(columns)]
        filled = [wrapped[a:b] for a, b in zip([0, *ends], ends, strict=False)]
        letters = [max(len(line) for text in column for line in text.splitlines()) for column in filled]
        if sum(0.56 + 0.064 * n for n in letters) <= width:
            break
    return wrapped, columns, 0.15 * max(sum(1 + text.count("\n") for text in column) for column in filled)


def shades(count: int, start: float = 0.0, stop: float = 0.85) -> list[str]:
    """Colours for a sequence, as that of rounds: from dark to light, ordered in grey print and for colour-blind eyes too.

    start, stop: which part of the scale, of 0 to 1.
    """
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps["viridis"](start + (stop - start) * k / max(1, count - 1))) for k in range(count)]


def values(ax: Axes, of: Sequence[float]) -> None:
    """A logarithmic x axis with ticks at these values and nowhere else."""
    ax.set_xscale("log")
    ax.set_xticks(sorted(of), [f"{value:g}" for value in sorted(of)])
    ax.set_xticks([], minor=True)
    ax.margins(x=0.06)


def costs(ax: Axes, of: Sequence[float]) -> None:
    """An x axis for costs: logarithmic with round numbers, and with a place for 0 where something costs nothing."""
    scale = scales.of_costs(of)
    if scale is None:
        ax.set_xlim(-0.05, 1)
        return
    free = scale.nothing is not None
    if free:
        ax.set_xscale("symlog", linthresh=scale.low / 2, linscale=0.5)
    else:
        ax.set_xscale("log")
    ax.set_xticks([0.0] * free + [*scale.ticks], ["0"] * free + [f"{tick:g}" for tick in scale.ticks])
    ax.set_xticks([], minor=True)
    ax.set_xlim(-scale.low / 8 if free else scale.low / 1.5, scale.end)


def key(figure: Figure, looks: Sequence[dict[str, Any]], texts: Sequence[str], columns: int) -> None:
    """The figure's legend, below its panels, of what `legend` has made of the texts."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=text, **look) for text, look in zip(texts, looks, strict=True)]
    figure.legend(handles=handles, loc="lower center", ncols=columns, borderaxespad=0.3)


def grid(
    panels: int,
    columns: int,
    width: float,
    height: float,
    *,
    titles: int,
    below: float,
    left: float = 0.54,
    right: float = 0.14,
    gap: float = 0.44,
) -> tuple[Figure, list[Axes]]:
    """An empty figure of `panels` panels in rows of `columns`, without pyplot, on the Agg canvas; sizes in inches.

    `width` is the figure's, `height` a panel's axes'; `titles` is the number of lines of the longest title, `below` the
    room for a legend. Margins are known from the text sizes: letting Matplotlib find them doubles the time of a figure.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = -(-panels // columns)
    top, bottom = 0.08 + 0.13 * titles, 0.4 + below
    between = top + 0.2
    total = top + rows * height + (rows - 1) * between + bottom
    each = (width - left - right - (columns - 1) * gap) / columns
    figure = Figure(figsize=(width, total), dpi=DPI)
    FigureCanvasAgg(figure)
    axes = []
    for k in range(panels):
        row, column = divmod(k, columns)
        x = left + column * (each + gap)
        y = bottom + (rows - 1 - row) * (height + between)
        axes.append(figure.add_axes((x / width, y / total, each / width, height / total)))
    return figure, axes
