"""Accuracy of clients that never joined over the epochs that they adapt: a panel per setting, a line per method."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sqlalchemy import Engine

from pflbench.report import render, style, web
from pflbench.report.arrangement import Arranged, busiest
from pflbench.report.figures.curves import line, settings_and_runs
from pflbench.report.selection import Filters
from pflbench.report.tables.new_clients import select
from pflbench.report.traces import Axis, Panel
from pflbench.report.web import Interactive
from pflbench.store.rounds import Adaptation, Curve


def plot(engine: Engine, filters: Filters = Filters()) -> style.Drawing:
    """The settings chosen by dataset or partition, else the four with the most runs. Raises UserError without such runs."""
    found, adapted = select(engine, filters)
    found, chosen, colours = render.chosen_settings(found, filters)
    return render.of_settings(found, [panel(found, j, adapted) for j in chosen], f"{caption(found, chosen)}{colours}")


def page(engine: Engine, filters: Filters, most: int | None = None) -> list[Interactive]:
    """The `most` settings with the most runs, or all. Raises UserError without such runs."""
    found, adapted = select(engine, filters)
    drawn = [(j, panel(found, j, adapted)) for j in busiest(found, most)]
    return [web.figure("new-clients", panel, caption(found, [j]), found.notes) for j, panel in drawn]


def panel(found: Arranged, column: int, adapted: dict[int, Adaptation]) -> Panel:
    """The lines of a setting."""
    cells, setting = found.column(column), found.settings[column]
    curves = {run: Curve(np.arange(len(of.accuracy)), of.accuracy) for run, of in adapted.items()}
    lines = [
        line(row, {run.id: curves[run.id] for run in cell}, offset=k / len(cells), unit="epoch")
        for k, (row, cell) in enumerate(cells)
    ]
    x, y = Axis("Epochs of adaptation", whole=True), Axis("Test accuracy of new clients (%)")
    return Panel(setting.title, x, y, lines, tuple(run.id for _, cell in cells for run in cell), (setting,))


def caption(found: Arranged, columns: Sequence[int]) -> str:
    return (
        "Test accuracy of the clients that never joined, pooled, over the epochs that they adapt what the method gives a new "
        f"client to their own training data: {settings_and_runs(found, columns)}"
    )
