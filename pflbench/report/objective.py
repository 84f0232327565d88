"""`plot loss`: FedALA's objective (eq. 8) with the trained and with the initialised local models, as in Figure 5 of the paper."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report import style
from pflbench.report.chosen import Filters, Observed, cut, observed_titles, one_per_line, protocol, spread, with_arrays
from pflbench.report.layout import Sheet, lettered
from pflbench.store import observed, read
from pflbench.store.read import Floats

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMMAND = "pflbench run -m fedala --observe-every 10"
POINTS = 40
# The paper's colours and marks, in shades that colour-blind eyes tell apart.
LOOKS: dict[str, dict[str, Any]] = {
    "initialised local models": {"color": "#D55E00", "marker": "o", "linestyle": "--"},
    "trained local models": {"color": "#009E73", "marker": "s", "linestyle": "-"},
}


@dataclass(frozen=True)
class Panel:
    """sum_i k_i L_i over all training data: of the models as trained in `round`, and as initialised for the next one."""

    of: Observed
    round: tuple[int, ...]
    trained: Floats
    initialised: Floats


def plot(
    engine: Engine,
    *,
    methods: Collection[str] = (),
    datasets: Collection[str] = (),
    partitions: Collection[str] = (),
    status: Collection[str] = ("finished",),
) -> style.Drawing:
    """A panel per run; of several seeds the first. Raises UserError where no run kept the losses."""
    filters = Filters(tuple(methods), tuple(datasets), tuple(partitions), status)
    found = filters.collect(engine)
    seen, notes = cut(one_per_line(with_arrays(engine, found, ["ala_objective"], COMMAND)), filters)
    panels = [panel(engine, one) for one in seen]
    runs = tuple(sorted(one.run.id for one in seen))
    with style.context():
        figure = _draw(panels)
        return style.Drawing(figure, caption(seen), (*found.notes, *notes), runs, protocol([one.setting for one in seen]))


def caption(seen: Sequence[Observed]) -> str:
    return (
        "Training loss of the global objective: mean over clients, by their numbers of training samples, on all their training "
        "data, of the local models as trained in a round, and as initialised by ALA before a round's training: "
        f"{lettered([one.title for one in seen])}."
    )


def panel(engine: Engine, of: Observed) -> Panel:
    """Raises UserError for a run without a partition."""
    if of.run.partition is None:
        raise UserError(f"Run {of.run.id} has no partition, and so no numbers of samples.", "Leave it out with --method.")
    samples = read.partition(engine, of.run.partition).train.sum(axis=1)
    terms = observed.arrays(engine, of.run.id, of.name, spread(of.rounds, POINTS))
    trained, initialised = np.array([_mean(losses, samples) for losses in terms.values()]).T
    return Panel(of, tuple(terms), trained, initialised)


def _mean(losses: Floats, samples: np.ndarray[Any, np.dtype[np.int64]]) -> Floats:
    """Over the clients that used ALA in this round, [N, 2] -> [2]."""
    there = ~np.isnan(losses[:, 0])
    mean: Floats = samples[there] @ losses[there].astype(np.float64) / samples[there].sum()
    return mean


def _draw(panels: Sequence[Panel]) -> Figure:
    columns = min(len(panels), 2)
    sheet = Sheet(len(panels), columns, 1.7)
    for k, (ax, panel) in enumerate(zip(sheet.axes, panels, strict=True)):
        initialised, trained = LOOKS.values()
        # Row t of the database has the reception of round t + 1.
        ax.plot([t + 1 for t in panel.round], panel.initialised, **initialised)
        ax.plot(panel.round, panel.trained, **trained)
        ax.set_ylim(bottom=0)
        style.losses(ax, [*panel.initialised.tolist(), *panel.trained.tolist()])
        style.whole(ax.xaxis)
        ax.set_xlabel("Round" if sheet.bottom(k) else "")
        ax.set_ylabel("Training loss" if sheet.left(k) else "")
    sheet.name(observed_titles([panel.of for panel in panels], named=True))
    sheet.key(list(LOOKS.values()), list(LOOKS))
    return sheet.finish()
