"""One look for all figures: a method has the same colour and marker everywhere, and no two methods share both.

Colours are those of Okabe and Ito (Color Universal Design, 2008) without the yellow, which is too pale for a line on
paper. The markers tell methods apart where colours repeat, and in grey print. Sizes are in inches at print size: 3.3
is a column, 6.9 a page, text is 7 to 8 pt.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from pflbench.errors import UserError, unknown
from pflbench.report.labels import METHODS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN, PAGE = 3.3, 6.9
DPI = 300
# Unasked, a figure has few panels and is quick; what is chosen by name is drawn as long as it fits on a page.
PANELS_UNASKED, PANELS_CHOSEN = 4, 12
SUFFIXES = (".png", ".pdf", ".svg")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
LINES = ("-", "--", "-.", ":")
# The methods that are most often drawn together come first and have a colour of their own among themselves.
ORDER = tuple(dict.fromkeys(("fedala", "fedavg", "ditto", "local", "fedprox", "fedrep", "pfedme", *METHODS)))
_PAIRS = len(COLOURS) * len(MARKERS)  # all different, as 7 and 9 have no common factor

_RC: dict[Any, Any] = {
    "font.size": 7,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
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

    def save(self, path: Path, provenance: str = "") -> None:
        """PNG (300 dpi), PDF or SVG by suffix, with the caption and where it comes from in the file's metadata.

        Raises UserError for another suffix.
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
        except OSError as error:
            raise UserError(
                f"Cannot write the figure {path}: {error.strerror or error}.",
                "Give a file in a writable folder with -o.",
            ) from None


def method(name: str, variant: int = 0) -> dict[str, Any]:
    """Colour, marker and line style; `variant` counts lines of the same method and changes the line style only."""
    slot = _slot(name)
    return {
        "color": COLOURS[slot % len(COLOURS)],
        "marker": MARKERS[slot % len(MARKERS)],
        "linestyle": LINES[(slot // len(COLOURS) + variant) % len(LINES)],
    }


def _slot(name: str) -> int:
    """Listed methods by their place, others by their name alone: no other method's presence moves them."""
    if name in ORDER:
        return ORDER.index(name)
    return len(ORDER) + crc32(name.encode()) % (_PAIRS - len(ORDER))


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


def grid(panels: int, columns: int, width: float, height: float, *, titles: int, below: float) -> tuple[Figure, list[Axes]]:
    """An empty figure of `panels` panels in rows of `columns`, without pyplot, on the Agg canvas; sizes in inches.

    `width` is the figure's, `height` a panel's axes'; `titles` is the number of lines of the longest title, `below` the
    room for a legend. Margins are known from the text sizes: letting Matplotlib find them doubles the time of a figure.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = -(-panels // columns)
    left, right, gap, bottom = 0.54, 0.14, 0.44, 0.4 + below
    top = 0.08 + 0.13 * titles
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
