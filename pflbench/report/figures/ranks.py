"""The critical-difference diagram of `table ranks` (Demsar, JMLR 2006): the methods at their average rank.

In print a bar joins methods between which Nemenyi's test finds no difference; on a page each method has half the critical
difference to both sides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from sqlalchemy import Engine

from pflbench.report import style, web
from pflbench.report.arrangement import protocol
from pflbench.report.layout import COLUMN, PAGE, Sheet, scale
from pflbench.report.selection import Filters
from pflbench.report.statistics import LEVEL
from pflbench.report.tables import ranks
from pflbench.report.tables.ranks import Ranks
from pflbench.report.web import Interactive, Json
from pflbench.store.runs import Select

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LETTER, LINE = 0.062, 0.14  # inches, at the text's size
LEAST = 1.1  # inches that the axis has at least: a wider figure where the names leave less
ABOVE = 2.2  # lines above the axis, for its numbers and the critical difference
BAR = 0.7  # lines from a bar to the next one
ROW, AROUND = 30, 100  # on a page, pixels in height: for a method, beside them


def plot(engine: Engine, filters: Filters = Filters(), *, select: Select | str = "best") -> style.Drawing:
    """The methods at their ranks; joined where the tests find a difference, and not between them.

    Raises UserError for fewer than three rows or two settings that all of them have.
    """
    table = ranks.build(engine, filters, select=select)
    runs = tuple(sorted(run for row in table.runs for run in row))
    with style.context():
        return style.Drawing(_draw(table), _caption(table), table.left_out, runs, protocol(table.settings))


def _draw(table: Ranks) -> Figure:
    """Half of the names stand left of the axis, half right of it, each with its rank."""
    beside = LETTER * scale() * (len(" (99.99)") + max(len(row.label) for row in table.rows))
    width = COLUMN if COLUMN - 2 * beside >= LEAST else max(PAGE, 2 * beside + LEAST)
    sheet = Sheet(1, 1, 1.0, fixed=True, width=width)
    (ax,) = sheet.axes
    _diagram(ax, table)
    sheet.height = _fit(ax)
    if table.rejected:
        _critical_difference(ax, table)
    return sheet.finish()


def _diagram(ax: Axes, table: Ranks) -> None:
    """Below the axis the bars, one to a line, and below these the names: the better half on the left, the others on the right."""
    order = np.argsort(table.average, kind="stable").tolist()
    # Where Friedman's test finds no difference, Nemenyi's p say nothing.
    bars = joined(table.average[order], table.critical) if table.rejected else []
    for k, (best, worst) in enumerate(bars, start=1):
        ax.plot([best, worst], [-k * BAR, -k * BAR], color="black", linewidth=2.2, solid_capstyle="butt", gid="crossbar")
    low, high = float(table.average.min()), float(table.average.max())
    beside = max(0.03 * (high - low), (1 - (high - low)) / 2)  # the axis is a rank wide, should all be alike
    ax.set_xlim(low - beside, high + beside)
    first, half = -len(bars) * BAR - 1, (len(order) + 1) // 2
    for place, i in enumerate(order):
        left, rank, label = place < half, float(table.average[i]), table.rows[i].label
        y = first - (place if left else len(order) - 1 - place)
        look, edge = table.rows[i].look.point, low - beside if left else high + beside
        ax.plot([rank, rank, edge], [0, y, y], color=look["color"], linewidth=0.7, clip_on=False)
        ax.plot([rank], [0], label=label, zorder=4, clip_on=False, **look)
        text, away = (f"{label} ({rank:.2f})", -3) if left else (f"({rank:.2f}) {label}", 3)
        ax.annotate(text, (edge, y), (away, 0), textcoords="offset points", ha="right" if left else "left", va="center")
    ax.spines[["left", "right", "bottom"]].set_visible(False)
    ax.spines["top"].set_visible(True)
    ax.spines["top"].set_position(("data", 0))
    ax.xaxis.set_ticks_position("top")
    ax.yaxis.set_visible(False)


def joined(average: npt.NDArray[np.float64], critical: float) -> list[tuple[float, float]]:
    """The longest ranges of ascending ranks in which no two differ by the critical difference, as (best, worst)."""
    ends = [int(np.flatnonzero(average - start < critical)[-1]) for start in average]
    longest = [(i, end) for i, end in enumerate(ends) if end > i and (i == 0 or end > ends[i - 1])]
    return [(float(average[i]), float(average[end])) for i, end in longest]


def _fit(ax: Axes) -> float:
    """A line of text high for each row of the diagram, and no room besides: inches."""
    from matplotlib.text import Annotation
    from matplotlib.ticker import MaxNLocator

    lowest = min(text.xy[1] for text in ax.texts if isinstance(text, Annotation))
    ax.set_ylim(lowest - 0.6, ABOVE)
    ax.margins(x=0)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    ax.tick_params(axis="x", pad=1)
    ax.text(-0.02, 0, "Average rank", transform=ax.get_yaxis_transform(), ha="right", va="center")
    ax.grid(visible=False)
    return LINE * scale() * (ABOVE + 0.6 - lowest)


def _critical_difference(ax: Axes, table: Ranks) -> None:
    """Its length along the axis, above the numbers."""
    start, y = float(table.average.min()), ABOVE - 0.9
    ax.plot([start, start + table.critical], [y, y], color="black", marker="|", linewidth=0.8, clip_on=False, gid="critical")
    ax.text(start + table.critical / 2, y + 0.2, f"critical difference {table.critical:.3g}", ha="center", va="bottom")


def _caption(table: Ranks) -> str:
    bars = f"Bars join methods between which Nemenyi's test finds no difference at {LEVEL:g}. " if table.rejected else ""
    return f"{_ranked(table)} {bars}{' '.join(table.findings)}"


def _ranked(table: Ranks) -> str:
    settings = "; ".join(setting.title for setting in table.settings)
    return f"Average ranks of {len(table.rows)} methods over {len(table.settings)} settings: {settings}."


def page(engine: Engine, filters: Filters, most: int | None = None) -> list[Interactive]:
    """One figure. Raises UserError for fewer than three rows or two settings that all of them have."""
    table = ranks.build(engine, filters)
    order = np.argsort(table.average, kind="stable").tolist()
    count = len(order)
    names = [web.text(table.rows[i].label) for i in order]
    y = web.axis("", range=[count - 0.4, -0.6], tickmode="array", tickvals=list(range(count)), ticktext=names)
    made = web.make(
        "ranks",
        "Average ranks",
        _caption_on_page(table),
        [_points(table, order)],
        web.layout(web.axis("Average rank (1 is best)"), y, height=AROUND + ROW * count),
        notes=table.notes,
        runs=[run for row in table.runs for run in row],
    )
    return [made]


def _points(table: Ranks, order: list[int]) -> Json:
    rows = [table.rows[i] for i in order]
    bars = {"type": "constant", "value": table.critical / 2, "thickness": 2, "width": 0, "color": web.GREY}
    best = order[0]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": web.numbers(table.average[i] for i in order),
        "y": list(range(len(order))),
        "marker": {"color": [web.colour(row) for row in rows], "symbol": [web.point_symbol(row) for row in rows], "size": 11},
        # Where Friedman's test finds no difference, there is none to read off.
        **({"error_x": bars} if table.rejected else {}),
        "customdata": [
            [
                web.text(table.rows[i].label),
                *web.numbers([table.accuracy[i].mean(), table.nemenyi[i, best]]),
                web.of_runs(table.runs[i]),
            ]
            for i in order
        ],
        "hovertemplate": (
            "<b>%{customdata[0]}</b>: rank %{x:.2f}<br>mean over settings %{customdata[1]:.2f} %"
            f"<br>p (Nemenyi) against {web.text(table.rows[best].label)}: %{{customdata[2]:.3g}}"
            "<br>%{customdata[3]}<extra></extra>"
        ),
    }


def _caption_on_page(table: Ranks) -> str:
    bars = (
        " Bars: half the critical difference to each side, so that methods whose bars do not meet differ by Nemenyi's test at "
        f"{LEVEL:g}."
    )
    return f"{_ranked(table)}{bars if table.rejected else ''} {protocol(table.settings)}"
