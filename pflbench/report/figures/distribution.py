"""Samples per client and class, as in Figures 6 to 9 of the FedALA paper: the area of a circle is the number of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import NothingYet, UserError
from pflbench.report import labels, render, style, web
from pflbench.report.looks import COLOURS
from pflbench.report.selection import Filters
from pflbench.report.style import DPI, PAGE
from pflbench.report.traces import Axis, Panel, lettered
from pflbench.report.web import Interactive, Json
from pflbench.store.partitions import PartitionRecord, find, stored

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The largest circle of a panel, in the room for one client or one class, whichever is less: larger ones hide their neighbours.
DIAMETER = 1.15
LEAST = 3.5  # points, of that room: smaller circles are hard to see; of so many, most are far smaller than the largest
ALPHA = 0.75
MANY = 30  # clients or classes, that take a page's width
WIDTH, HEIGHTS, AXIS, LARGEST = 640, (400, 760), 70, 60  # of an interactive figure, in pixels; many classes have little room


def plot(engine: Engine, filters: Filters = Filters()) -> style.Drawing:
    """A panel per partition: those of the given datasets, those given by number, hash or label, else the first four.

    Train and test samples are counted together, as in the paper. Raises UserError if there are no such partitions.
    """
    chosen = filters.datasets or filters.partitions
    return drawing(choose(engine, filters), style.PANELS_CHOSEN if chosen else style.PANELS_UNASKED)


def drawing(chosen: Sequence[PartitionRecord], most: int = style.PANELS_CHOSEN) -> style.Drawing:
    """A panel per partition, up to a maximum; the partitions need no database."""
    notes: tuple[str, ...] = ()
    if len(chosen) > most:
        notes = (f"Drawn: the first {most} of {len(chosen)} partitions. Choose with --dataset and --partition.",)
        chosen = chosen[:most]
    many = max(max(partition.train.shape) for partition in chosen) > MANY
    made = render.drawing(
        [replace(_panel(partition), draw=partial(_legend, partition)) for partition in chosen],
        [_title(partition) for partition in chosen],
        caption(chosen),
        notes,
        height=3.2 if many else 1.9,
        cell=3.0 if many else 1.6,
        width=PAGE if many else None,
    )
    # How large the circles are is known where the panels have their size.
    for ax, partition in zip(made.figure.axes, chosen, strict=True):
        _circles(ax, partition)
    return made


def choose(engine: Engine, filters: Filters) -> list[PartitionRecord]:
    """The partitions of these filters; all without filters. Raises UserError if there are none."""
    there = stored(engine, filters.among(engine))
    if not there:
        raise NothingYet(
            "There are no partitions in this database yet.",
            "A run stores its partition: pflbench run -m fedavg -d digits",
        )
    datasets = {p.dataset for p in there}
    if filters.datasets:
        wanted = {name.casefold() for name in filters.datasets}
        there = [p for p in there if wanted & {name.casefold() for name in labels.names(p.dataset)}]
    if not there:
        raise UserError(
            f"No partition of {', '.join(filters.datasets)} in this database.",
            f"There are partitions of: {', '.join(sorted(datasets))}.",
        )
    found: dict[str, PartitionRecord] = {}
    for text in filters.partitions:
        labelled = [p for p in there if p.label.casefold() == text.casefold()]
        found |= {p.hash: p for p in labelled or [find(engine, text)]}
    return list(found.values()) if filters.partitions else there


def _title(partition: PartitionRecord) -> str:
    return f"{labels.label_title(partition.dataset)}, {partition.label}, {len(partition.train)} clients"


def _panel(partition: PartitionRecord) -> Panel:
    clients, classes = partition.train.shape
    across, up = (
        Axis(name, whole=True, limits=(-0.8, places - 0.2)) for name, places in (("Client", clients), ("Class", classes))
    )
    return Panel(f"{_title(partition)} ({partition.hash[:8]})", across, up, height=HEIGHTS[classes > MANY])


def _legend(partition: PartitionRecord, ax: Axes) -> None:
    """The sizes of circles below the panel; `_circles` makes them as large as those in it."""
    from matplotlib.lines import Line2D
    from matplotlib.transforms import ScaledTranslation

    shown = _shown(partition)
    look: dict[str, Any] = {"marker": "o", "linestyle": "", "color": COLOURS[0], "alpha": ALPHA, "markeredgewidth": 0}
    handles = [Line2D([], [], label=f"{samples:,}", **look) for samples in shown]
    handles[-1].set_label(labels.counted(shown[-1], "sample"))
    below = ax.transAxes + ScaledTranslation(0, -0.4 * style.scale(), ax.figure.dpi_scale_trans)
    place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "bbox_transform": below, "ncols": len(shown)}
    ax.legend(handles=handles, **place, borderpad=0.6, borderaxespad=0, handlelength=2.4, handletextpad=0.5)


def _shown(partition: PartitionRecord) -> list[int]:
    """Samples for the legend: the largest number, and round ones with circles of about half and a quarter of its diameter."""
    largest = int(partition.counts.max())
    round_numbers = [step * 10**power for power in range(len(str(largest))) for step in (1, 2, 5)]
    smaller = {max(number for number in round_numbers if number <= part) for part in (largest // 16, largest // 3) if part}
    return [*sorted(smaller), largest]


def _circles(ax: Axes, partition: PartitionRecord) -> None:
    counts = partition.counts
    client, label = counts.nonzero()
    for axis, places in zip((ax.xaxis, ax.yaxis), counts.shape, strict=True):
        axis.set_ticks([tick for tick in axis.get_ticklocs() if 0 <= tick < places])
    box = ax.get_window_extent()
    points = 72 / DPI
    widest = diameter(points * box.width, points * box.height, counts.shape)
    # At the edges there is room for half of the largest circle.
    for name, places, pixels in (("xlim", len(counts), box.width), ("ylim", counts.shape[1], box.height)):
        share = widest / 2 / (points * pixels)
        beside = max(0.6, share * (places - 1) / (1 - 2 * share) + 0.1)
        ax.set(**{name: (-beside, places - 1 + beside)})
    ax.scatter(client, label, s=widest**2 * counts[client, label] / counts.max(), color=COLOURS[0], alpha=ALPHA, linewidths=0)
    legend: Any = ax.get_legend()
    for handle, samples in zip(legend.legend_handles, _shown(partition), strict=True):
        handle.set_markersize(widest * np.sqrt(samples / counts.max()))


def diameter(width: float, height: float, places: tuple[int, ...]) -> float:
    """The diameter of the largest circle, in points, in a panel of this size with so many clients and classes."""
    room, other = sorted((width / places[0], height / places[1]))
    return DIAMETER * max(room, min(LEAST, max(2 * room, other)))


def caption(chosen: Sequence[PartitionRecord]) -> str:
    named = lettered([f"{labels.label_title(p.dataset)} {p.label}, {len(p.train)} clients ({p.hash[:8]})" for p in chosen])
    missing = "".join(
        f" {p.left_out:,} samples of {labels.label_title(p.dataset)} {p.label} are left out." for p in chosen if p.left_out
    )
    return f"Samples per client and class: the area of a circle is the number of training and test samples. {named}.{missing}"


def page(engine: Engine, filters: Filters, most: int | None = None) -> list[Interactive]:
    """All stored partitions; filters for methods and status are ignored. Raises UserError if there are none."""
    return [
        web.figure("distribution", _panel(partition), caption([partition]), data=[_trace(partition)])
        for partition in choose(engine, filters)[:most]
    ]


def _trace(partition: PartitionRecord) -> Json:
    counts = partition.counts
    client, label = counts.nonzero()
    held = counts[client, label]
    clients, classes = counts.shape
    largest = min(LARGEST, diameter(WIDTH, HEIGHTS[classes > MANY] - AXIS, (clients, classes)))
    return {
        "type": "scatter",
        "mode": "markers",
        "x": client.tolist(),
        "y": label.tolist(),
        "marker": {
            "color": COLOURS[0],
            "opacity": ALPHA,
            "size": web.numbers(largest * np.sqrt(held / held.max())),
            "line": {"width": 0},
        },
        "customdata": [
            [web.text(partition.classes[k]), total, train, total - train]
            for k, total, train in zip(label.tolist(), held.tolist(), partition.train[client, label].tolist(), strict=True)
        ],
        "hovertemplate": (
            "client %{x}, class %{y} (%{customdata[0]})<br>%{customdata[1]:,} samples: %{customdata[2]:,} to train on, "
            "%{customdata[3]:,} to test on<extra></extra>"
        ),
    }
