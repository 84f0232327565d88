"""What ALA learns: its losses by epoch, its weights by layer, and the objective with and without training."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report import ala_convergence, ala_weights, objective, style, web
from pflbench.report.chosen import Filters, Observed, one_per_line, protocol, with_arrays
from pflbench.report.web import Interactive, Json

FLOOR = 1e-9  # percent: where there is nothing, the line goes below the axis, as a logarithm has no 0


def convergence(engine: Engine, filters: Filters) -> list[Interactive]:
    """Of the client that the paper shows, else the first that learned; of several seeds the first.

    Raises UserError where no run kept its losses.
    """
    found = filters.collect(engine)
    seen = one_per_line(with_arrays(engine, found, ["ala_epoch_losses"], ala_convergence.COMMAND))
    panels, left_out = web.possible(seen, partial(_learning, engine))
    return [_convergence(panel, client, (*found.notes, *left_out)) for client, panel in panels]


def _learning(engine: Engine, of: Observed) -> tuple[int, ala_convergence.Panel]:
    for client in (ala_convergence.CLIENT, *range(of.setting.spec["partition"]["clients"])):
        panel = ala_convergence.panel(engine, of, client)
        if panel.losses:
            return client, panel
    raise UserError(f"No client of run {of.run.id} learned weights in the rounds that were kept.")


def _convergence(panel: ala_convergence.Panel, client: int, notes: tuple[str, ...]) -> Interactive:
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
        f"{ala_convergence.caption([panel], client)} {protocol([panel.of.setting])}",
        lines,
        web.layout(x, web.losses(f"Loss of client {client}", np.concatenate(list(panel.losses.values())).tolist()), legend=True),
        notes=notes,
        runs=[panel.of.run.id],
    )


def weights(engine: Engine, filters: Filters) -> list[Interactive]:
    """A figure for each run and layer; of several seeds the first. Raises UserError where no run kept its weights."""
    found = filters.collect(engine)
    seen = one_per_line(with_arrays(engine, found, ["ala_blocks"], ala_weights.COMMAND))
    panels, left_out = web.possible(seen, partial(ala_weights.panels, engine))
    return [_weights(layer, (*found.notes, *left_out)) for layers in panels for layer in layers]


def _weights(panel: ala_weights.Panel, notes: tuple[str, ...]) -> Interactive:
    edges = np.linspace(0, 1, ala_weights.BINS + 1)
    least = min(shares[shares > 0].min() for shares in panel.shares.values())
    colours = style.shades(len(panel.shares), *web.SHADES)
    lines = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": f"round {t}",
            # A step begins where its bin does; the last one needs an end.
            "x": web.numbers(edges),
            "y": web.numbers(np.maximum(np.append(shares, shares[-1]), FLOOR)),
            "line": {"shape": "hv", "color": colour, "width": 2},
            "customdata": [web.numbers(bin) for bin in zip([*edges[1:], edges[-1]], [*shares, shares[-1]], strict=True)],
            "hovertemplate": (
                f"round {t}<br>weights of %{{x:.2f}} to %{{customdata[0]:.2f}}: %{{customdata[1]:.3f}} %"
                f"<br>run {panel.of.run.id}<extra></extra>"
            ),
        }
        for (t, shares), colour in zip(panel.shares.items(), colours, strict=True)
    ]
    ticks = [math.log10(0.5 * least), math.log10(150)]
    y = web.axis("Share of weights (%)", type="log", range=ticks, tickvals=list(ala_weights.TICKS))
    return web.make(
        "ala-weights",
        f"{panel.of.title}: {panel.layer}",
        f"{ala_weights.caption([panel.of])} {protocol([panel.of.setting])}",
        lines,
        web.layout(web.axis("Weight", range=[0, 1]), y, legend=True),
        notes=notes,
        runs=[panel.of.run.id],
    )


def losses(engine: Engine, filters: Filters) -> list[Interactive]:
    """A figure for each run; of several seeds the first. Raises UserError where no run kept its losses."""
    found = filters.collect(engine)
    seen = one_per_line(with_arrays(engine, found, ["ala_objective"], objective.COMMAND))
    panels, left_out = web.possible(seen, partial(objective.panel, engine))
    return [_losses(panel, (*found.notes, *left_out)) for panel in panels]


def _losses(panel: objective.Panel, notes: tuple[str, ...]) -> Interactive:
    # Row t of the database has the reception of round t + 1.
    rounds = ([t + 1 for t in panel.round], list(panel.round))
    lines: list[Json] = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "x": at,
            "y": web.numbers(values),
            "line": {"color": look["color"], "dash": web.DASHES[look["linestyle"]], "width": 2},
            "marker": {"color": look["color"], "symbol": web.SYMBOLS[look["marker"]], "size": 7},
            "hovertemplate": f"{name}<br>round %{{x}}: %{{y:.4f}}<br>run {panel.of.run.id}<extra></extra>",
        }
        for (name, look), at, values in zip(objective.LOOKS.items(), rounds, (panel.initialised, panel.trained), strict=True)
    ]
    return web.make(
        "loss",
        panel.of.title,
        f"{objective.caption([panel.of])} {protocol([panel.of.setting])}",
        lines,
        web.layout(
            web.whole("Round", panel.round[-1], rangemode="tozero"),
            web.losses("Training loss", [*panel.initialised.tolist(), *panel.trained.tolist()], rangemode="tozero"),
            legend=True,
        ),
        notes=notes,
        runs=[panel.of.run.id],
    )
