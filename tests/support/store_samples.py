"""Specifications, records and child processes for the tests of the store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Engine

import pflbench
from pflbench.spec import DataSpec, Dirichlet, MethodSpec, RunSpec, TrainSpec
from pflbench.store import partitions
from pflbench.store.database import writing
from pflbench.store.partitions import PartitionRecord
from pflbench.store.write import RoundRecord, create_run, delete_rounds, insert_rows, rows_of, update_run

ROOT = Path(pflbench.__file__).parents[1]


def make_spec(seed: int = 0, rounds: int = 3, method: str = "fedavg", clients: int = 4) -> RunSpec:
    return RunSpec(
        data=DataSpec(name="digits"),
        partition=Dirichlet(clients=clients, beta=0.1),
        model="mlp",
        train=TrainSpec(rounds=rounds, lr=0.1),
        method=MethodSpec(name=method),
        seed=seed,
    )


def make_record(t: int, clients: int = 4, **columns: Any) -> RoundRecord:
    """A round whose pooled accuracy is that of its clients: client i has 10 (i + 1) samples, and i + t of them correct."""
    who = np.arange(clients)
    total = 10 * (who + 1)
    correct = np.minimum(who + t, total)
    values: dict[str, Any] = {"accuracy": float(correct.sum() / total.sum()), "loss": 0.5 * who + t}
    values |= columns
    return RoundRecord(round=t, clients=who, correct=correct, total=total, **values)


def write_round(engine: Engine, run: int, record: RoundRecord) -> None:
    """A round in a transaction of its own, of a run that nobody is at."""
    with writing(engine) as connection:
        insert_rows(connection, rows_of(run, record))


def rewind(engine: Engine, run: int, last_round: int) -> None:
    """As a run that begins again at an older checkpoint."""
    with writing(engine) as connection:
        delete_rounds(connection, run, last_round)


def make_partition(**columns: Any) -> PartitionRecord:
    values: dict[str, Any] = {
        "hash": "f" * 64,
        "scheme": "dirichlet",
        "label": "Dir(0.1)",
        "dataset": "digits",
        "spec": {"scheme": "dirichlet", "beta": 0.1},
        "classes": ["zero", "one"],
        "train": np.array([[3, 0], [1, 2]]),
        "test": np.array([[1, 0], [0, 1]]),
        "indices": {
            "train_0": np.array([4, 2, 7]),
            "test_0": np.array([1]),
            "train_1": np.array([3, 5, 6]),
            "test_1": np.array([0]),
        },
    }
    return PartitionRecord(**values | columns)


def add_run(engine: Engine, spec: RunSpec, rounds: int = 3, status: str = "finished", **last: Any) -> int:
    """A run with records 0 ... rounds; `last` are columns of the last one. Each has a series and an array."""
    run = create_run(engine, spec, {"commit": "abc"})
    partition = make_partition(train=np.full((4, 2), 3), test=np.full((4, 2), 10), indices=None)
    update_run(engine, run, status=status, partition_id=partitions.save(engine, partition))
    for t in range(rounds + 1):
        more = {"series": {"global": (0.5, t / 8)}, "artifacts": {"weights": make_record(t).total}}
        write_round(engine, run, make_record(t, participants=4, **more, **(last if t == rounds else {})))
    return run


def python(code: str, *arguments: object, path: Path = ROOT, **options: Any) -> subprocess.Popen[str]:
    """A Python process that runs `code` and finds the package in `path`, and the tests' support."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(path), str(ROOT / "tests")])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def finish(process: subprocess.Popen[str]) -> str:
    """Waits for the process, which must end well; returns what it printed."""
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out
