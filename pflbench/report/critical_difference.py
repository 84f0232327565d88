"""`plot ranks`: the critical-difference diagram of `table ranks` (Demsar, JMLR 2006), drawn by scikit-posthocs.

Methods stand at their average rank. A bar joins those that Nemenyi's test does not tell apart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import numpy as np
from sqlalchemy import Engine

from pflbench.report import ranks, style
from pflbench.report.chosen import protocol
from pflbench.report.layout import COLUMN, PAGE, Sheet, scale
from pflbench.report.ranks import Ranks
from pflbench.report.statistics import LEVEL
from pflbench.store.read import Select

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LETTER, LINE = 0.062, 0.14  # inches, at the text's size
LEAST = 1.1  # inches that the axis has at least: a wider figure where the names leave less
ABOVE = 2.2  # lines above the axis, for its numbers and the critical difference


def plot(
    engine: Engine,
    *,
    methods: Iterable[str] = (),
    datasets: Iterable[str] = (),
    partitions: Iterable[str] = (),
    select: Select | str = "best",
    status: Collection[str] = ("finished",),
) -> style.Drawing:
    """The methods at their ranks; joined where the tests find a difference, and not between them.

    Raises UserError for fewer than three rows or two settings that all of them have.
    """
    table = ranks.build(engine, methods=methods, datasets=datasets, partitions=partitions, select=select, status=status)
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
    from pandas import DataFrame  # type: ignore[import-untyped]
    from scikit_posthocs import critical_difference_diagram

    names = [row.label for row in table.rows]
    spread = float(np.ptp(table.average))
    looks = {row.label: row.look.point for row in table.rows}
    # Where Friedman's test finds no difference, Nemenyi's p say nothing: zeros join no one.
    p = table.nemenyi if table.rejected else np.zeros_like(table.nemenyi)
    drawn = critical_difference_diagram(
        dict(zip(names, table.average.tolist(), strict=True)),
        DataFrame(p, index=names, columns=names),
        alpha=LEVEL,
        ax=ax,
        label_fmt_left="{label} ({rank:.2f})",
        label_fmt_right="({rank:.2f}) {label}",
        color_palette={name: look["color"] for name, look in looks.items()},
        marker_props={"marker": "none"},  # it has one for all; ours follow
        elbow_props={"linewidth": 0.7},
        crossbar_props={"linewidth": 2.2, "solid_capstyle": "butt", "gid": "crossbar"},
        text_h_margin=max(0.03 * spread, (1 - spread) / 2),  # the axis is a rank wide, should all be alike
    )
    for text in drawn["labels"]:
        text.set_color("black")  # the lines lead to it; some colours are too pale for letters
    for name, rank in zip(names, table.average.tolist(), strict=True):
        ax.plot([rank], [0], label=name, zorder=4, clip_on=False, **looks[name])


def _fit(ax: Axes) -> float:
    """A line of text high for each row of the diagram, and no room besides: inches."""
    from matplotlib.ticker import MaxNLocator

    lowest = min(text.get_position()[1] for text in ax.texts)
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
    return (
        f"Average ranks of {len(table.rows)} methods over {len(table.settings)} settings: "
        f"{'; '.join(setting.title for setting in table.settings)}. {bars}{' '.join(table.findings)}"
    )
