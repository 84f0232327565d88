"""Runs with arrays that their methods observed."""

from __future__ import annotations

from typing import Any

import numpy as np
from sqlalchemy import Engine
from support.report_database import spec
from support.store_samples import write_round

from pflbench.store import partitions, write
from pflbench.store.partitions import PartitionRecord
from pflbench.store.write import RoundRecord

NAN = np.nan
THREE = {"scheme": "dirichlet", "beta": 0.1, "clients": 3}
PATHOLOGICAL = {"scheme": "pathological", "classes_per_client": 2, "clients": 4}
XI = [[0.5, 0.1, 0.3, 0.1], [0.0, 1.0, 0.0, 0.0], [6.0, 0.0, -9.0, 2.0], [0.1, 0.7, 0.0, 0.2]]  # of FedAMP's four clients


def add(
    engine: Engine,
    method: str,
    artifacts: list[dict[str, Any]],
    *,
    partition: int | None = None,
    scheme: dict[str, Any] = THREE,
    seed: int = 0,
) -> int:
    """A finished run with these arrays in rounds 0, 1, ..."""
    run = write.create_run(engine, spec(method, seed, partition=scheme), {})
    write.update_run(engine, run, status="finished", **({} if partition is None else {"partition_id": partition}))
    for t, held in enumerate(artifacts):
        write_round(engine, run, RoundRecord(round=t, accuracy=0.5, artifacts={k: np.array(v) for k, v in held.items()}))
    return run


def pathological(engine: Engine) -> int:
    """Clients 0 and 2 hold classes 0 and 1, clients 1 and 3 classes 2 and 3."""
    counts = np.array([[8, 2, 0, 0], [0, 0, 5, 5], [4, 6, 0, 0], [0, 0, 1, 9]])
    record = PartitionRecord("a" * 64, "pathological", "Pathological(2)", "mnist", PATHOLOGICAL, list("abcd"), counts, 0 * counts)
    return partitions.save(engine, record)
