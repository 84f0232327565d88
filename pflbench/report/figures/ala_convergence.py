"""A client's loss over ALA's weight-learning epochs, as in Figure 3 of the FedALA paper.

A panel per setting and a line per round show what that figure is cited for: the weights converge in the initial stage, and
hardly move in the rounds thereafter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report import render, style, web
from pflbench.report.looks import MARKERS, Look
from pflbench.report.selection import Filters, Observed, cut, observed_titles, one_per_line, spread, with_arrays
from pflbench.report.traces import Axis, Panel, Trace, lettered, of_losses
from pflbench.report.web import Interactive
from pflbench.store import arrays
from pflbench.store.arrays import Floats

COMMAND = "pflbench run -m fedala --set fedala.min_epochs=6 --save-artifacts-every 1"
CLIENT = 8
ROUNDS = 6


@dataclass(frozen=True)
class Learning:
    """losses[t]: the client's mean loss of each epoch of weight learning at the beginning of round t."""

    of: Observed
    client: int
    losses: dict[int, Floats]


def plot(engine: Engine, filters: Filters = Filters(), *, client: int = CLIENT) -> style.Drawing:
    """Shows the first seed. Raises UserError if no run has stored its losses, or none has this client."""
    found = filters.select(engine)
    seen, notes = cut(one_per_line(with_arrays(engine, found, ["ala_epoch_losses"], COMMAND)), filters)
    learned = [made for one in seen if (made := learning(engine, one, client)).losses]
    if not learned:
        fewest = min(one.setting.spec["partition"]["clients"] for one in seen)
        raise UserError(
            f"Client {client} learned no weights in the rounds that were kept.",
            f"Clients are numbered from 0, here to {fewest - 1}: choose one with --client.",
        )
    drawn = looks_of(t for one in learned for t in one.losses)
    panels = [panel(one, drawn, "Local loss") for one in learned]
    titles = observed_titles([one.of for one in learned])
    order = [f"round {t}" for t in drawn]
    return render.drawing(panels, titles, caption(learned), (*found.notes, *notes), order=order)


def page(engine: Engine, filters: Filters, most: int | None = None) -> list[Interactive]:
    """Of the client that the paper shows, else the first that learned; of several seeds the first.

    Raises UserError where no run kept its losses.
    """
    found = filters.select(engine)
    seen = one_per_line(with_arrays(engine, found, ["ala_epoch_losses"], COMMAND))
    learned, left_out = web.possible(seen[:most], partial(_first_that_learned, engine))
    made = [(one, panel(one, looks_of(one.losses, *web.SHADES), f"Loss of client {one.client}")) for one in learned]
    return [web.figure("ala-convergence", panel, caption([one]), (*found.notes, *left_out)) for one, panel in made]


def caption(learned: Sequence[Learning]) -> str:
    """All panels show the same client."""
    return (
        f"Loss of client {learned[0].client} over the epochs of weight learning in ALA, by round; mean over the mini-batches of "
        f"an epoch, each before its step: {lettered([one.of.title for one in learned])}. In the first round shown with more "
        "epochs the weights are learned until they converge (initial stage)."
    )


def learning(engine: Engine, of: Observed, client: int) -> Learning:
    """All of the first rounds, and later ones evenly spaced. Without losses a client learned no weights."""
    losses = {}
    if client < of.setting.spec["partition"]["clients"]:
        rows = sorted({*of.rounds[:2], *spread(of.rounds, ROUNDS - 1)})
        for t, array in arrays.read(engine, of.run.id, of.name, rows).items():
            mine = array[client]
            if len(mine := mine[~np.isnan(mine)]):
                losses[t + 1] = mine.astype(np.float64)
    return Learning(of, client, losses)


def _first_that_learned(engine: Engine, of: Observed) -> Learning:
    for client in (CLIENT, *range(of.setting.spec["partition"]["clients"])):
        if (made := learning(engine, of, client)).losses:
            return made
    raise UserError(f"No client of run {of.run.id} learned weights in the rounds that were kept.")


def looks_of(rounds: Iterable[int], *part: float) -> dict[int, Look]:
    """A look for each round, from dark to light. part: of the colour scale, for `style.shades`."""
    shades = style.shades(rounds, *part)
    return {t: Look(shade, MARKERS[k % len(MARKERS)], 0, 0) for k, (t, shade) in enumerate(shades.items())}


def panel(learned: Learning, drawn: dict[int, Look], y: str) -> Panel:
    of = learned.of
    lines = [
        Trace(
            np.arange(1, len(losses) + 1),
            losses,
            drawn[t],
            f"round {t}",
            every=(0, max(1, len(losses) // 10)),
            hover=f"epoch %{{x}}<br>loss %{{y:.4f}}<br>run {of.run.id}",
        )
        for t, losses in learned.losses.items()
    ]
    up = of_losses(y, [loss for losses in learned.losses.values() for loss in losses.tolist()])
    return Panel(of.title, Axis("Weight-learning epoch", whole=True), up, lines, (of.run.id,), (of.setting,))
