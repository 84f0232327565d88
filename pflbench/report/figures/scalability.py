"""Accuracy and seconds per round over the number of clients."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import Engine

from pflbench.report import style, sweep
from pflbench.report.arrangement import Arranged
from pflbench.report.selection import Filters
from pflbench.report.web import Interactive
from pflbench.store.rounds import costs
from pflbench.store.runs import Result

KEY = "partition.clients"
X = "Clients"
COMMAND = "pflbench run -m fedavg -m fedala --clients 10, and again with --clients 20"


def plot(engine: Engine, filters: Filters = Filters()) -> style.Drawing:
    """Up to three groups of settings that differ in the number of clients alone; UserError where there is none."""
    found = filters.select(engine)
    drawn = sweep.sweeps(found, KEY, COMMAND)[: sweep.MOST]
    runs, _ = sweep.of_all(found, drawn)
    return sweep.drawing(found, drawn, measures(engine, runs), caption(found, drawn), X)


def measures(engine: Engine, runs: Collection[int]) -> tuple[sweep.Measure, ...]:
    """What is drawn: accuracy, and the seconds per round of these runs."""
    spent = costs(engine, runs, 0.0)

    def seconds(run: Result) -> float | None:
        return spent[run.id].seconds_round if run.id in spent else None

    return (sweep.ACCURACY, sweep.Measure("Time per round (s)", seconds, from_zero=True))


def caption(found: Arranged, drawn: Sequence[sweep.Sweep]) -> str:
    return (
        "Best test accuracy, and training time of a round (median over rounds, without evaluation), over the number of "
        f"clients: {sweep.caption(found, drawn)}"
    )


def page(engine: Engine, filters: Filters, most: int | None = None) -> list[Interactive]:
    """Two figures for each group of settings that differ in the number of clients alone; UserError where there is none."""
    found = filters.select(engine)
    made = sweep.sweeps(found, KEY, COMMAND)[:most]
    runs, _ = sweep.of_all(found, made)
    return [
        sweep.page(found, one, measure, name="scalability", x=X, caption=caption(found, [one]))
        for one in made
        for measure in measures(engine, runs)
    ]
