"""The distribution of ALA's element-wise weights, by layer and round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Engine

from pflbench.models import MODELS
from pflbench.report import render, style, web
from pflbench.report.looks import Look
from pflbench.report.selection import Filters, Observed, cut, first_seeds, observed_titles, spread
from pflbench.report.style import COLUMN, PAGE
from pflbench.report.traces import Axis, Panel, Trace, lettered
from pflbench.report.web import Interactive
from pflbench.store import arrays
from pflbench.store.arrays import Floats

ARRAYS = ("ala_blocks",)
COMMAND = "pflbench run -m fedala --save-artifacts-every 10"
ROUNDS = 5
BINS = 20
TICKS = (0.001, 0.01, 0.1, 1, 10, 100)
FLOOR = 1e-9  # percent: where there is nothing, the line goes below the axis, as a logarithm has no 0


@dataclass(frozen=True)
class Layer:
    """shares[t][b]: percentage of a layer's weights in bin b of [0, 1], over all clients that used ALA in round t."""

    of: Observed
    name: str
    shares: dict[int, Floats]


def plot(engine: Engine, filters: Filters = Filters()) -> style.Drawing:
    """A panel per run and layer, a line for up to five rounds, of the first seed. Raises UserError without stored weights."""
    seen, notes = cut(*first_seeds(engine, filters, ARRAYS, COMMAND), filters)
    drawn = [layer for one in seen for layer in layers(engine, one)]
    shades = style.shades(t for layer in drawn for t in layer.shares)
    titles = [layer.name for layer in drawn]
    if len(seen) > 1:
        titles = [f"{of}: {layer.name}" for of, layer in zip(observed_titles([one.of for one in drawn]), drawn, strict=True)]
    named = f" Panels: {lettered([layer.name for layer in drawn])}." if len(drawn) > 1 else ""
    return render.drawing(
        [panel(layer, shades) for layer in drawn],
        titles,
        f"{caption(seen)}{named}",
        notes,
        height=1.4,
        width=COLUMN if len(drawn) <= 2 else PAGE,
        order=[f"round {t}" for t in shades],
    )


def page(engine: Engine, filters: Filters, most: int | None = None) -> list[Interactive]:
    """A figure for each run and layer, of the first seed. Raises UserError without stored weights."""
    seen, notes = first_seeds(engine, filters, ARRAYS, COMMAND)
    return [
        web.figure("ala-weights", panel(layer, style.shades(layer.shares, *web.SHADES)), caption([one]), notes)
        for one in seen[:most]
        for layer in layers(engine, one)
    ]


def caption(seen: Sequence[Observed]) -> str:
    return (
        "ALA's weights (0: the local model's value, 1: the received one) by layer, of all clients, in the rounds given: percent "
        f"of the weights in each of {BINS} equal bins, on a logarithmic scale: {'; '.join(one.title for one in seen)}."
    )


def layers(engine: Engine, of: Observed) -> list[Layer]:
    """The layers of a run from the top, in up to five rounds."""
    rows = spread(of.rounds, ROUNDS)
    weights = arrays.read(engine, of.run.id, "ala_weights", rows)
    spans = arrays.read(engine, of.run.id, "ala_blocks", rows[:1])[rows[0]]
    model = MODELS.get(of.setting.spec["model"])
    names = model.blocks if model else ()
    return [
        # Row t holds what was seen when the clients were initialised for round t + 1.
        Layer(
            of,
            names[block] if block < len(names) else f"block {block + 1} from the top",
            {t + 1: _shares(array[:, start:stop]) for t, array in weights.items()},
        )
        for block, start, stop in spans
    ]


def _shares(weights: Floats) -> Floats:
    counts, _ = np.histogram(weights[~np.isnan(weights)], bins=BINS, range=(0, 1))
    shares: Floats = 100 * counts / counts.sum()
    return shares


def panel(layer: Layer, shades: dict[int, str]) -> Panel:
    edges = np.linspace(0, 1, BINS + 1)
    run = layer.of.run.id
    lines = [
        Trace(
            edges,
            # A step begins where its bin does; the last one needs an end.
            np.maximum([*shares, shares[-1]], FLOOR),
            Look(shades[t], "o", 0, 0),
            f"round {t}",
            draws="lines",
            steps=True,
            width=0.9,
            hover=f"weights of %{{x:.2f}} to %{{customdata[0]:.2f}}: %{{customdata[1]:.3f}} %<br>run {run}",
            data=list(zip([*edges[1:], 1], [*shares, shares[-1]], strict=True)),
        )
        for t, shares in layer.shares.items()
    ]
    low = 0.5 * min(shares[shares > 0].min() for shares in layer.shares.values())
    ticks = {tick: f"{tick:g}" for tick in TICKS if tick >= low}
    up = Axis("Share of weights (%)", log=True, limits=(low, 150), ticks=ticks)
    return Panel(f"{layer.of.title}: {layer.name}", Axis("Weight", limits=(0, 1)), up, lines, (run,), (layer.of.setting,))
