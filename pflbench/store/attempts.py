"""What there is of planned runs, and how long rounds took: what `reproduce` has to know before it trains anything."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Engine, func, select

from pflbench.store.costs import costs
from pflbench.store.only import hides_smoke, is_smoke
from pflbench.store.read import reading
from pflbench.store.schema import Round, Run


@dataclass(frozen=True)
class Attempt:
    """One attempt at a run. `round` is its newest stored round, None where there is none yet."""

    id: int
    key: str
    status: str
    round: int | None


@dataclass(frozen=True)
class Speed:
    """Seconds that a round of one run took: medians of training and of evaluation, together. clients: those that join a round.

    epochs: of each of them.
    """

    method: str
    dataset: str
    model: str
    clients: int
    epochs: int
    seconds: float


def attempts(engine: Engine, keys: Collection[str]) -> dict[str, list[Attempt]]:
    """Key -> its attempts, oldest first; keys without any are left out."""
    last = select(func.max(Round.round)).where(Round.run_id == Run.id).scalar_subquery()
    query = select(Run.id, Run.key, Run.status, last).where(Run.key.in_(keys)).order_by(Run.attempt)
    found: dict[str, list[Attempt]] = defaultdict(list)
    with reading(engine) as c:
        for row in c.execute(query):
            found[row.key].append(Attempt(*row))
    return dict(found)


def speeds(engine: Engine, methods: Collection[str]) -> list[Speed]:
    """One per run of these methods that has a trained round, whatever became of it."""
    epochs = Run.spec["train"]["local_epochs"].as_integer().label("epochs")
    query = select(Run.id, Run.method, Run.dataset, Run.model, Run.clients, Run.join_ratio, epochs).where(Run.method.in_(methods))
    with reading(engine) as c:
        rows = {row.id: row for row in c.execute(query)}
    spent = costs(engine, list(rows), 0.0)
    return [
        Speed(
            row.method,
            row.dataset,
            row.model,
            int(row.clients * row.join_ratio),
            row.epochs,
            spent[id].seconds_round + spent[id].seconds_evaluate,
        )
        for id, row in rows.items()
        if id in spent
    ]


def hidden_smoke(engine: Engine) -> int:
    """How many runs of `reproduce --scale smoke` are not seen."""
    if not hides_smoke(engine):
        return 0
    with reading(engine) as c:
        return int(c.scalar(select(func.count()).select_from(Run).where(is_smoke())) or 0)
