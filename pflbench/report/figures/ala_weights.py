"""How ALA's element-wise weights are distributed, by layer, and how that moves over the rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.models import MODELS
from pflbench.report import style, web
from pflbench.report.arrangement import protocol
from pflbench.report.layout import COLUMN, PAGE, Sheet, lettered
from pflbench.report.selection import Filters, Observed, cut, observed_titles, one_per_line, spread, with_arrays
from pflbench.report.web import Interactive
from pflbench.store import arrays
from pflbench.store.arrays import Floats

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMMAND = "pflbench run -m fedala --observe-every 10"
ROUNDS = 5
BINS = 20
TICKS = (0.001, 0.01, 0.1, 1, 10, 100)
FLOOR = 1e-9  # percent: where there is nothing, the line goes below the axis, as a logarithm has no 0


@dataclass(frozen=True)
class LayerPanel:
    """shares[t][b]: percent of a layer's weights, of all clients that used ALA in round t, in bin b of [0, 1]."""

    of: Observed
    layer: str
    shares: dict[int, Floats]

    @property
    def limits(self) -> tuple[float, float]:
        """Of the axis of the shares."""
        return 0.5 * min(shares[shares > 0].min() for shares in self.shares.values()), 150


def plot(engine: Engine, filters: Filters = Filters()) -> style.Drawing:
    """A panel per run and layer, a line per round, at most five. Of several seeds the first; UserError where none was kept."""
    found = filters.select(engine)
    seen, notes = cut(one_per_line(with_arrays(engine, found, ["ala_blocks"], COMMAND)), filters)
    drawn = [panel for one in seen for panel in panels(engine, one)]
    runs = tuple(sorted(one.run.id for one in seen))
    with style.context():
        figure = _draw(drawn)
        said = f"{caption(seen)} Panels: {lettered([panel.layer for panel in drawn])}." if len(drawn) > 1 else caption(seen)
        return style.Drawing(figure, said, (*found.notes, *notes), runs, protocol([one.setting for one in seen]))


def caption(seen: Sequence[Observed]) -> str:
    return (
        "ALA's weights (0: the local model's value, 1: the received one) by layer, of all clients, in the rounds given: percent "
        f"of the weights in each of {BINS} equal bins, on a logarithmic scale: {'; '.join(one.title for one in seen)}."
    )


def panels(engine: Engine, of: Observed) -> list[LayerPanel]:
    """The layers of a run from the top, in at most five of its rounds. Raises UserError where it kept no weights."""
    rows = spread(of.rounds, ROUNDS)
    weights = arrays.read(engine, of.run.id, "ala_weights", rows)
    spans = arrays.read(engine, of.run.id, "ala_blocks", rows[:1])[rows[0]]
    if not weights:
        raise UserError(f"Run {of.run.id} kept no ala_weights.", f"Make one that does: {COMMAND}.")
    return [
        # Row t holds what was seen when the clients were initialised for round t + 1.
        LayerPanel(of, _layer(of, int(block)), {t + 1: _shares(array[:, start:stop]) for t, array in weights.items()})
        for block, start, stop in spans
    ]


def _layer(of: Observed, block: int) -> str:
    model = MODELS.get(of.setting.spec["model"])
    names = model.blocks if model else ()
    return names[block] if block < len(names) else f"block {block + 1} from the top"


def _shares(weights: Floats) -> Floats:
    counts, _ = np.histogram(weights[~np.isnan(weights)], bins=BINS, range=(0, 1))
    shares: Floats = 100 * counts / counts.sum()
    return shares


def _draw(panels: Sequence[LayerPanel]) -> Figure:
    rounds = sorted({t for panel in panels for t in panel.shares})
    colours = dict(zip(rounds, style.shades(len(rounds)), strict=True))
    columns = min(len(panels), 2)
    several = len({panel.of.title for panel in panels}) > 1
    sheet = Sheet(len(panels), columns, 1.4, width=COLUMN if len(panels) <= 2 else PAGE)
    edges = np.linspace(0, 1, BINS + 1)
    for k, (ax, panel) in enumerate(zip(sheet.axes, panels, strict=True)):
        for t, shares in panel.shares.items():
            ax.stairs(np.maximum(shares, FLOOR), edges, color=colours[t], linewidth=0.9)
        ax.set_yscale("log")
        ax.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS])
        ax.set_yticks([], minor=True)
        ax.set_ylim(*panel.limits)
        ax.set_xlim(0, 1)
        ax.set_xlabel("Weight" if sheet.bottom(k) else "")
        ax.set_ylabel("Share of weights (%)" if sheet.left(k) else "")
    of = observed_titles([panel.of for panel in panels])
    sheet.name([f"{title}: {panel.layer}" if several else panel.layer for title, panel in zip(of, panels, strict=True)])
    sheet.key([{"color": colours[t]} for t in rounds], [f"round {t}" for t in rounds])
    return sheet.finish()


def page(engine: Engine, filters: Filters, most: int | None = None) -> list[Interactive]:
    """A figure for each run and layer; of several seeds the first. Raises UserError where no run kept its weights."""
    found = filters.select(engine)
    seen = one_per_line(with_arrays(engine, found, ["ala_blocks"], COMMAND))
    made, left_out = web.possible(seen[:most], partial(panels, engine))
    return [_page(layer, (*found.notes, *left_out)) for layers in made for layer in layers]


def _page(panel: LayerPanel, notes: tuple[str, ...]) -> Interactive:
    edges = np.linspace(0, 1, BINS + 1)
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
            "customdata": [web.numbers(told) for told in zip([*edges[1:], 1], [*shares, shares[-1]], strict=True)],
            "hovertemplate": (
                f"round {t}<br>weights of %{{x:.2f}} to %{{customdata[0]:.2f}}: %{{customdata[1]:.3f}} %"
                f"<br>run {panel.of.run.id}<extra></extra>"
            ),
        }
        for (t, shares), colour in zip(panel.shares.items(), colours, strict=True)
    ]
    y = web.axis("Share of weights (%)", type="log", range=list(map(math.log10, panel.limits)), tickvals=list(TICKS))
    return web.make(
        "ala-weights",
        f"{panel.of.title}: {panel.layer}",
        f"{caption([panel.of])} {protocol([panel.of.setting])}",
        lines,
        web.layout(web.axis("Weight", range=[0, 1]), y, legend=True),
        notes=notes,
        runs=[panel.of.run.id],
    )
