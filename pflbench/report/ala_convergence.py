"""`plot ala-convergence`: a client's loss over ALA's weight-learning epochs, as in Figure 3 of the FedALA paper.

A panel per setting and a line per round show what that figure is cited for: the weights converge in the initial stage, and
hardly move in the rounds thereafter.
"""

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
from pflbench.report.looks import MARKERS
from pflbench.store import observed
from pflbench.store.read import Floats

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMMAND = "pflbench run -m fedala --set fedala.min_epochs=6 --observe-every 1"
CLIENT = 8
ROUNDS = 6


@dataclass(frozen=True)
class Panel:
    """losses[t]: the client's mean loss of each epoch of weight learning at the beginning of round t."""

    of: Observed
    losses: dict[int, Floats]


def plot(
    engine: Engine,
    *,
    methods: Collection[str] = (),
    datasets: Collection[str] = (),
    partitions: Collection[str] = (),
    status: Collection[str] = ("finished",),
    client: int = CLIENT,
) -> style.Drawing:
    """Of several seeds the first. Raises UserError where no run kept its losses, or none has this client."""
    filters = Filters(tuple(methods), tuple(datasets), tuple(partitions), status)
    found = filters.collect(engine)
    seen, notes = cut(one_per_line(with_arrays(engine, found, ["ala_epoch_losses"], COMMAND)), filters)
    panels = [made for one in seen if (made := panel(engine, one, client)).losses]
    if not panels:
        fewest = min(one.setting.spec["partition"]["clients"] for one in seen)
        raise UserError(
            f"Client {client} learned no weights in the rounds that were kept.",
            f"Clients are numbered from 0, here to {fewest - 1}: choose one with --client.",
        )
    runs = tuple(sorted(panel.of.run.id for panel in panels))
    with style.context():
        figure = _draw(panels)
        return style.Drawing(
            figure, caption(panels, client), (*found.notes, *notes), runs, protocol([panel.of.setting for panel in panels])
        )


def caption(panels: Sequence[Panel], client: int) -> str:
    return (
        f"Loss of client {client} over the epochs of weight learning in ALA, by round; mean over the mini-batches of an epoch, "
        f"each before its step: {lettered([panel.of.title for panel in panels])}. In the first round shown with more epochs the "
        "weights are learned until they converge (initial stage)."
    )


def panel(engine: Engine, of: Observed, client: int) -> Panel:
    """The first rounds tell more than the later ones, which are evenly spaced. No losses: the client learned no weights."""
    losses = {}
    if client < of.setting.spec["partition"]["clients"]:
        rows = sorted({*of.rounds[:2], *spread(of.rounds, ROUNDS - 1)})
        for t, array in observed.arrays(engine, of.run.id, of.name, rows).items():
            mine = array[client]
            if len(mine := mine[~np.isnan(mine)]):
                losses[t + 1] = mine.astype(np.float64)
    return Panel(of, losses)


def _draw(panels: Sequence[Panel]) -> Figure:
    columns = min(len(panels), 2)
    rounds = sorted({t for panel in panels for t in panel.losses})
    looks: dict[int, dict[str, Any]] = {
        t: {"color": colour, "marker": MARKERS[k % len(MARKERS)]}
        for k, (t, colour) in enumerate(zip(rounds, style.shades(len(rounds)), strict=True))
    }
    sheet = Sheet(len(panels), columns, 1.7)
    for k, (ax, panel) in enumerate(zip(sheet.axes, panels, strict=True)):
        for t, losses in panel.losses.items():
            ax.plot(np.arange(1, len(losses) + 1), losses, markevery=max(1, len(losses) // 10), **looks[t])
        style.losses(ax, np.concatenate(list(panel.losses.values())).tolist())
        style.whole(ax.xaxis)
        ax.set_xlabel("Weight-learning epoch" if sheet.bottom(k) else "")
        ax.set_ylabel("Local loss" if sheet.left(k) else "")
    sheet.name(observed_titles([panel.of for panel in panels]))
    sheet.key(list(looks.values()), [f"round {t}" for t in rounds])
    return sheet.finish()
