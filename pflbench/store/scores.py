"""Results of runs by a second accuracy series, such as that on a central test set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from sqlalchemy import Engine, select

from pflbench.store.read import Result, Select, reading
from pflbench.store.schema import Series


def by_series(engine: Engine, results: Sequence[Result], name: str, chosen: Select) -> list[Result]:
    """The results with value, round and `used` by the named series, under the same rule; those without it are left out."""
    query = select(Series.run_id, Series.round, Series.accuracy).where(Series.name == name)
    query = query.where(Series.run_id.in_([result.id for result in results])).order_by(Series.run_id, Series.round)
    with reading(engine) as c:
        found = {run: [(t, value) for _, t, value in rows] for run, rows in groupby(c.execute(query), key=lambda row: row[0])}
    return [_scored(result, found[result.id], chosen) for result in results if result.id in found]


def _scored(result: Result, series: Sequence[tuple[int, float]], chosen: Select) -> Result:
    if chosen.rule == "best":
        t, value = max(series, key=lambda point: (point[1], -point[0]))
        return replace(result, value=value, round=t, used=1)
    tail = series[-chosen.last :]
    return replace(result, value=sum(value for _, value in tail) / len(tail), round=tail[-1][0], used=len(tail))
