"""`plot scalability`: accuracy and seconds per round over the number of clients."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Engine

from pflbench.report import style, sweep
from pflbench.report.chosen import Filters
from pflbench.store.costs import costs
from pflbench.store.read import Result

COMMAND = "pflbench run -m fedavg -m fedala --clients 10, and again with --clients 20"


def plot(
    engine: Engine,
    *,
    methods: Collection[str] = (),
    datasets: Collection[str] = (),
    partitions: Collection[str] = (),
    status: Collection[str] = ("finished",),
) -> style.Drawing:
    """Up to three groups of settings that differ in the number of clients alone; UserError where there is none."""
    found = Filters(tuple(methods), tuple(datasets), tuple(partitions), status).collect(engine)
    drawn = sweep.sweeps(found, "partition.clients", COMMAND)[: sweep.MOST]
    runs, protocol = sweep.of_all(found, drawn)
    spent = costs(engine, runs, 0.0)

    def seconds(run: Result) -> float | None:
        return spent[run.id].seconds_round if run.id in spent else None

    caption = (
        "Best test accuracy, and training time of a round (median over rounds, without evaluation), over the number of "
        f"clients: {sweep.caption(found, drawn)}"
    )
    with style.context():
        measures = (sweep.ACCURACY, sweep.Measure("Time per round (s)", seconds, from_zero=True))
        return style.Drawing(sweep.draw(found, drawn, measures, "Clients"), caption, found.notes, runs, protocol)
