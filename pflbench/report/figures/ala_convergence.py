"""A client's loss over ALA's weight-learning epochs, as in Figure 3 of the FedALA paper.

A panel per setting and a line per round show what that figure is cited for: the weights converge in the initial stage, and
hardly move in the rounds thereafter.
"""

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
from pflbench.report.looks import MARKERS
from pflbench.report.selection import Filters, Observed, cut, observed_titles, one_per_line, spread, with_arrays
from pflbench.report.web import Interactive
from pflbench.store import arrays
from pflbench.store.arrays import Floats

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMMAND = "pflbench run -m fedala --set fedala.min_epochs=6 --observe-every 1"
CLIENT = 8
ROUNDS = 6


@dataclass(frozen=True)
class LearningPanel:
    """losses[t]: the client's mean loss of each epoch of weight learning at the beginning of round t."""

    of: Observed
    client: int
    losses: dict[int, Floats]

    def all_losses(self) -> list[float]:
        return [loss for losses in self.losses.values() for loss in losses.tolist()]


def plot(engine: Engine, filters: Filters = Filters(), *, client: int = CLIENT) -> style.Drawing:
    """Of several seeds the first. Raises UserError where no run kept its losses, or none has this client."""
    found = filters.select(engine)
    seen, notes = cut(one_per_line(with_arrays(engine, found, ["ala_epoch_losses"], COMMAND)), filters)
    panels = [made for one in seen if (made := panel(engine, one, client)).losses]
    if not panels:
        fewest = min(one.setting.spec["partition"]["clients"] for one in seen)
        raise UserError(
            f"Client {client} learned no weights in the rounds that were kept.",
            f"Clients are numbered from 0, here to {fewest - 1}: choose one with --client.",
        )
    drawn = [panel.of for panel in panels]
    runs = tuple(sorted(one.run.id for one in drawn))
    with style.context():
        figure = _draw(panels)
        return style.Drawing(figure, caption(panels), (*found.notes, *notes), runs, protocol([one.setting for one in drawn]))


def caption(panels: Sequence[LearningPanel]) -> str:
    """All panels are of one client."""
    return (
        f"Loss of client {panels[0].client} over the epochs of weight learning in ALA, by round; mean over the mini-batches of "
        f"an epoch, each before its step: {lettered([panel.of.title for panel in panels])}. In the first round shown with more "
        "epochs the weights are learned until they converge (initial stage)."
    )


def panel(engine: Engine, of: Observed, client: int) -> LearningPanel:
    """The first rounds tell more than the later ones, which are evenly spaced. No losses: the client learned no weights."""
    losses = {}
    if client < of.setting.spec["partition"]["clients"]:
        rows = sorted({*of.rounds[:2], *spread(of.rounds, ROUNDS - 1)})
        for t, array in arrays.read(engine, of.run.id, of.name, rows).items():
            mine = array[client]
            if len(mine := mine[~np.isnan(mine)]):
                losses[t + 1] = mine.astype(np.float64)
    return LearningPanel(of, client, losses)


def _draw(panels: Sequence[LearningPanel]) -> Figure:
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
        style.losses(ax, panel.all_losses())
        style.whole(ax.xaxis)
        ax.set_xlabel("Weight-learning epoch" if sheet.bottom(k) else "")
        ax.set_ylabel("Local loss" if sheet.left(k) else "")
    sheet.name(observed_titles([panel.of for panel in panels]))
    sheet.key(list(looks.values()), [f"round {t}" for t in rounds])
    return sheet.finish()


def page(engine: Engine, filters: Filters, most: int | None = None) -> list[Interactive]:
    """Of the client that the paper shows, else the first that learned; of several seeds the first.

    Raises UserError where no run kept its losses.
    """
    found = filters.select(engine)
    seen = one_per_line(with_arrays(engine, found, ["ala_epoch_losses"], COMMAND))
    panels, left_out = web.possible(seen[:most], partial(_learning, engine))
    return [_page(panel, (*found.notes, *left_out)) for panel in panels]


def _learning(engine: Engine, of: Observed) -> LearningPanel:
    for client in (CLIENT, *range(of.setting.spec["partition"]["clients"])):
        if (made := panel(engine, of, client)).losses:
            return made
    raise UserError(f"No client of run {of.run.id} learned weights in the rounds that were kept.")


def _page(panel: LearningPanel, notes: tuple[str, ...]) -> Interactive:
    colours = style.shades(len(panel.losses), *web.SHADES)
    symbols = list(web.SYMBOLS.values())
    lines = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": f"round {t}",
            "x": list(range(1, len(losses) + 1)),
            "y": web.numbers(losses),
            "line": {"color": colour, "width": 2},
            "marker": {"color": colour, "symbol": symbols[k % len(symbols)], "size": 7, "maxdisplayed": 12},
            "hovertemplate": f"round {t}, epoch %{{x}}<br>loss %{{y:.4f}}<br>run {panel.of.run.id}<extra></extra>",
        }
        for k, ((t, losses), colour) in enumerate(zip(panel.losses.items(), colours, strict=True))
    ]
    x = web.whole("Weight-learning epoch", max(map(len, panel.losses.values())), rangemode="tozero")
    return web.make(
        "ala-convergence",
        panel.of.title,
        f"{caption([panel])} {protocol([panel.of.setting])}",
        lines,
        web.layout(x, web.losses(f"Loss of client {panel.client}", panel.all_losses()), legend=True),
        notes=notes,
        runs=[panel.of.run.id],
    )
