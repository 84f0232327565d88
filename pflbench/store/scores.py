"""Other results of runs than their pooled accuracy: by a second series, such as that on a central test set, and by client."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from sqlalchemy import Engine, select

from pflbench.store.read import Result, Select, reading
from pflbench.store.schema import ClientRound, Round, Series

CENTRAL = "central"  # the global model on the central test set


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


def by_client(engine: Engine, run: int, round: int, last: int = 1) -> dict[int, float]:
    """By client its accuracy on its own test data, the mean over the `last` evaluated rounds up to `round`; in [0, 1].

    Clients that were not tested there, or have no test data, are missing.
    """
    evaluated = select(Round.round).where(Round.run_id == run, Round.round <= round, Round.accuracy.is_not(None))
    rounds = evaluated.order_by(Round.round.desc()).limit(last)
    query = select(ClientRound.client, ClientRound.correct, ClientRound.total).where(
        ClientRound.run_id == run, ClientRound.round.in_(rounds), ClientRound.total > 0
    )
    found: dict[int, list[float]] = defaultdict(list)
    with reading(engine) as c:
        for client, correct, total in c.execute(query.order_by(ClientRound.client, ClientRound.round)):
            found[client].append(correct / total)
    return {client: sum(values) / len(values) for client, values in found.items()}
