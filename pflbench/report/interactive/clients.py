"""How the clients fare under each method, and who holds what."""

from __future__ import annotations

import numpy as np
from sqlalchemy import Engine

from pflbench.report import distribution, labels, web
from pflbench.report.chosen import Filters
from pflbench.report.looks import COLOURS
from pflbench.report.web import Interactive, Json
from pflbench.store.read import PartitionInfo

METHOD, LABEL_LINE, AROUND = 38, 18, 110  # pixels in height: for a method, for a line of its name, beside them
KINDS = ("a client", "quartiles", "median", "worst tenth, mean")
# In pixels; many classes have little room.
WIDTH, HEIGHTS, AXIS, LARGEST = 640, (400, 760), 70, 60
CLASSES = 30


def distributions(engine: Engine, filters: Filters) -> list[Interactive]:
    """Of all stored partitions; the filters for methods and status have no say. Raises UserError if there are none."""
    return [_distribution(partition) for partition in distribution.choose(engine, filters.datasets, filters.partitions)]


def _distribution(partition: PartitionInfo) -> Interactive:
    title = f"{labels.label_title(partition.dataset)}, {partition.label}, {len(partition.train)} clients"
    clients, classes = partition.train.shape
    across, up = (
        web.whole(name, places, range=[-0.8, places - 0.2]) for name, places in (("Client", clients), ("Class", classes))
    )
    return web.make(
        "distribution",
        f"{title} ({partition.hash[:8]})",
        distribution.caption([partition]),
        [_circles(partition)],
        web.layout(across, up, height=HEIGHTS[classes > CLASSES]),
    )


def _circles(partition: PartitionInfo) -> Json:
    counts = partition.train + partition.test
    client, label = counts.nonzero()
    held = counts[client, label]
    clients, classes = counts.shape
    largest = min(LARGEST, distribution.diameter(WIDTH, HEIGHTS[classes > CLASSES] - AXIS, (clients, classes)))
    return {
        "type": "scatter",
        "mode": "markers",
        "x": client.tolist(),
        "y": label.tolist(),
        "marker": {
            "color": COLOURS[0],
            "opacity": 0.75,
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
