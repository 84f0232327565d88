"""The numbers of a tiny run of every method, in values.json: what tests/methods/test_golden_values.py holds them against.

    python tests/golden/values.py [METHOD ...]

writes those of methods that are new there or have another `version` by now, of all or of these. Other numbers under the same
version are refused: the key of a run has the version, and runs with one key must have the same numbers.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from sqlalchemy import Engine

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from support.made import LOOP, Case, run, samples

from pflbench import methods
from pflbench.partition import Partition
from pflbench.run.execution import Execution
from pflbench.spec import DataSpec, Dirichlet, RunSpec, TrainSpec
from pflbench.store import database as db
from pflbench.store import rounds

TARGET = Path(__file__).with_name("values.json")
# Other processors and versions of PyTorch round other last digits. 1e-14 in the initial models becomes 1e-10 at most (a test).
TOLERANCE = 1e-8
ROUNDS = 3
SIZES = ((11, 4), (5, 3), (8, 4), (3, 2))  # samples of each client, to train and to test on
EVERY = ("accuracy", "test_loss", "train_loss", "params_up", "params_down", "scalars_up", "scalars_down")

Values = dict[str, list[float | None]]  # by name, a number for each round; of clients, for each round and client


def case(name: str, how: Execution = LOOP) -> Case:
    """Four clients of different sizes and classes, in float64, with a method's defaults."""
    ends = np.cumsum([0, *(size for both in SIZES for size in both)])
    parts = [np.arange(start, end) for start, end in itertools.pairwise(ends)]
    y = np.concatenate([(np.arange(sum(both)) * (i + 2) // 3 + i) % 3 for i, both in enumerate(SIZES)])
    spec = RunSpec(
        data=DataSpec(name="npz", path="made-up.npz", content="0" * 64),
        partition=Dirichlet(clients=len(SIZES), beta=1),
        model="mlp",
        train=TrainSpec(rounds=ROUNDS, local_epochs=2, batch_size=4, lr=0.05, dtype="float64"),
        method=methods.spec(name, {}),
    )
    return Case(spec, samples("mlp", y), Partition(tuple(parts[::2]), tuple(parts[1::2])), how)


def values(name: str, how: Execution = LOOP) -> Values:
    """What a run of this method stores."""
    with TemporaryDirectory() as folder:
        store = db.connect(db.to_url(str(Path(folder) / "values.db")))
        try:
            return stored(store, run(case(name, how), store)[-1].run_id)
        finally:
            store.dispose()


def stored(store: Engine, run_id: int) -> Values:
    found: Values = {column: [] for column in EVERY}
    for row in rounds.newest_rows(store, run_id, ROUNDS + 1):
        for column in EVERY:
            found[column].append(row[column])
        found.setdefault("loss of clients", []).extend(rounds.clients(store, run_id, row["round"]).loss.tolist())
    for series in rounds.second_series(store, run_id):
        found[series.name] = [*series.accuracy.tolist(), *series.test_loss.tolist()]
    return found


def kept() -> dict[str, dict[str, Any]]:
    """By method: its version, and its values."""
    read: dict[str, dict[str, Any]] = json.loads(TARGET.read_text(encoding="utf-8")) if TARGET.exists() else {}
    return read


def differences(found: Values, expected: Values, tolerance: float = TOLERANCE) -> Iterator[str]:
    """Where two runs differ, in words."""
    if found.keys() != expected.keys():
        yield f"there are values of {sorted(found)}, not of {sorted(expected)}"
        return
    for name, of_one in found.items():
        for place, (a, b) in enumerate(zip(of_one, expected[name], strict=True)):
            same = a is b if a is None or b is None else math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)
            if not same:
                yield f"{name}, number {place}: {a}, not {b}"


def renew(names: Sequence[str]) -> int:
    """Writes the values of methods whose version is another one; the exit code."""
    now, refused = kept(), []
    for name in names:
        version, found, before = methods.spec(name, {}).version, values(name), now.get(name)
        if before is None or version > before["version"]:
            now[name] = {"version": version, "values": found}
            print(f"{name}: version {version}")
        elif version < before["version"]:
            refused.append(f"{name} has version {version}; its numbers here are those of version {before['version']}.")
        elif first := next(differences(found, before["values"]), None):
            refused.append(f"numbers of {name} changed ({first}), its version has not: raise `version` in its class first.")
    for text in refused:
        print(f"Error: {text}", file=sys.stderr)
    every = methods.names(with_ala=True)
    lines = [f"{json.dumps(name)}: {json.dumps(now[name])}" for name in every if name in now]
    TARGET.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    return 2 if refused else 0


if __name__ == "__main__":
    sys.exit(renew(sys.argv[1:] or methods.names(with_ala=True)))
