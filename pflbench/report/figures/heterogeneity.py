"""Accuracy over beta, the parameter of Dirichlet partitions: the smaller, the more the clients differ."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Engine

from pflbench.report import parameter_curve, style, web
from pflbench.report.arrangement import Arranged
from pflbench.report.selection import Filters
from pflbench.report.web import Interactive

KEY = "partition.beta"
X = "β (heterogeneous → homogeneous)"
COMMAND = "pflbench run -m fedavg -m fedala --beta 0.1, and again with --beta 1"


def plot(engine: Engine, filters: Filters = Filters()) -> style.Drawing:
    """Up to three groups of settings that differ only in beta. Raises UserError if there is none."""
    found = filters.select(engine)
    drawn = parameter_curve.sweeps(found, KEY, COMMAND)[: parameter_curve.MOST]
    return parameter_curve.drawing(found, drawn, (parameter_curve.ACCURACY,), caption(found, drawn), X)


def caption(found: Arranged, drawn: Sequence[parameter_curve.Sweep]) -> str:
    return f"Best test accuracy over beta of the partition Dir(beta): {parameter_curve.caption(found, drawn)}"


def page(engine: Engine, filters: Filters, most: int | None = None) -> list[Interactive]:
    """A figure for each group of settings that differ only in beta. Raises UserError if there is none."""
    found = filters.select(engine)
    made = parameter_curve.sweeps(found, KEY, COMMAND)[:most]
    panels = [parameter_curve.panel(found, one, parameter_curve.ACCURACY, X) for one in made]
    return [
        web.figure("heterogeneity", panel, caption(found, [one]), found.notes) for one, panel in zip(made, panels, strict=True)
    ]
