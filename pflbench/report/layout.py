"""How a figure is set on paper: width and text as asked for, panels and legend where there is room, nothing cut.

Sizes are in inches at print size. What texts take is measured, so that a figure of any width and font size fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pflbench.errors import UserError, unknown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

COLUMN, PAGE = 3.3, 6.9
WIDTHS = {"one-column": COLUMN, "two-column": PAGE}
WIDEST = 40.0
FONT, FONTS = 7.0, (4.0, 30.0)  # points
LEGENDS = ("auto", "inside", "right", "below", "none")
FEW = 8  # entries of a legend, above which it would hide data inside a panel
DPI = 300
EDGE, GAP = 0.05, 0.14  # around the figure, between panels
LEAST = 0.45  # of a panel
PASSES = 4
HIGHEST = 2.9  # of a panel that is high because it is wide
WHOLE = 3.6  # of a square one
LONGEST = 300  # characters of a name that are drawn
BESIDE = 0.28  # of the figure's width, for the texts of a legend beside the panels


@dataclass(frozen=True)
class PrintPage:
    """What was asked of the paper. width: None for a column or a page, as the panels need. font_size: in points."""

    width: float | None = None
    font_size: float = FONT
    titles: bool = True
    legend: str = "auto"

    @staticmethod
    def of(width: str | None, font_size: float, titles: bool, legend: str) -> PrintPage:
        """width: one-column, two-column or inches. Raises UserError for what cannot be."""
        if legend not in LEGENDS:
            raise unknown("place of a legend", legend, LEGENDS)
        if not FONTS[0] <= font_size <= FONTS[1]:
            raise UserError(f"--font-size {font_size:g} is not possible.", f"It is in points, {FONTS[0]:g} to {FONTS[1]:g}.")
        return PrintPage(None if width is None else _inches(width), font_size, titles, legend)


def _inches(text: str) -> float:
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
    """Figures that are drawn in here are for this page."""
    before = _page.set(page)
    try:
        yield
    finally:
        _page.reset(before)


def page() -> PrintPage:
    return _page.get()


def scale() -> float:
    """By what everything is larger that goes with the text."""
    return page().font_size / FONT


def small() -> float:
    """Points of what is less important: still legible in print where the text is."""
    return page().font_size * 6 / 7


def lettered(titles: Sequence[str]) -> str:
    """'(a) MNIST; (b) Cifar10', as the panels are called; one has no letter."""
    return "; ".join(map(_lettered, range(len(titles)), titles)) if len(titles) > 1 else "".join(titles)


def _lettered(k: int, title: str) -> str:
    return f"({chr(ord('a') + k)}) {title}"


class Sheet:
    """A figure in the making, without pyplot, on the Agg canvas: draw on its `axes`, name them, add a key, and `finish`.

    panels: in rows of at most `columns`, fewer where a row has not `cell` inches for each. measures: rows that belong
    together, as accuracy and time of the same settings: panels are given row by row. height: of a panel; `square`: as high
    as wide; else a wide panel is higher. width: if none was asked for.
    """

    def __init__(
        self,
        panels: int,
        columns: int,
        height: float,
        *,
        measures: int = 1,
        cell: float = 1.6,
        square: bool = False,
        fixed: bool = False,
        width: float | None = None,
    ) -> None:
        from matplotlib import rcParams
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.width = page().width or width or (COLUMN if columns == 1 else PAGE)
        self.columns = max(1, min(columns, int(self.width / cell)))
        self.height, self._square, self._fixed = height, square, fixed
        across = panels // measures
        self._cells = [
            (at // self.columns * measures + which, at % self.columns) for k in range(panels) for which, at in [divmod(k, across)]
        ]
        self.columns = min(self.columns, across)
        self._rows = 1 + max(row for row, _ in self._cells)
        self.figure: Figure = Figure(figsize=(self.width, self._rows * (height + 0.6)), dpi=DPI)
        FigureCanvasAgg(self.figure)
        for row, column in self._cells:
            low = 1 - (row + 0.8) / self._rows
            self.figure.add_axes(((column + 0.2) / self.columns, low, 0.75 / self.columns, 0.6 / self._rows))
        self.axes: list[Axes] = list(self.figure.axes)
        for ax in self.axes:
            # Matplotlib makes ticks when it draws, which may be under other settings.
            ax.tick_params(labelsize=page().font_size, length=rcParams["xtick.major.size"], width=rcParams["xtick.major.width"])
        self._titles: dict[Axes, str] = {}
        self._below: dict[Axes, str] = {}
        self._key: tuple[list[dict[str, Any]], list[str]] = ([], [])

    def left(self, k: int) -> bool:
        """Whether panel k is the first of its row."""
        return self._cells[k][1] == 0

    def bottom(self, k: int) -> bool:
        """Whether there is no panel below panel k."""
        row, column = self._cells[k]
        return (row + 1, column) not in self._cells

    def name(self, titles: Sequence[str], of: Sequence[Axes] | None = None) -> None:
        """Titles of the first panels, or of these; several have letters, which the caption has too."""
        several = len(titles) > 1
        for k, (ax, title) in enumerate(zip(of or self.axes, titles, strict=False)):
            said = title if page().titles else ""
            self._titles[ax] = _lettered(k, said).rstrip() if several else said

    def key(self, looks: Sequence[dict[str, Any]], texts: Sequence[str]) -> None:
        """The legend: of Line2D properties and texts."""
        self._key = list(looks), list(texts)

    def finish(self) -> Figure:
        """Everything at its place. Raises UserError where there is no room for it."""
        legend, where = self._legend()
        self._below = {ax: ax.get_xlabel() for ax in self.axes}
        self._wrap_labels()
        self._place(self._overhang(), legend, where)
        around = self._overhang()
        for _ in range(PASSES):
            self._place(around, legend, where)
            # Panels of another size have other ticks, and these other labels.
            after = [[max(a, b) for a, b in zip(*sides, strict=True)] for sides in zip(around, self._overhang(), strict=True)]
            if after == around:
                break
            around = after
        return self.figure

    def _place(self, around: list[list[float]], legend: Legend | None, where: str) -> None:
        left, right, top, bottom = around
        beside, below = self._taken(legend, where)
        room = self.width - 2 * EDGE - beside - sum(left) - sum(right) - GAP * (self.columns - 1)
        each = room / self.columns
        if each < LEAST:
            raise UserError(
                f"This figure does not fit {self.width:g} inches with a text of {page().font_size:g} pt.",
                "Give a larger --width or a smaller --font-size, or put the legend --legend below.",
            )
        high = min(each, WHOLE) if self._square else self.height if self._fixed else max(self.height, min(0.45 * each, HIGHEST))
        named = self._set_titles(each, left, right)
        top = [max(own, title) for own, title in zip(top, named, strict=True)]
        besides = sum(top) + sum(bottom) + GAP * (self._rows - 1) + 2 * EDGE + below
        if where == "right" and legend is not None and not (self._square or self._fixed):
            high = max(high, (legend.get_window_extent().height / DPI + 2 * EDGE - besides) / self._rows)
        total = besides + self._rows * high
        if where == "right" and legend is not None:
            total = max(total, legend.get_window_extent().height / DPI + 2 * EDGE)
        self.figure.set_size_inches(self.width, total)
        for ax, (row, column) in zip(self.axes, self._cells, strict=True):
            x = EDGE + sum(left[: column + 1]) + sum(right[:column]) + column * (each + GAP)
            y = total - EDGE - sum(top[: row + 1]) - sum(bottom[:row]) - row * GAP - (row + 1) * high
            ax.set_position((x / self.width, y / total, each / self.width, high / total))
        self._wrap_labels()

    def _wrap_labels(self) -> None:
        """Labels of the x axes in lines as wide as the panel is now."""
        for ax, text in self._below.items():
            if text:
                ax.set_xlabel(self._wrapped(text, ax.get_window_extent().width / DPI, ax.xaxis.label.get_fontproperties())[0])

    def _overhang(self) -> list[list[float]]:
        """What ticks and labels take around the panels: left and right by column, top and bottom by row."""
        named = {ax: ax.title.get_text() for ax in self.axes}
        renderer = self._renderer()
        sides = [[0.0] * self.columns, [0.0] * self.columns, [0.0] * self._rows, [0.0] * self._rows]
        for ax, (row, column) in zip(self.axes, self._cells, strict=True):
            ax.title.set_text("")
            outer, inner = ax.get_tightbbox(renderer), ax.get_window_extent(renderer)
            assert outer is not None
            beyond = (inner.x0 - outer.x0, outer.x1 - inner.x1, outer.y1 - inner.y1, inner.y0 - outer.y0)
            for side, at, pixels in zip(sides, (column, column, row, row), beyond, strict=True):
                side[at] = max(side[at], pixels / DPI)
            ax.title.set_text(named[ax])
        return sides

    def _set_titles(self, each: float, left: Sequence[float], right: Sequence[float]) -> list[float]:
        """Wrapped where they have no room; a title wider than its panel is centred over the labels too. Their heights by row."""
        from matplotlib import rcParams

        heights = [0.0] * self._rows
        for ax, (row, column) in zip(self.axes, self._cells, strict=True):
            if not (title := self._titles.get(ax, "")):
                continue
            prop = ax.title.get_fontproperties()
            room = left[column] + each + right[column]
            texts, widest = self._wrapped(title, room, prop)
            centre = 0.5 if widest <= each else (room / 2 - left[column]) / each
            ax.set_title(texts, x=centre)
            lines = 1 + texts.count("\n")
            points = 1.25 * lines * prop.get_size_in_points() + rcParams["axes.titlepad"]
            heights[row] = max(heights[row], points / 72)
        return heights

    def _taken(self, legend: Legend | None, where: str) -> tuple[float, float]:
        """What a legend takes beside and below the panels."""
        if legend is None:
            return 0.0, 0.0
        box = legend.get_window_extent(self._renderer())
        return (box.width / DPI + EDGE, 0.0) if where == "right" else (0.0, box.height / DPI + EDGE)

    def _legend(self) -> tuple[Legend | None, str]:
        """Where there is room: below the panels, or beside them where the figure is wide and the entries are many."""
        from matplotlib.lines import Line2D

        looks, texts = self._key
        where = page().legend
        if where == "auto":
            where = "right" if len(texts) > FEW and self.width > 1.5 * COLUMN else "below"
        if not texts or where == "none":
            return None, where
        if where == "inside":
            if len(texts) > FEW:
                raise UserError(
                    f"--legend inside has room for {FEW} entries, and here are {len(texts)}.", "Take --legend right or below."
                )
            handles = [Line2D([], [], label=text, **look) for text, look in zip(texts, looks, strict=True)]
            self.axes[0].legend(handles=handles, loc="best", frameon=True, framealpha=0.85)
            return None, where
        wrapped, columns = self._columns(texts, where)
        handles = [Line2D([], [], label=text, **look) for text, look in zip(wrapped, looks, strict=True)]
        at: Any = "upper right" if where == "right" else "lower center"
        return self.figure.legend(handles=handles, ncols=columns, borderaxespad=0.3, loc=at), where

    def _columns(self, texts: Sequence[str], where: str) -> tuple[list[str], int]:
        """The texts, wrapped where need be, and the columns that fit."""
        from matplotlib import rcParams
        from matplotlib.font_manager import FontProperties

        em = page().font_size / 72
        handle = (rcParams["legend.handlelength"] + rcParams["legend.handletextpad"]) * em
        between = rcParams["legend.columnspacing"] * em
        room = self.width * BESIDE if where == "right" else self.width - 2 * EDGE - 2 * em
        made = [self._wrapped(text, room - handle, FontProperties(size=rcParams["legend.fontsize"])) for text in texts]
        wrapped, widths = [text for text, _ in made], [width for _, width in made]
        if where == "right":
            return wrapped, 1
        for columns in range(len(texts), 1, -1):
            long, more = divmod(len(texts), columns)  # column by column, the first ones one longer, as Matplotlib does
            ends = [(k + 1) * long + min(k + 1, more) for k in range(columns)]
            taken = sum(max(widths[a:b]) for a, b in zip([0, *ends], ends, strict=False)) + columns * handle
            if taken + (columns - 1) * between <= room:
                return wrapped, columns
        return wrapped, 1

    def _wrapped(self, text: str, room: float, prop: Any) -> tuple[str, float]:
        """The text in lines of at most this width in inches, and the widest of them."""
        renderer = self._renderer()

        def width(line: str) -> float:
            return float(renderer.get_text_width_height_descent(line, prop, False)[0]) / DPI

        lines = [""]
        for word in (text if len(text) <= LONGEST else f"{text[:LONGEST]}...").split():
            longer = f"{lines[-1]} {word}".strip()
            if width(longer) <= room or not longer:
                lines[-1] = longer
                continue
            lines.append("")
            for letter in word:  # a word alone may be too long, as a path
                if lines[-1] and width(lines[-1] + letter) > room:
                    lines.append("")
                lines[-1] += letter
        lines = [line for line in lines if line]
        return "\n".join(lines), max(map(width, lines), default=0.0)

    def _renderer(self) -> Any:
        return self.figure.canvas.get_renderer()  # type: ignore[attr-defined]
