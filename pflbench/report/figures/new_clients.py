"""Accuracy of clients that never joined over the epochs that they adapt: a panel per setting, a line per method."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sqlalchemy import Engine

from pflbench.report import labels, render, style, web
from pflbench.report.arrangement import OTHERS, Arranged, best_in_colour, busiest, titles
from pflbench.report.figures.curves import line
from pflbench.report.selection import Filters
from pflbench.report.tables.new_clients import select
from pflbench.report.traces import Axis, Panel, lettered, not_drawn
from pflbench.report.web import Interactive
from pflbench.store.rounds import Adaptation, Curve


def plot(engine: Engine, filters: Filters = Filters()) -> style.Drawing:
    """The settings chosen by dataset or partition, else the four with the most runs. Raises UserError without such runs."""
    found, adapted = select(engine, filters)
    chosen = busiest(found, style.PANELS_CHOSEN if filters.datasets or filters.partitions else style.PANELS_UNASKED)
    found, colours = best_in_colour(found, chosen, filters.methods)
    drawn = [panel(found, j, adapted) for j in chosen]
    return render.drawing(
        drawn,
        titles([found.settings[j] for j in chosen]),
        f"{caption(found, chosen)}{colours}",
        (*found.notes, *not_drawn(found, len(drawn))),
        columns=min(2, len(drawn)),
        height=1.75,
        order=[row.label for row in found.rows if row.label != OTHERS],
    )


def page(engine: Engine, filters: Filters, most: int | None = None) -> list[Interactive]:
    """The `most` settings with the most runs, or all. Raises UserError without such runs."""
    found, adapted = select(engine, filters)
    drawn = [(j, panel(found, j, adapted)) for j in busiest(found, most)]
    return [web.figure("new-clients", panel, caption(found, [j]), found.notes) for j, panel in drawn]


def panel(found: Arranged, column: int, adapted: dict[int, Adaptation]) -> Panel:
    """The lines of a setting."""
    cells, setting = found.column(column), found.settings[column]
    lines = [
        line(row, {run.id: _curve(adapted[run.id]) for run in cell}, offset=k / len(cells), unit="epoch")
        for k, (row, cell) in enumerate(cells)
    ]
    x, y = Axis("Epochs of adaptation", whole=True), Axis("Test accuracy of new clients (%)")
    return Panel(setting.title, x, y, lines, tuple(run.id for _, cell in cells for run in cell), (setting,))


def _curve(of: Adaptation) -> Curve:
    return Curve(np.arange(len(of.accuracy)), of.accuracy)


def caption(found: Arranged, columns: Sequence[int]) -> str:
    counts = {len(cell) for (_, j), cell in found.cells.items() if j in columns}
    shaded = " Lines: mean; bands: minimum to maximum over the runs." if max(counts) > 1 else ""
    return (
        "Test accuracy of the clients that never joined, pooled, over the epochs that they adapt what the method gives a new "
        f"client to their own training data: {lettered([found.settings[j].title for j in columns])}. "
        f"{labels.between(counts, 'run')} per method.{shaded}"
    )
