"""What benchmarks/gpu.sh has left behind, in short tables.

    python benchmarks/gpu_table.py OUT

"same bits": whether a run has the numbers of the first one of its specification, with or without --deterministic. Seconds are
medians of whole rounds, evaluation included; a floor is that of the machine's own ceilings (benchmarks/floor.py).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bench import summary
from sqlalchemy import Engine

from pflbench.store import database as db
from pflbench.store import rounds, runs

Row = tuple[object, ...]


def of_runs(store: Engine) -> Iterator[Row]:
    first: dict[object, list[tuple[float, ...]]] = {}
    for run in runs.stored(store, runs.ALL):
        rows = rounds.newest_rows(store, run.id, 1 + run.rounds)
        numbers = [(row["accuracy"], row["test_loss"], row["train_loss"]) for row in rows]
        deterministic = bool(run.environment.get("deterministic"))
        known = first.setdefault((run.key, deterministic), numbers)
        same = "" if known is numbers else "yes" if known == numbers else f"off by {_off(known, numbers):.0e}"
        taken = sorted(row["seconds_update"] + row["seconds_evaluate"] + (row["seconds_receive"] or 0) for row in rows[1:])
        yield (
            f"{run.method}, {run.clients} clients" + (", deterministic" if deterministic else ""), run.status, run.engine,
            *_steps(run.environment.get("steps", {})), f"{taken[len(taken) // 2]:.3g}" if taken else "", same,
        )  # fmt: skip


def _off(known: Iterable[tuple[float, ...]], numbers: Iterable[tuple[float, ...]]) -> float:
    pairs = (pair for a, b in zip(known, numbers, strict=False) for pair in zip(a, b, strict=True))
    return max((abs(a - b) for a, b in pairs if a is not None and b is not None), default=0.0)


def of_measurements(out: Path) -> Iterator[Row]:
    for file in sorted(out.glob("bench-*.json"), key=lambda file: file.stat().st_mtime):
        found = json.loads(file.read_text())
        share = "" if found["work"]["share"] == 1 else f", {found['work']['share']:g} of the data"
        for arm in found["arms"]:
            told = summary(found, arm)
            yield (
                f"{file.stem.removeprefix('bench-')}{share}", arm["method"], arm["engine"], *_steps(arm["steps"] or {}),
                f"{told['median']:.3g}", f"{told['times_floor']:.3g}", f"{arm['peak_memory'] / 1e9:.2f}",
            )  # fmt: skip


def _steps(steps: Mapping[str, Any]) -> Row:
    """How they were made: the way to convolve, the capture, and steps without one."""
    apart = sum(steps.get("apart", {}).values())
    return steps.get("convolution", ""), steps.get("capture", "") + (f", {apart} apart" if apart else "")


def of_shapes(out: Path) -> Iterator[Row]:
    for one in json.loads((out / "kernels.json").read_text())["shapes"]:
        yield *(one[name] for name in ("convolution", "clients", "dtype")), *(f"{one[way]:.3g}" for way in list(one)[3:])


def table(head: Row, rows: Iterable[Row]) -> None:
    print("| " + " | ".join(map(str, head)) + " |\n|" + " --- |" * len(head))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    print()


def main() -> None:
    out = Path(sys.argv[1])
    store = db.connect(db.to_url(str(out / "gpu.db")))
    steps = ("convolution", "capture")
    table(("run", "status", "engine", *steps, "s/round", "same bits"), of_runs(store))
    table(("measurement", "method", "executor", *steps, "s/round", "x floor", "peak GB"), of_measurements(out))
    if (out / "kernels.json").exists():
        table(("convolution, TFLOP/s", "clients", "arithmetic", "groups", "search", "unfold"), of_shapes(out))


if __name__ == "__main__":
    main()
