"""One file per figure of `declared.PLOTS`: `plot` gives it for print, `page` for a page, with every value on hover.

Both give the same panels of traces, the one to `report.render`, the other to `report.web`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report.declared import PLOTS
from pflbench.report.selection import Filters
from pflbench.report.web import Interactive


def pages(
    name: str, engine: Engine, filters: Filters = Filters(), most: int | None = None, **options: str
) -> tuple[Interactive, ...]:
    """The figures of this name for a page: of so many settings or runs, or of all. options: of the figure's `page`.

    Raises UserError where nothing is drawn.
    """
    made = tuple(_distinct(PLOTS[name].load("page")(engine, filters, most, **options)))
    if not made:
        raise UserError("There is nothing to draw.")
    return made


def _distinct(made: Iterable[Interactive]) -> Iterator[Interactive]:
    """Titles that differ only in a sign give the same slug."""
    seen: Counter[str] = Counter()
    for one in made:
        seen[one.id] += 1
        yield one if seen[one.id] == 1 else replace(one, id=f"{one.id}-{seen[one.id]}")
