"""The critical-difference diagram of `table ranks` (Demsar, JMLR 2006): the methods at their average rank.

In print a bar joins methods between which Nemenyi's test finds no difference; on a page each method has half the critical
difference to both sides.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from sqlalchemy import Engine

from pflbench.report import render, style, web
from pflbench.report.looks import Look
from pflbench.report.selection import Filters
from pflbench.report.statistics import LEVEL
from pflbench.report.style import COLUMN, PAGE
from pflbench.report.tables import ranks
from pflbench.report.tables.ranks import Ranks
from pflbench.report.traces import GREY, Axis, Panel, Trace, run_numbers
from pflbench.report.web import Interactive

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LETTER, LINE = 0.062, 0.14  # inches, at the text's size
LEAST = 1.1  # inches that the axis has at least: a wider figure where the names leave less
ABOVE = 2.2  # lines above the axis, for its numbers and the critical difference
BAR = 0.7  # lines from a bar to the next one
NEAR, STACKED = 0.02, 0.4  # of the axis: markers nearer than this cover each other; lines from one to the other below it
ROW, AROUND = 30, 100  # on a page, pixels in height: for a method, beside them


def plot(engine: Engine, filters: Filters = Filters(), *, round_rule: str = "best", at: str | None = None) -> style.Drawing:
    """The methods at their ranks; joined where the tests find a difference, and not between them.

    at: as of `budgets.parse`. Raises UserError for fewer than three rows or two settings that all of them have.
    """
    table = ranks.build(engine, filters, round_rule=round_rule, at=at)
    # Where Friedman's test finds no difference, Nemenyi's p say nothing.
    bars = joined(table.average, table.critical) if table.rejected else []
    covered = _covered(table)
    lowest = -STACKED * max(covered) - len(bars) * BAR - (len(table.rows) + 1) // 2
    runs = tuple(run for row in table.runs for run in row)
    panel = Panel(
        "",
        # Half of the names stand left of the axis, half right of it, each with its rank.
        Axis("", limits=_limits(table), grid=False),
        Axis("", limits=(lowest - 0.6, ABOVE), grid=False),
        runs=runs,
        settings=tuple(table.settings),
        draw=partial(_diagram, table, covered, bars),
    )
    meaning = f"Bars join methods between which Nemenyi's test finds no difference at {LEVEL:g}."
    beside = LETTER * style.scale() * (len(" (99.99)") + max(len(row.label) for row in table.rows))
    return render.drawing(
        [panel],
        [],
        " ".join([_caption(table, meaning), *table.findings]),
        table.left_out,
        columns=1,
        height=LINE * style.scale() * (ABOVE + 0.6 - lowest),
        fixed=True,
        width=COLUMN if COLUMN - 2 * beside >= LEAST else max(PAGE, 2 * beside + LEAST),
    )


def _limits(table: Ranks) -> tuple[float, float]:
    return 1, max(2.0, 1 + 1.03 * (float(table.average.max()) - 1))  # a rank wide at least


def _covered(table: Ranks) -> list[int]:
    """Of each row how many before it are so near that their markers would be covered."""
    low, high = _limits(table)
    return [int(np.sum(rank - table.average[:i] < NEAR * (high - low))) for i, rank in enumerate(table.average)]


def _diagram(table: Ranks, covered: list[int], bars: list[tuple[float, float]], ax: Axes) -> None:
    """Draws bars below the axis, one to a line, then the names: the better half on the left, the others on the right."""
    from matplotlib.ticker import MaxNLocator

    below, (low, high) = -STACKED * max(covered), _limits(table)
    for k, (best, worst) in enumerate(bars, start=1):
        ax.plot([best, worst], [below - k * BAR] * 2, color="black", linewidth=2.2, gid="crossbar")
    first, rows = below - len(bars) * BAR - 1, len(table.rows)
    for i, row in enumerate(table.rows):
        left, rank, label = i < (rows + 1) // 2, float(table.average[i]), row.label
        y = first - (i if left else rows - 1 - i)
        look, edge = row.look.point, low if left else high
        ax.plot([rank, rank, edge], [0, y, y], color=look["color"], linewidth=0.7, clip_on=False)
        ax.plot([rank], [-STACKED * covered[i]], label=label, zorder=4, clip_on=False, **look)
        text, away = (f"{label} ({rank:.2f})", -3) if left else (f"({rank:.2f}) {label}", 3)
        ax.annotate(text, (edge, y), (away, 0), textcoords="offset points", ha="right" if left else "left", va="center")
    if table.rejected:  # the critical difference stands above the numbers
        start, y = float(table.average.min()), ABOVE - 0.9
        ax.plot([start, start + table.critical], [y, y], color="black", marker="|", linewidth=0.8, clip_on=False, gid="critical")
        ax.text(start + table.critical / 2, y + 0.2, f"critical difference {table.critical:.3g}", ha="center", va="bottom")
    ax.spines[["left", "right", "bottom"]].set_visible(False)
    ax.spines["top"].set_position(("data", 0))
    ax.xaxis.set_ticks_position("top")
    ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    ax.tick_params(axis="x", pad=1)
    ax.yaxis.set_visible(False)
    ax.annotate("Average rank", (low, 0), (-5, 0), textcoords="offset points", ha="right", va="center")


def joined(average: npt.NDArray[np.float64], critical: float) -> list[tuple[float, float]]:
    """The longest ranges of ascending ranks in which no two differ by the critical difference, as (best, worst)."""
    ends = [int(np.flatnonzero(average - start < critical)[-1]) for start in average]
    longest = [(i, end) for i, end in enumerate(ends) if end > i and (i == 0 or end > ends[i - 1])]
    return [(float(average[i]), float(average[end])) for i, end in longest]


def _caption(table: Ranks, bars: str) -> str:
    """bars: what they mean; there are none where Friedman's test finds no difference."""
    settings = "; ".join(setting.title for setting in table.settings)
    ranked = f"Average ranks of {len(table.rows)} methods over {len(table.settings)} settings: {settings}."
    return f"{ranked} {bars}" if table.rejected else ranked


def page(engine: Engine, filters: Filters, most: int | None = None, *, round_rule: str = "best") -> list[Interactive]:
    """One figure. Raises UserError for fewer than three rows or fewer than two settings that all rows have."""
    table = ranks.build(engine, filters, round_rule=round_rule)
    half, look = table.critical / 2, Look(GREY, "o", 0, 0)
    bars = [Trace([rank - half, rank + half], [i, i], look, draws="lines", width=1) for i, rank in enumerate(table.average)]
    points = [_point(table, i) for i in range(len(table.rows))]
    panel = Panel(
        "Average ranks",
        Axis("Average rank (1 is best)"),
        Axis("", limits=(len(table.rows) - 0.4, -0.6), ticks={i: row.label for i, row in enumerate(table.rows)}),
        [*bars, *points] if table.rejected else points,
        tuple(run for row in table.runs for run in row),
        tuple(table.settings),
        height=AROUND + ROW * len(table.rows),
    )
    meaning = (
        "Bars: half the critical difference to each side, so that methods whose bars do not meet differ by Nemenyi's test "
        f"at {LEVEL:g}."
    )
    return [web.figure("ranks", panel, _caption(table, meaning), table.notes)]


def _point(table: Ranks, i: int) -> Trace:
    row, best = table.rows[i], table.rows[0]
    hover = (
        f"<b>{web.text(row.label)}</b>: rank %{{x:.2f}}<br>mean over settings {table.accuracy[i].mean():.2f} %"
        f"<br>p (Nemenyi) against {web.text(best.label)}: {table.nemenyi[i, 0]:.3g}<br>{run_numbers(table.runs[i])}"
    )
    return Trace([float(table.average[i])], [i], row.look, draws="markers", size=5.5, hover=hover)
