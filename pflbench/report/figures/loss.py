"""FedALA's objective (eq. 8) with the trained and with the initialised local models, as in Figure 5 of the paper."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sqlalchemy import Engine

from pflbench.report import looks, render, style, web
from pflbench.report.looks import Look
from pflbench.report.selection import Filters, Observed, cut, first_seeds, observed_titles, spread
from pflbench.report.traces import Axis, Panel, Trace, lettered, loss_axis, with_one_loss_axis
from pflbench.report.web import Interactive
from pflbench.store import arrays, partitions

ARRAYS = ("ala_objective",)
COMMAND = "pflbench run -m fedala --save-artifacts-every 10"
POINTS = 40
# The paper's colours and marks, in shades that colour-blind eyes tell apart.
INITIALISED, TRAINED = Look(looks.COLOURS[1], "o", 0, 1), Look(looks.COLOURS[2], "s", 0, 0)


def plot(engine: Engine, filters: Filters = Filters()) -> style.Drawing:
    """A panel per run, of the first seed. Raises UserError without stored losses."""
    seen, notes = cut(*first_seeds(engine, filters, ARRAYS, COMMAND), filters)
    panels = with_one_loss_axis([panel(engine, one) for one in seen], zero=True)
    return render.drawing(panels, observed_titles(seen, named=True), caption(panels), notes)


def page(engine: Engine, filters: Filters, most: int | None = None) -> list[Interactive]:
    """A figure per run, of the first seed. Raises UserError without stored losses."""
    seen, notes = first_seeds(engine, filters, ARRAYS, COMMAND)
    panels = [panel(engine, one) for one in seen[:most]]
    return [web.figure("loss", panel, caption([panel]), notes) for panel in panels]


def caption(panels: Sequence[Panel]) -> str:
    return (
        "Training loss of the global objective: mean over clients, by their numbers of training samples, on all their training "
        "data, of the local models as trained in a round, and as initialised by ALA before a round's training: "
        f"{lettered([panel.title for panel in panels])}."
    )


def panel(engine: Engine, of: Observed) -> Panel:
    """sum_i k_i L_i over all training data: of the models as trained in a round, and as initialised for the next one.

    Means are over the clients that used ALA in the round.
    """
    assert of.run.partition is not None  # it is stored before a run's first round
    samples = partitions.find(engine, of.run.partition).train.sum(axis=1)
    means = {}
    for t, losses in arrays.read(engine, of.run.id, of.name, spread(of.rounds, POINTS)).items():
        used = ~np.isnan(losses[:, 0])
        shares = samples[: len(used)][used]  # new clients, which never train, are the last of the partition
        means[t] = shares @ losses[used].astype(np.float64) / shares.sum()
    trained, initialised = np.array(list(means.values())).T
    hover = f"round %{{x}}: %{{y:.4f}}<br>run {of.run.id}"
    lines = (
        # Row t of the database has the reception of round t + 1.
        Trace([t + 1 for t in means], initialised, INITIALISED, "initialised local models", hover=hover),
        Trace(list(means), trained, TRAINED, "trained local models", hover=hover),
    )
    y = loss_axis("Training loss", [*initialised, *trained], zero=True)
    return Panel(of.title, Axis("Round", whole=True), y, lines, (of.run.id,), (of.setting,))
