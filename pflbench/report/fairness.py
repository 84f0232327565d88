"""`plot fairness`: how the clients fare under each method: all of them, their quartiles, median and worst tenth."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report import style
from pflbench.report.chosen import Filters, busiest, protocol, titles
from pflbench.report.collect import Arranged, Row, Setting
from pflbench.report.layout import Sheet, lettered, scale
from pflbench.store import read
from pflbench.store.read import Floats, Integers, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WORST = 0.1
LETTERS = 24  # of a method's name in a line
MOST = 4  # settings below one another
GREY = "#666666"
KINDS = ("a client", "quartiles", "median", "worst tenth, mean")


@dataclass(frozen=True)
class Group:
    """The clients of all runs of a method, in percent; median and worst (mean of the worst tenth): means over its runs.

    accuracies[k] is that of client clients[k] in run of[k].
    """

    row: Row
    accuracies: Floats
    clients: Integers
    of: Integers
    median: float
    worst: float
    runs: tuple[int, ...]


@dataclass(frozen=True)
class Panel:
    setting: Setting
    groups: tuple[Group, ...]


def plot(
    engine: Engine,
    *,
    methods: Collection[str] = (),
    datasets: Collection[str] = (),
    partitions: Collection[str] = (),
    status: Collection[str] = ("finished",),
) -> style.Drawing:
    """The setting with the most runs, or up to four chosen ones. Raises UserError where no run has results by client."""
    found = Filters(tuple(methods), tuple(datasets), tuple(partitions), status).collect(engine)
    drawn = [panel(engine, found, j) for j in busiest(found, MOST if datasets or partitions else 1)]
    notes = list(found.notes)
    if len(found.settings) > len(drawn):
        notes.append(f"Drawn: {len(drawn)} of {len(found.settings)} settings. Choose with --dataset and --partition.")
    runs = tuple(sorted(run for panel in drawn for group in panel.groups for run in group.runs))
    with style.context():
        figure = _draw(drawn)
        return style.Drawing(figure, caption(drawn), tuple(notes), runs, protocol([panel.setting for panel in drawn]))


def caption(drawn: Sequence[Panel]) -> str:
    return (
        "Test accuracy of each client after the best round of its run (ticks), quartiles (bar), median and mean of the worst "
        f"tenth of the clients (markers): {lettered([panel.setting.title for panel in drawn])}. Runs that differ in the seed are "
        "pooled; median and worst tenth are means over runs."
    )


def worst(accuracies: Floats) -> float:
    """The mean of the worst tenth of the clients, at least one."""
    return float(np.sort(accuracies)[: math.ceil(WORST * len(accuracies))].mean())


def panel(engine: Engine, found: Arranged, column: int) -> Panel:
    """The clients of the setting with this number. Raises UserError where a run of it has no results by client."""
    groups = [_group(engine, found.rows[i], cell) for (i, j), cell in sorted(found.cells.items()) if j == column]
    return Panel(found.settings[column], tuple(groups))


def _group(engine: Engine, row: Row, cell: Sequence[Result]) -> Group:
    tested = [_tested(engine, run) for run in cell]
    each = [100 * clients.correct / clients.total for clients in tested]
    median, low = (float(np.mean([of(one) for one in each])) for of in (np.median, worst))
    runs = tuple(run.id for run in cell)
    of = np.repeat(runs, [len(one) for one in each])
    return Group(row, np.concatenate(each), np.concatenate([clients.client for clients in tested]), of, median, low, runs)


def _tested(engine: Engine, run: Result) -> read.Clients:
    if run.round is None:
        raise UserError(f"Run {run.id} has no evaluated round.", "Leave it out with --method or --status.")
    return read.clients(engine, run.id, run.round)


def _draw(drawn: Sequence[Panel]) -> Figure:
    names = [[textwrap.fill(group.row.label, LETTERS) for group in panel.groups] for panel in drawn]
    lines = 1 + max(name.count("\n") for panel in names for name in panel)
    height = scale() * ((0.06 + 0.11 * lines) * max(map(len, names)) + 0.1)
    sheet = Sheet(len(drawn), 1, height, fixed=True)
    for ax, panel, named in zip(sheet.axes, drawn, names, strict=True):
        _draw_panel(ax, panel)
        ax.set_yticks(range(len(named)), named)
    sheet.axes[-1].set_xlabel("Test accuracy of a client (%)")
    plain: dict[str, Any] = {"color": GREY, "linestyle": ""}
    looks = [
        {**plain, "marker": "|", "markersize": 6},
        {"color": GREY, "linewidth": 5, "alpha": 0.35, "solid_capstyle": "butt"},
        {**plain, "marker": "o", "markersize": 5},
        {**plain, "marker": "o", "markersize": 5, "markerfacecolor": "white"},
    ]
    sheet.name(titles([panel.setting for panel in drawn]))
    sheet.key(looks, KINDS)
    return sheet.finish()


def _draw_panel(ax: Axes, panel: Panel) -> None:
    for y, group in enumerate(panel.groups):
        look = group.row.look.point
        point: dict[str, Any] = {"color": look["color"], "marker": look["marker"], "markersize": 5, "linestyle": ""}
        low, high = np.percentile(group.accuracies, (25, 75))
        ax.plot([low, high], [y, y], color=look["color"], linewidth=5, alpha=0.35, solid_capstyle="butt")
        ax.plot(group.accuracies, np.full(len(group.accuracies), y), color=look["color"], marker="|", markersize=6, linestyle="")
        ax.plot([group.worst], [y], markerfacecolor="white", **point)
        ax.plot([group.median], [y], **point)
    ax.set_ylim(len(panel.groups) - 0.4, -0.6)  # the first method on top
    ax.margins(x=0.03)
    ax.grid(visible=False, axis="y")
