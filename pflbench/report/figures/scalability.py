"""Accuracy and seconds per round over the number of clients."""

from __future__ import annotations

from sqlalchemy import Engine

from pflbench.report.arrangement import Arranged
from pflbench.report.parameter_curve import Measure, Parameter, ParameterFigure
from pflbench.store.rounds import costs


def _time_per_round(engine: Engine, found: Arranged) -> Measure:
    spent = costs(engine, [run.id for run in found.runs], 0.0)
    return Measure("Time per round (s)", {run: cost.seconds_round for run, cost in spent.items()}, from_zero=True)


FIGURE = ParameterFigure(
    "scalability",
    Parameter("partition.clients", "Clients"),
    "Best test accuracy, and training time of a round (median over rounds, without evaluation), over the number of clients",
    "pflbench run -m fedavg -m fedala --clients 10, and again with --clients 20",
    _time_per_round,
)
plot, page = FIGURE.plot, FIGURE.page
