"""`plot ala-weights`: how ALA's element-wise weights are distributed, by layer, and how that moves over the rounds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report import blocks, style
from pflbench.report.chosen import Filters, Observed, cut, observed_titles, one_per_line, protocol, spread, with_arrays
from pflbench.report.layout import COLUMN, PAGE, Sheet, lettered
from pflbench.store import observed
from pflbench.store.read import Floats

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMMAND = "pflbench run -m fedala --observe-every 10"
ROUNDS = 5
BINS = 20
TICKS = (0.001, 0.01, 0.1, 1, 10, 100)


@dataclass(frozen=True)
class Panel:
    """shares[t][b]: percent of a layer's weights, of all clients that used ALA in round t, in bin b of [0, 1]."""

    of: Observed
    layer: str
    shares: dict[int, Floats]


def plot(
    engine: Engine,
    *,
    methods: Collection[str] = (),
    datasets: Collection[str] = (),
    partitions: Collection[str] = (),
    status: Collection[str] = ("finished",),
) -> style.Drawing:
    """A panel per run and layer, a line per round, at most five. Of several seeds the first; UserError where none was kept."""
    filters = Filters(tuple(methods), tuple(datasets), tuple(partitions), status)
    found = filters.collect(engine)
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


def panels(engine: Engine, of: Observed) -> list[Panel]:
    """The layers of a run from the top, in at most five of its rounds. Raises UserError where it kept no weights."""
    rows = spread(of.rounds, ROUNDS)
    weights = observed.arrays(engine, of.run.id, "ala_weights", rows)
    spans = observed.arrays(engine, of.run.id, "ala_blocks", rows[:1])[rows[0]]
    if not weights:
        raise UserError(f"Run {of.run.id} kept no ala_weights.", f"Make one that does: {COMMAND}.")
    return [
        # Row t holds what was seen when the clients were initialised for round t + 1.
        Panel(of, _layer(of, int(block)), {t + 1: _shares(array[:, start:stop]) for t, array in weights.items()})
        for block, start, stop in spans
    ]


def _layer(of: Observed, block: int) -> str:
    names = blocks.NAMES.get(of.setting.spec["model"], ())
    return names[block] if block < len(names) else f"block {block + 1} from the top"


def _shares(weights: Floats) -> Floats:
    counts, _ = np.histogram(weights[~np.isnan(weights)], bins=BINS, range=(0, 1))
    shares: Floats = 100 * counts / counts.sum()
    return shares


def _draw(panels: Sequence[Panel]) -> Figure:
    rounds = sorted({t for panel in panels for t in panel.shares})
    colours = dict(zip(rounds, style.shades(len(rounds)), strict=True))
    columns = min(len(panels), 2)
    several = len({panel.of.title for panel in panels}) > 1
    sheet = Sheet(len(panels), columns, 1.4, width=COLUMN if len(panels) <= 2 else PAGE)
    edges = np.linspace(0, 1, BINS + 1)
    for k, (ax, panel) in enumerate(zip(sheet.axes, panels, strict=True)):
        for t, shares in panel.shares.items():
            # Where there is none, the line goes below the axis: a logarithm has no 0.
            ax.stairs(np.maximum(shares, 1e-9), edges, color=colours[t], linewidth=0.9)
        ax.set_yscale("log")
        ax.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS])
        ax.set_yticks([], minor=True)
        ax.set_ylim(0.5 * min(shares[shares > 0].min() for shares in panel.shares.values()), 150)
        ax.set_xlim(0, 1)
        ax.set_xlabel("Weight" if sheet.bottom(k) else "")
        ax.set_ylabel("Share of weights (%)" if sheet.left(k) else "")
    of = observed_titles([panel.of for panel in panels])
    sheet.name([f"{title}: {panel.layer}" if several else panel.layer for title, panel in zip(of, panels, strict=True)])
    sheet.key([{"color": colours[t]} for t in rounds], [f"round {t}" for t in rounds])
    return sheet.finish()
