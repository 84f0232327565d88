"""The figures of `report.PLOTS` for a page: plotly.js figures with every value on hover, of all settings of a database.

They are made of the numbers that are drawn on paper, too. Plotly itself is the page's: nothing here imports it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count

from sqlalchemy import Engine

from pflbench.errors import UserError, unknown
from pflbench.report import PLOTS, Entry
from pflbench.report.interactive.run import client_accuracy, phases, run_curve, train_loss
from pflbench.report.selection import Filters
from pflbench.report.web import Interactive, unless_absent

__all__ = ["FIGURES", "Interactive", "build", "client_accuracy", "phases", "run_curve", "train_loss"]

FIGURES: Mapping[str, Entry] = {name: Entry(plot.title, plot.target.replace(":plot", ":page")) for name, plot in PLOTS.items()}


def build(name: str, engine: Engine, filters: Filters = Filters()) -> tuple[Interactive, ...]:
    """All figures of this name; none where the database has nothing for it.

    Raises UserError for an unknown name and for a database that cannot be read.
    """
    if name not in FIGURES:
        raise unknown("figure", name, FIGURES)
    try:
        made = FIGURES[name].load()(engine, filters)
    except UserError as error:
        unless_absent(error)
        return ()
    return tuple(_distinct(made))


def _distinct(made: Iterable[Interactive]) -> Iterator[Interactive]:
    """Titles that differ in a sign alone make the same slug."""
    seen: set[str] = set()
    for one in made:
        free = next(id for k in count(1) if (id := one.id if k == 1 else f"{one.id}-{k}") not in seen)
        seen.add(free)
        yield replace(one, id=free)
