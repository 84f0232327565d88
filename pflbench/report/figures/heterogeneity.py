"""Accuracy over beta, the parameter of Dirichlet partitions: the smaller, the more the clients differ."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Engine

from pflbench.report import style, sweep
from pflbench.report.arrangement import Arranged
from pflbench.report.selection import Filters
from pflbench.report.web import Interactive

KEY = "partition.beta"
X = "β (heterogeneous → homogeneous)"
COMMAND = "pflbench run -m fedavg -m fedala --beta 0.1, and again with --beta 1"


def plot(engine: Engine, filters: Filters = Filters()) -> style.Drawing:
    """Up to three groups of settings that differ in beta alone; UserError where there is none."""
    found = filters.select(engine)
    drawn = sweep.sweeps(found, KEY, COMMAND)[: sweep.MOST]
    return sweep.drawing(found, drawn, (sweep.ACCURACY,), caption(found, drawn), X)


def caption(found: Arranged, drawn: Sequence[sweep.Sweep]) -> str:
    return f"Best test accuracy over beta of the partition Dir(beta): {sweep.caption(found, drawn)}"


def page(engine: Engine, filters: Filters, most: int | None = None) -> list[Interactive]:
    """A figure for each group of settings that differ in beta alone; UserError where there is none."""
    found = filters.select(engine)
    made = sweep.sweeps(found, KEY, COMMAND)[:most]
    return [sweep.page(found, one, sweep.ACCURACY, name="heterogeneity", x=X, caption=caption(found, [one])) for one in made]
