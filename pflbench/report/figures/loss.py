"""FedALA's objective (eq. 8) with the trained and with the initialised local models, as in Figure 5 of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report import style, web
from pflbench.report.arrangement import protocol
from pflbench.report.layout import Sheet, lettered
from pflbench.report.selection import Filters, Observed, cut, observed_titles, one_per_line, spread, with_arrays
from pflbench.report.web import Interactive
from pflbench.store import arrays, partitions
from pflbench.store.arrays import Floats

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
class ObjectivePanel:
    """sum_i k_i L_i over all training data: of the models as trained in `round`, and as initialised for the next one."""

    of: Observed
    round: tuple[int, ...]
    trained: Floats
    initialised: Floats

    def all_losses(self) -> list[float]:
        return [*self.initialised.tolist(), *self.trained.tolist()]

    def lines(self) -> tuple[tuple[str, list[int], Floats], ...]:
        """Name, rounds and losses: row t of the database has the reception of round t + 1."""
        initialised, trained = LOOKS
        return (initialised, [t + 1 for t in self.round], self.initialised), (trained, list(self.round), self.trained)


def plot(engine: Engine, filters: Filters = Filters()) -> style.Drawing:
    """A panel per run; of several seeds the first. Raises UserError where no run kept the losses."""
    found = filters.select(engine)
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


def panel(engine: Engine, of: Observed) -> ObjectivePanel:
    """Raises UserError for a run without a partition."""
    if of.run.partition is None:
        raise UserError(f"Run {of.run.id} has no partition, and so no numbers of samples.", "Leave it out with --method.")
    samples = partitions.find(engine, of.run.partition).train.sum(axis=1)
    terms = arrays.read(engine, of.run.id, of.name, spread(of.rounds, POINTS))
    trained, initialised = np.array([_mean(losses, samples) for losses in terms.values()]).T
    return ObjectivePanel(of, tuple(terms), trained, initialised)


def _mean(losses: Floats, samples: np.ndarray[Any, np.dtype[np.int64]]) -> Floats:
    """Over the clients that used ALA in this round, [N, 2] -> [2]."""
    there = ~np.isnan(losses[:, 0])
    mean: Floats = samples[there] @ losses[there].astype(np.float64) / samples[there].sum()
    return mean


def _draw(panels: Sequence[ObjectivePanel]) -> Figure:
    columns = min(len(panels), 2)
    sheet = Sheet(len(panels), columns, 1.7)
    for k, (ax, panel) in enumerate(zip(sheet.axes, panels, strict=True)):
        for name, rounds, losses in panel.lines():
            ax.plot(rounds, losses, **LOOKS[name])
        ax.set_ylim(bottom=0)
        style.losses(ax, panel.all_losses())
        style.whole(ax.xaxis)
        ax.set_xlabel("Round" if sheet.bottom(k) else "")
        ax.set_ylabel("Training loss" if sheet.left(k) else "")
    sheet.name(observed_titles([panel.of for panel in panels], named=True))
    sheet.key(list(LOOKS.values()), list(LOOKS))
    return sheet.finish()


def page(engine: Engine, filters: Filters, most: int | None = None) -> list[Interactive]:
    """A figure for each run; of several seeds the first. Raises UserError where no run kept its losses."""
    found = filters.select(engine)
    seen = one_per_line(with_arrays(engine, found, ["ala_objective"], COMMAND))
    panels, left_out = web.possible(seen[:most], partial(panel, engine))
    return [_page(panel, (*found.notes, *left_out)) for panel in panels]


def _page(panel: ObjectivePanel, notes: tuple[str, ...]) -> Interactive:
    lines = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "x": rounds,
            "y": web.numbers(losses),
            "line": {"color": LOOKS[name]["color"], "dash": web.DASHES[LOOKS[name]["linestyle"]], "width": 2},
            "marker": {"color": LOOKS[name]["color"], "symbol": web.SYMBOLS[LOOKS[name]["marker"]], "size": 7},
            "hovertemplate": f"{name}<br>round %{{x}}: %{{y:.4f}}<br>run {panel.of.run.id}<extra></extra>",
        }
        for name, rounds, losses in panel.lines()
    ]
    return web.make(
        "loss",
        panel.of.title,
        f"{caption([panel.of])} {protocol([panel.of.setting])}",
        lines,
        web.layout(
            web.whole("Round", panel.round[-1], rangemode="tozero"),
            web.losses("Training loss", panel.all_losses(), rangemode="tozero"),
            legend=True,
        ),
        notes=notes,
        runs=[panel.of.run.id],
    )
