"""Runs over several settings, and what their clients sent."""

from __future__ import annotations

from sqlalchemy import Engine
from support import report_database
from support.report_database import spec
from support.store_samples import write_round

from pflbench.store import write
from pflbench.store.write import RoundRecord

SENT = dict.fromkeys(("params_up", "params_down", "bytes_up", "bytes_down"), 1) | {
    "participants": 2,
    "scalars_up": 0,
    "scalars_down": 0,
}


def sent(engine: Engine, method: str, accuracies: list[float], seconds: float, megabytes: float, seed: int = 0) -> int:
    """A run whose rounds take so many seconds and send so many megabytes, up and down together, for each of its two clients."""
    run = write.create_run(engine, spec(method, seed, partition=clients(2)), {})
    write.update_run(engine, run, status="finished", parameters=10)
    for t, accuracy in enumerate(accuracies):
        cost = SENT | {"bytes_up": int(megabytes * 1e6), "bytes_down": int(megabytes * 1e6)} if t else {}
        spent = {"seconds_receive": seconds / 4, "seconds_update": 3 * seconds / 4} if t else {}
        write_round(engine, run, RoundRecord(round=t, accuracy=accuracy, **cost, **spent))
    return run


def clients(number: int) -> dict[str, object]:
    return {"scheme": "dirichlet", "beta": 0.1, "clients": number}


def add_clients(engine: Engine, method: str, seed: int, correct: list[int]) -> int:
    """A run whose first round is its best: so the second must not be what is drawn. Every client has 10 test samples."""
    first = {client: (right, 10) for client, right in enumerate(correct)}
    return report_database.add_clients(engine, spec(method, seed), first, dict.fromkeys(first, (0, 10)))
