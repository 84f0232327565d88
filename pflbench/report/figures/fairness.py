"""How the clients fare under each method: all of them, their quartiles, median and worst tenth."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report import style, web
from pflbench.report.arrangement import Arranged, Row, SharedSetting, busiest, protocol, titles
from pflbench.report.layout import Sheet, lettered, scale
from pflbench.report.selection import Filters
from pflbench.report.web import Interactive, Json
from pflbench.store import rounds
from pflbench.store.arrays import Floats, Integers
from pflbench.store.runs import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WORST = 0.1
LETTERS = 24  # of a method's name in a line
MOST = 4  # settings below one another
GREY = "#666666"
KINDS = ("a client", "quartiles", "median", "worst tenth, mean")
METHOD, LABEL_LINE, AROUND = 38, 18, 110  # on a page, pixels in height: for a method, for a line of its name, beside them


@dataclass(frozen=True)
class MethodClients:
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
class FairnessPanel:
    setting: SharedSetting
    groups: tuple[MethodClients, ...]


def plot(engine: Engine, filters: Filters = Filters()) -> style.Drawing:
    """The setting with the most runs, or up to four chosen ones. Raises UserError where no run has results by client."""
    found = filters.select(engine)
    drawn = [panel(engine, found, j) for j in busiest(found, MOST if filters.datasets or filters.partitions else 1)]
    notes = list(found.notes)
    if len(found.settings) > len(drawn):
        notes.append(f"Drawn: {len(drawn)} of {len(found.settings)} settings. Choose with --dataset and --partition.")
    runs = tuple(sorted(run for panel in drawn for group in panel.groups for run in group.runs))
    with style.context():
        figure = _draw(drawn)
        return style.Drawing(figure, caption(drawn), tuple(notes), runs, protocol([panel.setting for panel in drawn]))


def caption(drawn: Sequence[FairnessPanel]) -> str:
    return (
        "Test accuracy of each client after the best round of its run (ticks), quartiles (bar), median and mean of the worst "
        f"tenth of the clients (markers): {lettered([panel.setting.title for panel in drawn])}. Runs that differ in the seed are "
        "pooled; median and worst tenth are means over runs."
    )


def worst(accuracies: Floats) -> float:
    """The mean of the worst tenth of the clients, at least one."""
    return float(np.sort(accuracies)[: math.ceil(WORST * len(accuracies))].mean())


def panel(engine: Engine, found: Arranged, column: int) -> FairnessPanel:
    """The clients of the setting with this number. Raises UserError where a run of it has no results by client."""
    cells = [(found.rows[i], cell) for (i, j), cell in sorted(found.cells.items()) if j == column]
    tested = rounds.clients_of(engine, {run.id: _best(run) for _, cell in cells for run in cell})
    groups = tuple(_group(row, cell, [tested[run.id] for run in cell]) for row, cell in cells)
    return FairnessPanel(found.settings[column], groups)


def _group(row: Row, cell: Sequence[Result], tested: Sequence[rounds.Clients]) -> MethodClients:
    each = [100 * clients.correct / clients.total for clients in tested]
    median, low = (float(np.mean([of(one) for one in each])) for of in (np.median, worst))
    runs = tuple(run.id for run in cell)
    of = np.repeat(runs, [len(one) for one in each])
    return MethodClients(row, np.concatenate(each), np.concatenate([clients.client for clients in tested]), of, median, low, runs)


def _best(run: Result) -> int:
    if run.round is None:
        raise UserError(f"Run {run.id} has no evaluated round.", "Leave it out with --method or --status.")
    return run.round


def _draw(drawn: Sequence[FairnessPanel]) -> Figure:
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


def _draw_panel(ax: Axes, panel: FairnessPanel) -> None:
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


def page(engine: Engine, filters: Filters, most: int | None = None) -> list[Interactive]:
    """Of all settings whose runs have results by client. Raises UserError when there are no runs."""
    found = filters.select(engine)
    panels, left_out = web.possible(busiest(found, most), partial(panel, engine, found))
    return [_page(panel, (*found.notes, *left_out)) for panel in panels]


def _page(panel: FairnessPanel, notes: tuple[str, ...]) -> Interactive:
    names = [web.text(textwrap.fill(group.row.label, LETTERS)).replace("\n", "<br>") for group in panel.groups]
    drawn = (_each_client(panel), _quartiles(panel), _median(panel), _worst(panel))
    traces = [{**trace, "legendgroup": kind, "showlegend": False} for kind, trace in zip(KINDS, drawn, strict=True)]
    rows, lines = len(panel.groups), 1 + max(name.count("<br>") for name in names)
    y = web.axis("", range=[rows - 0.4, -0.6], tickmode="array", tickvals=list(range(rows)), ticktext=names, showgrid=False)
    height = AROUND + max(METHOD, LABEL_LINE * lines) * rows
    return web.make(
        "fairness",
        panel.setting.title,
        f"{caption([panel])} {protocol([panel.setting])}",
        [*traces, *map(_key, KINDS, drawn)],
        web.layout(web.axis("Test accuracy of a client (%)"), y, legend=True, height=height),
        notes=notes,
        runs=[run for group in panel.groups for run in group.runs],
    )


def _each_client(panel: FairnessPanel) -> Json:
    return {
        **_marks(panel, [group.accuracies for group in panel.groups], "line-ns"),
        "customdata": [
            [web.text(group.row.label), client, run]
            for group in panel.groups
            for client, run in zip(group.clients.tolist(), group.of.tolist(), strict=True)
        ],
        "hovertemplate": "<b>%{customdata[0]}</b>, client %{customdata[1]}: %{x:.2f} %<br>run %{customdata[2]}<extra></extra>",
    }


def _median(panel: FairnessPanel) -> Json:
    return _summary(panel, [group.median for group in panel.groups], "median", "")


def _worst(panel: FairnessPanel) -> Json:
    return _summary(panel, [group.worst for group in panel.groups], "mean of the worst tenth", "-open")


def _summary(panel: FairnessPanel, at: Sequence[float], what: str, fill: str) -> Json:
    return {
        **_marks(panel, [[value] for value in at], [web.symbol(group.row) + fill for group in panel.groups]),
        "customdata": [[web.text(group.row.label), web.of_runs(group.runs)] for group in panel.groups],
        "hovertemplate": f"<b>%{{customdata[0]}}</b>, {what}: %{{x:.2f}} %<br>%{{customdata[1]}}<extra></extra>",
    }


def _marks(panel: FairnessPanel, of: Sequence[Sequence[float] | Floats], symbols: str | list[str]) -> Json:
    """Points of each method's line, in its colour."""
    colours = [web.colour(group.row) for group, values in zip(panel.groups, of, strict=True) for _ in values]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": web.numbers(value for values in of for value in values),
        "y": [k for k, values in enumerate(of) for _ in values],
        "marker": {"color": colours, "symbol": symbols, "size": 10, "line": {"color": colours, "width": 1.5}},
    }


def _quartiles(panel: FairnessPanel) -> Json:
    low, high = np.array([np.percentile(group.accuracies, (25, 75)) for group in panel.groups]).T
    return {
        "type": "bar",
        "orientation": "h",
        "base": web.numbers(low),
        "x": web.numbers(high - low),
        "y": list(range(len(panel.groups))),
        "width": 0.32,
        "marker": {"color": [web.faint(web.colour(group.row), 0.35) for group in panel.groups], "line": {"width": 0}},
        "customdata": [
            [web.text(group.row.label), *web.numbers(bounds)] for group, *bounds in zip(panel.groups, low, high, strict=True)
        ],
        "hovertemplate": (
            "<b>%{customdata[0]}</b>, half of the clients: %{customdata[1]:.2f} to %{customdata[2]:.2f} %<extra></extra>"
        ),
    }


def _key(kind: str, drawn: Json) -> Json:
    """An entry of the legend without points: those that are drawn have the colours of the methods."""
    symbol = drawn["marker"].get("symbol", "square")
    mark = symbol if isinstance(symbol, str) else "circle-open" if "open" in symbol[0] else "circle"
    return {
        "type": "scatter",
        "mode": "markers",
        "name": kind,
        "legendgroup": kind,
        "x": [None],
        "y": [None],
        "marker": {"color": web.GREY, "symbol": mark, "size": 10, "line": {"color": web.GREY, "width": 1.5}},
    }
