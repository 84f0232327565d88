"""A client's loss over ALA's weight-learning epochs, as in Figure 3 of the FedALA paper.

A panel per setting and a line per round show what that figure is cited for: the weights converge in the initial stage, and
hardly move in the rounds thereafter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report import render, style, web
from pflbench.report.looks import MARKERS, Look
from pflbench.report.selection import Filters, Observed, cut, first_seeds, observed_titles, spread
from pflbench.report.traces import Axis, Panel, Trace, lettered, loss_axis, with_one_loss_axis
from pflbench.report.web import Interactive
from pflbench.store import arrays
from pflbench.store.arrays import Floats

ARRAYS = ("ala_epoch_losses",)
COMMAND = "pflbench run -m fedala --set fedala.min_epochs=6 --save-artifacts-every 1"
CLIENT = 8
ROUNDS = 6


def plot(engine: Engine, filters: Filters = Filters(), *, client: int = CLIENT) -> style.Drawing:
    """Shows the first seed. Raises UserError if no run has stored its losses, or none has this client."""
    seen, notes = cut(*first_seeds(engine, filters, ARRAYS, COMMAND), filters)
    learned = [(one, losses) for one in seen if (losses := losses_by_round(engine, one, client))]
    if not learned:
        raise UserError(
            f"Client {client} learned no weights in the rounds that were kept.",
            f"Clients are numbered from 0, here to {min(map(_clients, seen)) - 1}: choose one with --client.",
        )
    drawn = looks_of(t for _, losses in learned for t in losses)
    panels = with_one_loss_axis([panel(one, losses, drawn, "Local loss") for one, losses in learned])
    titles = observed_titles([one for one, _ in learned])
    return render.drawing(panels, titles, caption(client, panels), notes, order=[f"round {t}" for t in drawn])


def page(engine: Engine, filters: Filters, most: int | None = None) -> list[Interactive]:
    """Of the client that the paper shows, else the first that learned; of several seeds the first.

    Raises UserError where no run kept its losses.
    """
    seen, notes = first_seeds(engine, filters, ARRAYS, COMMAND)
    made, left_out = web.possible(seen[:most], partial(_first_that_learned, engine))
    return [web.figure("ala-convergence", panel, caption(client, [panel]), (*notes, *left_out)) for client, panel in made]


def caption(client: int, panels: Sequence[Panel]) -> str:
    return (
        f"Loss of client {client} over the epochs of weight learning in ALA, by round; mean over the mini-batches of "
        f"an epoch, each before its step: {lettered([panel.title for panel in panels])}. In the first round shown with more "
        "epochs the weights are learned until they converge (initial stage)."
    )


def losses_by_round(engine: Engine, of: Observed, client: int) -> dict[int, Floats]:
    """The client's mean loss of each epoch of weight learning, by the round that it begins; empty if it learned no weights.

    All of the first rounds, and later ones evenly spaced.
    """
    losses = {}
    if client < _clients(of):
        rows = sorted({*of.rounds[:2], *spread(of.rounds, ROUNDS - 1)})
        for t, array in arrays.read(engine, of.run.id, of.name, rows).items():
            mine = array[client]
            if len(mine := mine[~np.isnan(mine)]):
                losses[t + 1] = mine.astype(np.float64)
    return losses


def _clients(of: Observed) -> int:
    return int(of.setting.spec["partition"]["clients"])


def _first_that_learned(engine: Engine, of: Observed) -> tuple[int, Panel]:
    for client in (CLIENT, *range(_clients(of))):
        if losses := losses_by_round(engine, of, client):
            return client, panel(of, losses, looks_of(losses, *web.SHADES), f"Loss of client {client}")
    raise UserError(f"No client of run {of.run.id} learned weights in the rounds that were kept.")


def looks_of(rounds: Iterable[int], *part: float) -> dict[int, Look]:
    """A look for each round, from dark to light. part: of the colour scale, for `style.shades`."""
    shades = style.shades(rounds, *part)
    return {t: Look(shade, MARKERS[k % len(MARKERS)], 0, 0) for k, (t, shade) in enumerate(shades.items())}


def panel(of: Observed, by_round: Mapping[int, Floats], drawn: Mapping[int, Look], y: str) -> Panel:
    lines = [
        Trace(
            np.arange(1, len(losses) + 1),
            losses,
            drawn[t],
            f"round {t}",
            every=(0, max(1, len(losses) // 10)),
            hover=f"epoch %{{x}}<br>loss %{{y:.4f}}<br>run {of.run.id}",
        )
        for t, losses in by_round.items()
    ]
    up = loss_axis(y, np.concatenate(list(by_round.values())).tolist())
    return Panel(of.title, Axis("Weight-learning epoch", whole=True), up, lines, (of.run.id,), (of.setting,))
