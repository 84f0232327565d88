"""The page of printed figures, their style, and writing them to files."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pflbench.errors import UserError, unknown
from pflbench.plain import printable
from pflbench.store.files import replacing, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Unasked, a figure has few panels and is quick; what is chosen by name is drawn as long as it fits on a page.
PANELS_UNASKED, PANELS_CHOSEN = 4, 12
SUFFIXES = (".png", ".pdf", ".svg")
COLUMN, PAGE = 3.3, 6.9  # inches
WIDTHS = {"one-column": COLUMN, "two-column": PAGE}
WIDEST = 40.0
FONT = 7.0  # points
DPI = 300
_RC: dict[Any, Any] = {
    "axes.titlepad": 4,
    "axes.titley": 1.0,  # where it would be anyway, without a measurement of all ticks
    "figure.constrained_layout.h_pad": 0.05,
    "figure.constrained_layout.w_pad": 0.05,
    "figure.constrained_layout.hspace": 0.02,
    "figure.constrained_layout.wspace": 0.02,
    "lines.solid_capstyle": "butt",
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.ymargin": 0.08,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.4,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.5,
    "legend.frameon": False,
    "legend.handlelength": 3.2,
    "legend.columnspacing": 1.2,
    "text.parse_math": False,  # a dollar is one, in names from databases too
    "svg.fonttype": "none",
    "svg.hashsalt": "pflbench",
    "pdf.fonttype": 42,
}


@dataclass(frozen=True)
class PrintPage:
    """Options of print. width: in inches; None for a column or a page, as the panels need. font_size: in points."""

    width: float | None = None
    font_size: float = FONT
    titles: bool = True
    legend: str = "auto"


def inches_of(text: str) -> float:
    """text: one-column, two-column or inches. Raises UserError for impossible widths."""
    if text in WIDTHS:
        return WIDTHS[text]
    try:
        inches = float(text)
    except ValueError:
        inches = math.nan
    if not 1 <= inches <= WIDEST:
        named = ", ".join(f"{name} ({inches:g} in)" for name, inches in WIDTHS.items())
        raise UserError(f"--width {text} is not possible.", f"Give {named} or inches, 1 to {WIDEST:g}.")
    return inches


_page: ContextVar[PrintPage] = ContextVar("page", default=PrintPage())  # noqa: B039


@contextmanager
def on(page: PrintPage) -> Iterator[None]:
    """Figures drawn inside are for this page."""
    before = _page.set(page)
    try:
        yield
    finally:
        _page.reset(before)


def page() -> PrintPage:
    return _page.get()


def scale() -> float:
    """Font size relative to the default."""
    return page().font_size / FONT


def small() -> float:
    """Font size in points of less important text, still legible in print."""
    return page().font_size * 6 / 7


@dataclass(frozen=True)
class Drawing:
    """A figure, its caption, and notes for the user that are not part of it."""

    figure: Figure
    caption: str
    notes: tuple[str, ...] = ()
    runs: tuple[int, ...] = ()  # the numbers of the runs it shows
    protocol: str = ""  # what these runs have in common
    page: PrintPage = field(default_factory=page)

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
        metadata = {entry: printable(f"{self.caption} {provenance}".strip()), **fixed}
        with on(self.page), context(), replacing(path) as out:
            self.figure.savefig(out, format=suffix[1:], metadata=metadata, **fast)
        said = (self.caption, self.protocol, *self.notes, provenance)
        write_text(path.with_suffix(".caption.txt"), "".join(f"{line}\n" for line in said if line))


@contextmanager
def context() -> Iterator[None]:
    """Matplotlib with our settings, restored afterwards. Without pyplot no figure is shown or kept."""
    os.environ.setdefault("MPLBACKEND", "agg")
    import matplotlib

    size = page().font_size
    with matplotlib.rc_context({**_RC, "font.size": size, "axes.titlesize": size * 8 / 7, "axes.labelsize": size * 8 / 7}):
        yield


def shades(rounds: Iterable[int], start: float = 0.0, stop: float = 0.85) -> dict[int, str]:
    """A colour for each round, from dark to light: ordered in grey print and for colour-blind eyes too.

    start, stop: which part of the scale, of 0 to 1.
    """
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    different = sorted(set(rounds))
    step = (stop - start) / max(1, len(different) - 1)
    return {t: to_hex(colormaps["viridis"](start + k * step)) for k, t in enumerate(different)}
