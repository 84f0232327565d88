"""Writes rounds to a database as runs do, one transaction each, and prints what a round costs.

Usage: python benchmarks/store_rows.py [--rounds 100000] [--clients 20] [--writers 8] [--db URL] [--folder DIR]

Storing takes less than 2 % of a run's time where a round takes more than 50 times the printed microseconds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from pflbench.spec import DataSpec, Dirichlet, MethodSpec, RunSpec, TrainSpec
from pflbench.store import database as db
from pflbench.store import locks, runs, write
from pflbench.store.run_writer import RunWriter
from pflbench.store.write import RoundRecord


def records(rounds: int, clients: int, distinct: int = 64) -> list[RoundRecord]:
    """`rounds` complete records; making them is no part of what is measured, so their arrays are taken from a few."""
    rng = np.random.default_rng(0)
    total = rng.integers(40, 1500, clients)
    correct = [rng.integers(0, total + 1) for _ in range(distinct)]
    losses = [rng.gamma(2.0, 20.0, clients) for _ in range(distinct)]
    who = np.arange(clients)
    return [
        RoundRecord(
            round=t,
            accuracy=float(correct[t % distinct].sum() / total.sum()),
            accuracy_mean=float((correct[t % distinct] / total).mean()),
            accuracy_std=float((correct[t % distinct] / total).std()),
            test_loss=float(losses[t % distinct].sum() / total.sum()),
            train_loss=0.1,
            participants=clients,
            seconds_receive=0.01,
            seconds_update=5.0,
            seconds_evaluate=0.5,
            params_up=clients * 582_026,
            params_down=clients * 582_026,
            scalars_up=0,
            scalars_down=0,
            bytes_up=clients * 4 * 582_026,
            bytes_down=clients * 4 * 582_026,
            peak_memory=1_500_000_000,
            clients=who,
            correct=correct[t % distinct],
            total=total,
            loss=losses[t % distinct],
        )
        for t in range(rounds)
    ]


def write_all(url: str, seed: int, rounds: int, clients: int, ready: Any, times: Any) -> None:
    """One writer: a run of its own, a transaction a round. Puts the seconds of each round into `times`."""
    spec = RunSpec(
        data=DataSpec(name="mnist"),
        partition=Dirichlet(clients=clients, beta=0.1),
        model="cnn",
        train=TrainSpec(rounds=rounds, lr=0.1),
        method=MethodSpec(name="fedavg"),
        seed=seed,
    )
    engine = db.connect(url)
    run_id = write.create_run(engine, spec, {})
    todo = records(rounds, clients)
    each = np.empty(rounds)
    ready.wait()
    with locks.locked(engine, spec.key) as hold:
        begun = "2026-01-01T00:00:00Z"
        writer = RunWriter(engine, runs.find(engine, run_id), begun, hold)
        writer.change(status="running", started_at=begun)
        for i, record in enumerate(todo):
            before = time.perf_counter()
            writer.round(record)
            each[i] = time.perf_counter() - before
    engine.dispose()
    times.put(each)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100_000, help="of all writers together")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--writers", type=int, default=1, help="processes that write at once, each a run of its own")
    parser.add_argument("--db", help="an empty database, e.g. postgresql://user@host/name; default: a new SQLite file")
    parser.add_argument("--folder", type=Path, help="where that file is made, and removed afterwards; default: TMPDIR")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "rows.db"
        url = options.db or db.to_url(str(path))
        db.connect(url).dispose()
        processes = multiprocessing.get_context("spawn")
        ready, times = processes.Barrier(options.writers + 1), processes.Queue()
        share = options.rounds // options.writers
        all_of_them = [
            processes.Process(target=write_all, args=(url, seed, share, options.clients, ready, times))
            for seed in range(options.writers)
        ]
        for process in all_of_them:
            process.start()
        ready.wait()
        started = time.perf_counter()
        each = np.concatenate([times.get() for _ in all_of_them])
        seconds = time.perf_counter() - started
        for process in all_of_them:
            process.join()
        size = f", {path.stat().st_size / 1e6:,.0f} MB" if path.exists() else ""
    mean, rows = 1e6 * each.mean(), len(each) * (options.clients + 1)
    median, high, worst = 1e6 * np.quantile(each, [0.5, 0.99, 1.0])
    print(f"{options.writers} writers, {len(each):,} rounds x {options.clients} clients: {rows:,} rows{size}, {seconds:.1f} s")
    print(f"{len(each) / seconds:,.0f} rounds/s, {rows / seconds:,.0f} rows/s")
    print(f"microseconds a round: mean {mean:.0f}, median {median:.0f}, 99 % {high:.0f}, most {worst:.0f}")
    print(f"under 2 % of a run's time where a round takes more than {50 * mean / 1e6:.3f} s")


if __name__ == "__main__":
    main()
