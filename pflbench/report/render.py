"""Panels of traces in print, by Matplotlib: width and text as asked for, panels as high as they should be, nothing cut.

Sizes are in inches at print size.
"""

from __future__ import annotations

import textwrap
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pflbench.errors import UserError
from pflbench.plain import printable
from pflbench.report import arrangement, style
from pflbench.report.arrangement import OTHERS, Arranged, best_in_colour, busiest, protocol
from pflbench.report.looks import OTHER
from pflbench.report.selection import Filters
from pflbench.report.style import COLUMN, DPI, PAGE, PANELS_CHOSEN, PANELS_UNASKED
from pflbench.report.traces import PALE, Axis, Panel, Trace, not_drawn, with_letters

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend
    from matplotlib.text import Text

FEW = 8  # entries of a legend, above which it would hide data inside a panel
LEAST = 0.45  # of a panel
FLAT = 0.45  # height by width of a wide panel
HIGHEST = 2.9  # of a panel that is high because it is wide
WHOLE = 3.6  # of a square one
BESIDE = 0.28  # of the figure's width, for a legend beside the panels
COLUMNS = 8  # of a legend below the panels, at most
MARKER = 5  # points, at most, in a legend
LINES = 6  # of a title or label: names may be very long
WORD = 10  # letters that stay together, as those of "Per-FedAvg" and "HeurFedAMP"


def drawing(
    panels: Sequence[Panel],
    titles: Sequence[str],
    caption: str,
    notes: Iterable[str] = (),
    *,
    columns: int = 2,
    height: float = 1.7,
    measures: int = 1,
    cell: float = 1.6,
    square: bool = False,
    fixed: bool = False,
    width: float | None = None,
    order: Sequence[str] = (),
) -> style.Drawing:
    """A figure with its caption.

    titles: of the first panels; several have letters, which the caption has too. columns: at most so many, fewer where one
    has not `cell` inches. measures: rows that belong together, as accuracy and time of the same settings: panels are given
    row by row. height: of a panel; `square`: as high as wide; `fixed`: exactly so high, else a wide panel is higher.
    width: if none was asked for. order: of the entries of the legend. Raises UserError where there is no room for it all.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    page = style.page()
    across = len(panels) // measures
    columns = min(columns, across)
    wide = page.width or width or (COLUMN if columns == 1 else PAGE)
    columns = max(1, min(columns, int(wide / cell)))
    cells = [(at // columns * measures + which, at % columns) for k in range(len(panels)) for which, at in [divmod(k, across)]]
    rows = 1 + max(row for row, _ in cells)
    with style.context():
        figure = Figure(figsize=(wide, rows * (height + 1.2 * style.scale())), dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.add_gridspec(rows, columns)
        axes = {place: figure.add_subplot(grid[place]) for place in cells}
        for ax, panel in zip(axes.values(), panels, strict=True):
            _draw_panel(ax, panel)
        shared = _share_y(dict(zip(axes.values(), panels, strict=True)))
        for (row, column), ax in axes.items():
            if (below := axes.get((row + 1, column))) and below.get_xlabel() == ax.get_xlabel():
                ax.set_xlabel("")
        for (row, column), ax in reversed(axes.items()):
            if column and axes[row, column - 1].get_ylabel() == ax.get_ylabel():
                ax.set_ylabel("")
                ax.tick_params(labelleft=axes[row, column - 1] not in shared.get(ax, ()))
        for ax, title in zip(axes.values(), with_letters(titles if page.titles else [""] * len(titles)), strict=False):
            ax.set_title(title)
        for text in figure.findobj(Text):  # before it is measured
            text.set_text(printable(text.get_text()))
        legend = _legend(figure, [trace for panel in panels for trace in panel.traces], order)
        limits = (1, 0, WHOLE) if square else (FLAT, height, height if fixed else max(height, HIGHEST))
        _fit(figure, rows, legend, *limits)
        runs = tuple(sorted({run for panel in panels for run in panel.runs}))
        settings = [setting for panel in panels for setting in panel.settings]
        return style.Drawing(figure, caption, tuple(notes), runs, protocol(settings) if settings else "")


def chosen_settings(
    found: Arranged, filters: Filters, most: int = PANELS_CHOSEN, unasked: int = PANELS_UNASKED
) -> tuple[Arranged, list[int], str]:
    """The settings to draw: those chosen by dataset or partition, else the `unasked` with the most runs.

    Also the rows as `best_in_colour` has them, and what it says.
    """
    columns = busiest(found, most if filters.datasets or filters.partitions else unasked)
    coloured, said = best_in_colour(found, columns, filters.methods)
    return coloured, columns, said


def of_settings(
    found: Arranged, panels: Sequence[Panel], caption: str, *, measures: int = 1, first: Sequence[str] = (), **layout: Any
) -> style.Drawing:
    """A figure of panels that have a setting each. first: entries of the legend before the rows. layout: as of `drawing`."""
    across = len(panels) // measures
    columns = across if across == 1 else 2 if across in (2, 4) else 3
    return drawing(
        panels,
        arrangement.titles([panel.settings[0] for panel in panels[:across]]),
        caption,
        (*found.notes, *not_drawn(found, across)),
        measures=measures,
        order=[*first, *(row.label for row in found.rows if row.label != OTHERS)],
        **{"columns": columns, "height": 1.75 if columns < 3 else 1.4} | layout,
    )


def _share_y(panels: Mapping[Axes, Panel]) -> dict[Axes, list[Axes]]:
    """One y axis for panels of the same quantity, unless they have limits or ticks of their own. Returns those of each panel."""
    free: dict[tuple[str, ...], list[Axes]] = defaultdict(list)
    for ax, panel in panels.items():
        if panel.y.limits is None and panel.y.ticks is None:
            free[panel.quantity].append(ax)
    for same in free.values():
        limits = [limit for ax in same for limit in ax.get_ylim()]
        for ax in same:
            ax.set_ylim(min(limits), max(limits))
    return {ax: same for same in free.values() for ax in same}


def _draw_panel(ax: Axes, panel: Panel) -> None:
    for trace in panel.traces:
        if len(trace.x):
            _draw_trace(ax, trace)
    if panel.draw is not None:
        panel.draw(ax)
    for name, axis in (("x", panel.x), ("y", panel.y)):
        _set_axis(ax, name, axis)


def _draw_trace(ax: Axes, trace: Trace) -> None:
    from matplotlib.transforms import ScaledTranslation

    drawn: list[Artist] = [*ax.plot(trace.x, trace.y, label=trace.label, markevery=trace.every, **properties(trace))]
    if trace.low is not None and trace.high is not None:
        if trace.bars:
            drawn.append(ax.vlines(trace.x, trace.low, trace.high, color=trace.look.colour, linewidth=0.8))
        else:
            ax.fill_between(trace.x, trace.low, trace.high, color=trace.look.colour, alpha=PALE, linewidth=0)
    if trace.aside:
        for artist in drawn:
            artist.set_transform(ax.transData + ScaledTranslation(trace.aside / 72, 0, ax.figure.dpi_scale_trans))


def properties(trace: Trace) -> dict[str, Any]:
    """Properties of a Line2D."""
    made = {**trace.look.line, "linewidth": trace.width, "markersize": trace.size, "alpha": trace.opacity}
    made["zorder"] = 1.9 if trace.look == OTHER else 2
    if trace.draws == "lines":
        made["marker"] = ""
    if trace.draws == "markers":
        made["linestyle"] = ""
    return made | ({"drawstyle": "steps-post"} if trace.steps else {})


def _set_axis(ax: Axes, name: str, axis: Axis) -> None:
    from matplotlib.ticker import MaxNLocator

    of = {"x": ax.xaxis, "y": ax.yaxis}[name]
    of.set_label_text(axis.text)
    if axis.nothing is not None:
        getattr(ax, f"set_{name}scale")("symlog", linthresh=axis.nothing * 10**0.5, linscale=0.5)
    elif axis.log:
        ax.set(**{f"{name}scale": "log"})
    if axis.whole:
        of.set_major_locator(MaxNLocator(nbins="auto", steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    if axis.ticks is not None:
        of.set_ticks(list(axis.ticks), [printable(name) for name in axis.ticks.values()])
        of.set_ticks([], minor=True)
    limits = axis.limits or ((0, None) if axis.zero else None)
    if axis.nothing is not None and axis.limits is not None:
        limits = (-axis.nothing / 1.5, axis.limits[1])
    if limits is not None:
        ax.set(**{f"{name}lim": limits})
    if not axis.grid:
        ax.grid(visible=False, axis=name)  # type: ignore[arg-type]


def _legend(figure: Figure, traces: Sequence[Trace], order: Sequence[str]) -> Legend | None:
    """A legend below the panels, or beside them in a wide figure with many entries."""
    from matplotlib.lines import Line2D

    entries = {trace.label: trace for trace in reversed(traces) if trace.label}
    labels = [*(label for label in order if label in entries), *(label for label in reversed(entries) if label not in order)]
    where, wide = style.page().legend, figure.get_figwidth()
    if where == "auto":
        where = "right" if len(labels) > FEW and wide > 1.5 * COLUMN else "below"
    if not labels or where == "none":
        return None
    if where == "inside" and len(labels) > FEW:
        raise UserError(
            f"--legend inside has room for {FEW} entries, and here are {len(labels)}.", "Take --legend right or below."
        )
    size = style.page().font_size
    share = BESIDE if where == "right" else 0.9 if len(labels) <= FEW else 0.46  # more entries stand in two columns at least
    room = share * wide - 4 * size / 72
    looks = [properties(entries[label]) for label in labels]
    handles = [
        Line2D([], [], label=_wrapped(printable(label), room, size), **look | {"markersize": min(look["markersize"], MARKER)})
        for label, look in zip(labels, looks, strict=True)
    ]
    if where == "inside":
        figure.axes[0].legend(handles=handles, loc="best", frameon=True, framealpha=0.85)
        return None
    if where == "right":
        return figure.legend(handles=handles, loc="outside right upper", borderaxespad=0.3)
    for columns in range(min(len(labels), COLUMNS), 0, -1):  # each is as wide as its own entries
        legend = figure.legend(handles=handles, loc="outside lower center", ncols=columns, borderaxespad=0.3)
        if columns == 1 or legend.get_window_extent().width <= 0.98 * wide * DPI:
            break
        legend.remove()
    return legend


def _fit(figure: Figure, rows: int, legend: Legend | None, shape: float, lowest: float, highest: float) -> None:
    """Titles and labels in lines that fit their panels, and the figure as high as the panels then need.

    shape: height of a panel by its width, within lowest and highest.
    """
    if legend is not None:
        figure.set_figheight(figure.get_figheight() + legend.get_window_extent().height / DPI)
    _place(figure)
    each, _ = _panel_size(figure)
    if _wrap([ax.yaxis.label for ax in figure.axes], min(max(shape * each, lowest), highest)):
        _place(figure)  # panels are narrower beside labels of more lines
        each, _ = _panel_size(figure)
    if _wrap([text for ax in figure.axes for text in (ax.title, ax.xaxis.label)], each):
        _place(figure)
    each, high = _panel_size(figure)
    total = figure.get_figheight() + rows * (min(max(shape * each, lowest), highest) - high)
    if legend is not None:
        total = max(total, legend.get_window_extent().height / DPI + 0.1)
    figure.set_figheight(total)
    _place(figure)
    figure.set_layout_engine(None)  # it has done its work, and is not asked again where the figure is written


def _wrap(texts: Sequence[Text], room: float) -> bool:
    """Wraps the texts to about `room` inches. Returns whether that changed any."""
    before = [text.get_text() for text in texts]
    for text in texts:
        text.set_text(_wrapped(text.get_text(), room, float(text.get_fontsize())))
    return before != [text.get_text() for text in texts]


def _place(figure: Figure) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="constrained_layout not applied")
        try:
            figure.get_layout_engine().execute(figure)  # type: ignore[union-attr]
            fits = _panel_size(figure)[0] >= LEAST
        except UserWarning:
            fits = False
    if not fits:
        raise UserError(
            f"This figure does not fit {figure.get_figwidth():g} inches with a text of {style.page().font_size:g} pt.",
            "Give a larger --width or a smaller --font-size" + (", or put the legend --legend below." if figure.legends else "."),
        )


def _panel_size(figure: Figure) -> tuple[float, float]:
    boxes = [ax.get_window_extent() for ax in figure.axes]
    return min(box.width for box in boxes) / DPI, min(box.height for box in boxes) / DPI


def _wrapped(text: str, room: float, size: float) -> str:
    """The text wrapped to about `room` inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    width, _, _ = text_to_path.get_text_width_height_descent(text, FontProperties(size=size), ismath=False)
    if width / 72 <= room:
        return text
    letters = max(WORD, int(0.95 * len(text) * room * 72 / width))
    return textwrap.fill(text, letters, max_lines=LINES, placeholder=" ...", break_on_hyphens=False)
