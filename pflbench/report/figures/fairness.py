"""The accuracies of all clients by method, with quartiles, median and worst tenth."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from sqlalchemy import Engine

from pflbench.report import render, style, web
from pflbench.report.arrangement import Arranged, Row, busiest
from pflbench.report.looks import PLUGGED, Look
from pflbench.report.selection import Filters
from pflbench.report.statistics import worst_tenth
from pflbench.report.traces import GREY, Axis, Panel, Trace, Values, lettered, run_numbers
from pflbench.report.web import Interactive
from pflbench.store import rounds
from pflbench.store.rounds import Clients

LETTERS = 24  # of a method's name in a line
BESIDE = 0.08  # of the accuracies' range, at both ends: no marker touches the frame
MOST = 4  # settings below one another
METHOD, LABEL_LINE, AROUND = 38, 18, 110  # on a page, pixels in height: for a method, for a line of its name, beside them
# What is drawn of each method, in grey for the legend.
CLIENTS = Trace((), (), Look(GREY, "|", 0, 0), "a client", "markers", size=6)
QUARTILES = Trace((), (), Look(GREY, "o", 0, 0), "quartiles", "lines", width=5, opacity=0.35)
MEDIAN = Trace((), (), Look(GREY, "o", 0, 0), "median", "markers", size=5)
LOW = Trace((), (), Look(GREY, "o", PLUGGED, 0), "worst tenth, mean", "markers", size=5)
KINDS = (CLIENTS, QUARTILES, MEDIAN, LOW)


def plot(engine: Engine, filters: Filters = Filters()) -> style.Drawing:
    """The setting with the most runs, or up to four chosen ones. Raises UserError without results by client."""
    found = filters.select(engine)
    drawn = [panel(engine, found, j) for j in busiest(found, MOST if filters.datasets or filters.partitions else 1)]
    names = [[*(panel.y.ticks or {}).values()] for panel in drawn]
    lines = 1 + max(name.count("\n") for panel in names for name in panel)
    height = style.scale() * ((0.06 + 0.11 * lines) * max(map(len, names)) + 0.1)
    return render.of_settings(found, drawn, caption(drawn), columns=1, height=height, fixed=True)


def page(engine: Engine, filters: Filters, most: int | None = None) -> list[Interactive]:
    """All settings whose runs have results by client. Raises UserError without runs."""
    found = filters.select(engine)
    panels, left_out = web.possible(busiest(found, most), partial(panel, engine, found))
    return [web.figure("fairness", panel, caption([panel]), (*found.notes, *left_out)) for panel in panels]


def caption(drawn: Sequence[Panel]) -> str:
    return (
        "Test accuracy of each client after the best round of its run (ticks), quartiles (bar), median and mean of the worst "
        f"tenth of the clients (markers): {lettered([panel.title for panel in drawn])}. Runs that differ in the seed are "
        "pooled; median and worst tenth are means over runs."
    )


def panel(engine: Engine, found: Arranged, column: int) -> Panel:
    """The clients of a setting. Raises UserError if one of its runs has no results by client."""
    cells = found.column(column)
    tested = rounds.clients_of(engine, {run.id: run.round for _, cell in cells for run in cell if run.round is not None})
    names = [textwrap.fill(row.label, LETTERS) for row, _ in cells]
    lines = 1 + max(name.count("\n") for name in names)
    traces = [trace for y, (row, cell) in enumerate(cells) for trace in _traces(row, {run.id: tested[run.id] for run in cell}, y)]
    return Panel(
        found.settings[column].title,
        Axis("Test accuracy of a client (%)"),
        Axis("", limits=(len(cells) - 0.4, -0.6), ticks=dict(enumerate(names)), grid=False),  # the first method on top
        [*traces, *KINDS],
        tuple(tested),
        (found.settings[column],),
        height=AROUND + max(METHOD, LABEL_LINE * lines) * len(cells),
        draw=lambda ax: ax.margins(x=BESIDE),
    )


def _traces(row: Row, tested: Mapping[int, Clients], y: int) -> list[Trace]:
    """The clients of all runs of a method. tested: by run."""
    by_run = [100 * clients.correct / clients.total for clients in tested.values()]
    accuracies = np.concatenate(by_run)
    low, high = np.percentile(accuracies, (25, 75))
    of = [(client, run) for run, clients in tested.items() for client in clients.client.tolist()]

    def drawn(kind: Trace, x: Values, hover: str, data: Sequence[tuple[int, int]] = ()) -> Trace:
        """A trace in the method's colour, with its marker except for ticks."""
        marker = kind.look.marker if kind is CLIENTS else row.look.marker
        look = replace(kind.look, colour=row.look.colour, marker=marker)
        named = f"<b>{web.text(row.label)}</b>, {hover}"
        return replace(kind, x=x, y=[y] * len(x), look=look, label="", group=kind.label, hover=named, data=data)

    mean = f": %{{x:.2f}} %<br>{run_numbers(tuple(tested))}"
    return [
        drawn(QUARTILES, [low, high], f"half of the clients: {low:.2f} to {high:.2f} %"),
        drawn(CLIENTS, accuracies, "client %{customdata[0]}: %{x:.2f} %<br>run %{customdata[1]}", of),
        drawn(LOW, [float(np.mean([worst_tenth(each) for each in by_run]))], f"mean of the worst tenth{mean}"),
        drawn(MEDIAN, [float(np.mean([np.median(each) for each in by_run]))], f"median{mean}"),
    ]
