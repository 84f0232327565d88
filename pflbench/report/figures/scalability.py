"""Accuracy and seconds per round over the number of clients."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Engine

from pflbench.report import parameter_curve, style, web
from pflbench.report.arrangement import Arranged
from pflbench.report.selection import Filters
from pflbench.report.web import Interactive
from pflbench.store.rounds import costs
from pflbench.store.runs import Result

KEY = "partition.clients"
X = "Clients"
COMMAND = "pflbench run -m fedavg -m fedala --clients 10, and again with --clients 20"


def plot(engine: Engine, filters: Filters = Filters()) -> style.Drawing:
    """Up to three groups of settings that differ only in the number of clients. Raises UserError if there is none."""
    found = filters.select(engine)
    drawn = parameter_curve.sweeps(found, KEY, COMMAND)[: parameter_curve.MOST]
    return parameter_curve.drawing(found, drawn, measures(engine, found), caption(found, drawn), X)


def measures(engine: Engine, found: Arranged) -> tuple[parameter_curve.Measure, ...]:
    """The two measures: accuracy and seconds per round."""
    spent = costs(engine, [run.id for cell in found.cells.values() for run in cell], 0.0)

    def seconds(run: Result) -> float | None:
        return spent[run.id].seconds_round if run.id in spent else None

    return (parameter_curve.ACCURACY, parameter_curve.Measure("Time per round (s)", seconds, from_zero=True))


def caption(found: Arranged, drawn: Sequence[parameter_curve.Sweep]) -> str:
    return (
        "Best test accuracy, and training time of a round (median over rounds, without evaluation), over the number of "
        f"clients: {parameter_curve.caption(found, drawn)}"
    )


def page(engine: Engine, filters: Filters, most: int | None = None) -> list[Interactive]:
    """Two figures for each group of settings that differ only in the number of clients. Raises UserError if there is none."""
    found = filters.select(engine)
    return [
        web.figure("scalability", parameter_curve.panel(found, one, measure, X), caption(found, [one]), found.notes)
        for one in parameter_curve.sweeps(found, KEY, COMMAND)[:most]
        for measure in measures(engine, found)
    ]
