"""Small databases for the tests of reading and reports, filled through the same functions as by `pflbench run`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from sqlalchemy import Engine
from support.store_samples import make_partition, write_round

from pflbench.spec import RunSpec
from pflbench.store import locks, partitions, runs, write
from pflbench.store.write import RoundRecord

HYPERPARAMETERS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "ditto": {"lam": 0.1, "personal_epochs": 2, "aggregation": "weighted"},
}


def spec(
    method: str = "fedavg",
    seed: int = 0,
    *,
    dataset: str = "mnist",
    model: str = "cnn",
    partition: dict[str, Any] | None = None,
    hyperparameters: dict[str, Any] | None = None,
    version: int = 1,
    **train: Any,
) -> RunSpec:
    """The paper's protocol on MNIST (methods.md 2.2), but for what is given."""
    default = {"scheme": "dirichlet", "beta": 0.1, "clients": 20}
    values = HYPERPARAMETERS.get(method, {}) if hyperparameters is None else hyperparameters
    return RunSpec.model_validate(
        {
            "data": {"name": dataset},
            "partition": partition or default,
            "model": model,
            "train": {"rounds": 2000, "lr": 0.1, **train},
            "method": {"name": method, "version": version, "hyperparameters": values},
            "seed": seed,
        }
    )


def add_partition(engine: Engine, hash: str = "a" * 64, *, dataset: str = "mnist", counts: Any = ((9, 0), (3, 6))) -> int:
    """A partition [clients][classes]; a third of the samples are test samples."""
    counts = np.array(counts)
    record = make_partition(
        hash=hash,
        dataset=dataset,
        classes=[f"class {k}" for k in range(counts.shape[1])],
        train=counts - counts // 3,
        test=counts // 3,
        indices=None,
    )
    return partitions.save(engine, record)


def add_run(
    engine: Engine,
    of: RunSpec,
    accuracies: list[float | None],
    *,
    status: str = "finished",
    partition: int | None = None,
    seconds: float | None = None,
    **last: Any,
) -> int:
    """A run with the given accuracies a_0, a_1, ...; `last` are further fields of its last round."""
    run = write.create_run(engine, of, {"commit": "abc"})
    columns = {} if partition is None else {"partition_id": partition}
    write.update_run(engine, run, status=status, **columns)
    for t, accuracy in enumerate(accuracies):
        extra = last if t == len(accuracies) - 1 else {}
        spent = None if seconds is None else seconds * (t > 0)
        write_round(engine, run, RoundRecord(round=t, accuracy=accuracy, seconds_update=spent, seconds_evaluate=5.0, **extra))
    return run


def add_clients(engine: Engine, of: RunSpec, *rounds: dict[int, tuple[int, int]]) -> int:
    """A run whose rounds have these clients: right ones and all. The accuracy is that of all their samples."""
    run = write.create_run(engine, of, {})
    write.update_run(engine, run, status="finished")
    for t, clients in enumerate(rounds):
        correct, totals = np.array(list(clients.values())).T
        arrays = {"clients": np.array(list(clients)), "correct": correct, "total": totals, "loss": np.ones(len(clients))}
        write_round(engine, run, RoundRecord(round=t, accuracy=correct.sum() / totals.sum(), **arrays))
    return run


def at_work(engine: Engine, run: int) -> AbstractContextManager[locks.RequireOwned]:
    """As if this process were at the run."""
    return locks.locked(engine, runs.find(engine, run).key)
