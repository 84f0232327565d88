"""`plot heterogeneity`: accuracy over beta, the parameter of Dirichlet partitions: the smaller, the more the clients differ."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Engine

from pflbench.report import style, sweep
from pflbench.report.chosen import Filters

COMMAND = "pflbench run -m fedavg -m fedala --beta 0.1, and again with --beta 1"


def plot(
    engine: Engine,
    *,
    methods: Collection[str] = (),
    datasets: Collection[str] = (),
    status: Collection[str] = ("finished",),
) -> style.Drawing:
    """Up to three groups of settings that differ in beta alone; UserError where there is none."""
    found = Filters(tuple(methods), tuple(datasets), (), status).collect(engine)
    drawn = sweep.sweeps(found, "partition.beta", COMMAND)[: sweep.MOST]
    runs, protocol = sweep.of_all(found, drawn)

    caption = f"Best test accuracy over beta of the partition Dir(beta): {sweep.caption(found, drawn)}"
    with style.context():
        figure = sweep.draw(found, drawn, (sweep.ACCURACY,), "β (heterogeneous → homogeneous)")
        return style.Drawing(figure, caption, found.notes, runs, protocol)
