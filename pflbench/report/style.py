"""How figures are written, and what their axes have in common."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pflbench.errors import unknown
from pflbench.plain import printable
from pflbench.report import layout, scales
from pflbench.report.layout import PrintPage
from pflbench.store.files import replacing, write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Unasked, a figure has few panels and is quick; what is chosen by name is drawn as long as it fits on a page.
PANELS_UNASKED, PANELS_CHOSEN = 4, 12
SUFFIXES = (".png", ".pdf", ".svg")
FRONT: dict[str, Any] = {"color": "#888888", "linestyle": "-", "linewidth": 0.8}
_RC: dict[Any, Any] = {
    "axes.titlepad": 4,
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
    "legend.handlelength": 3.2,
    "legend.columnspacing": 1.2,
    "text.parse_math": False,  # a dollar is one, in names from databases too
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
    page: PrintPage = field(default_factory=layout.page)

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
        from matplotlib.text import Text

        for text in self.figure.findobj(Text):
            text.set_text(printable(text.get_text()))
        with layout.on(self.page), context(), replacing(path) as out:
            self.figure.savefig(out, format=suffix[1:], metadata=metadata, **fast)
        said = (self.caption, self.protocol, *self.notes, provenance)
        write_text(path.with_suffix(".caption.txt"), "".join(f"{line}\n" for line in said if line))


@contextmanager
def context() -> Iterator[None]:
    """Matplotlib with our settings, restored afterwards. Figures are made without pyplot: nothing is shown or kept."""
    os.environ.setdefault("MPLBACKEND", "agg")
    import matplotlib

    size = layout.page().font_size
    with matplotlib.rc_context({**_RC, "font.size": size, "axes.titlesize": size * 8 / 7, "axes.labelsize": size * 8 / 7}):
        yield


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


def losses(ax: Axes, of: Sequence[float]) -> None:
    """A y axis for losses: logarithmic where they span decades."""
    if (scale := scales.of_losses(of)) is None:
        return
    ax.set_yscale("log")
    ax.set_yticks(scale.ticks, [f"{tick:g}" for tick in scale.ticks])
    ax.set_yticks([], minor=True)
    ax.set_ylim(scale.low, scale.end)


def whole(axis: Axis) -> None:
    """Ticks at whole numbers only, as for rounds, clients and epochs."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins="auto", steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
