"""Makes a database of 1,000 runs x 2,000 rounds x 20 clients with synthetic curves, to measure how fast reports answer.

Usage: python benchmarks/big_database.py PATH [--settings 40] [--rounds 2000] [--seeds 5]

5 methods x 40 settings (8 pairs of dataset and model x 5 partitions) x 5 seeds. Specifications, runs and partitions go
through the store's own functions; rounds are inserted in bulk, in the order in which runs would have written them.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import time
from pathlib import Path

import numpy as np
from sqlalchemy import Engine, insert

from pflbench import methods
from pflbench.spec import DataSpec, Dirichlet, Pathological, RunSpec, TrainSpec
from pflbench.store import database as db
from pflbench.store import partitions as stored
from pflbench.store import write
from pflbench.store.partitions import PartitionRecord
from pflbench.store.schema import ClientRoundRow, RoundRow, now

Row = tuple[float | None, ...]

CLIENTS = 20

# dataset, model, learning rate, classes, samples, parameters, classes per client
DATASETS = (
    ("mnist", "cnn", 0.1, 10, 70_000, 582_026, 2),
    ("cifar10", "cnn", 0.005, 10, 60_000, 878_538, 2),
    ("cifar100", "cnn", 0.005, 100, 60_000, 924_708, 10),
    ("tiny", "cnn", 0.005, 200, 100_000, 5_694_600, 20),
    ("fashionmnist", "cnn", 0.1, 10, 70_000, 582_026, 2),
    ("agnews", "fasttext", 0.1, 4, 127_600, 3_157_508, 2),
    ("emnist", "cnn", 0.1, 62, 814_255, 608_702, 6),
    ("tiny", "resnet18", 0.1, 200, 100_000, 11_279_112, 20),
)

# method: final accuracy as a share of what is reachable, rounds to get there, relative time per round
METHODS: dict[str, tuple[float, float, float]] = {
    "local": (0.80, 40, 0.9),
    "fedavg": (0.62, 230, 1.0),
    "fedprox": (0.63, 160, 1.2),
    "ditto": (0.90, 30, 3.2),
    "fedala": (0.97, 60, 1.2),
}


def partitions(classes_per_client: int) -> list[Pathological | Dirichlet]:
    return [Pathological(clients=CLIENTS, classes_per_client=classes_per_client)] + [
        Dirichlet(clients=CLIENTS, beta=beta) for beta in (0.1, 0.01, 0.5, 1.0)
    ]


def counts(spec: Pathological | Dirichlet, classes: int, samples: int) -> np.ndarray:
    """Samples by client and class, [20, classes], in the manner of `spec`."""
    rng = np.random.default_rng(classes)
    beta = spec.beta if isinstance(spec, Dirichlet) else 0.05
    shares = rng.dirichlet([beta] * CLIENTS, size=classes).T
    return 40 + np.floor(shares * samples / classes).astype(np.int64)


def save_partition(engine: Engine, dataset: str, spec: Pathological | Dirichlet, held: np.ndarray) -> int:
    return stored.save(
        engine,
        PartitionRecord(
            hash=hashlib.sha256(f"{dataset} {spec.label}".encode()).hexdigest(),
            scheme=spec.scheme,
            label=spec.label,
            dataset=dataset,
            spec=spec.model_dump(mode="json"),
            classes=[str(k) for k in range(held.shape[1])],
            train=held - held // 4,
            test=held // 4,
        ),
    )


def client_results(
    rng: np.random.Generator, end: float, pace: float, total: np.ndarray, rounds: int
) -> tuple[np.ndarray, np.ndarray]:
    """Penalty predictions and summed losses, [rounds + 1, clients]: saturating curves and noise."""
    t = np.arange(rounds + 1)[:, None]
    reach = np.clip(end + rng.normal(0, 0.06, CLIENTS), 0.05, 0.995)
    mean = 0.05 + (reach - 0.05) * (1 - np.exp(-t / (pace * rng.uniform(0.7, 1.4, CLIENTS))))
    accuracy = np.clip(mean + rng.normal(0, 0.006, (rounds + 1, CLIENTS)), 0, 1)
    return np.rint(accuracy * total).astype(np.int64), total * (0.05 + 2.3 * (1 - accuracy) ** 1.3)


def round_rows(run_id: int, correct: np.ndarray, loss: np.ndarray, total: np.ndarray, cost: float, sent: int) -> list[Row]:
    """Tuples in the order of the columns of `round`. Round 0 was evaluated, but not trained."""
    per_client = correct / total
    updates = np.random.default_rng(run_id).gamma(100, cost / 100, len(correct))
    pooled, losses = correct.sum(1) / total.sum(), loss.sum(1) / total.sum()
    rows = []
    for t, (accuracy, mean, std, test_loss, seconds) in enumerate(
        zip(
            pooled.tolist(),
            per_client.mean(1).tolist(),
            per_client.std(1).tolist(),
            losses.tolist(),
            updates.tolist(),
            strict=True,
        )
    ):
        trained: Row = (None,) * 11
        if t:
            trained = (test_loss * 0.8, CLIENTS, 0.01, seconds, sent, sent, 0, 0, 4 * sent, 4 * sent, 1_500_000_000)
        train_loss, participants, receive, update, *traffic = trained
        rows.append((run_id, t, accuracy, mean, std, test_loss, train_loss, participants, receive, update, 0.1 * cost, *traffic))
    return rows


def client_rows(run_id: int, correct: np.ndarray, loss: np.ndarray, total: np.ndarray) -> list[Row]:
    rounds = len(correct)
    columns = (
        np.full(rounds * CLIENTS, run_id),
        np.repeat(np.arange(rounds), CLIENTS),
        np.tile(np.arange(CLIENTS), rounds),
        correct.ravel(),
        np.tile(total, rounds),
        loss.ravel(),
    )
    return list(zip(*(column.tolist() for column in columns), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--settings", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    if options.path.exists():
        parser.error(f"{options.path} is there already; remove it or name another file")

    started = time.perf_counter()
    engine = db.connect(db.to_url(str(options.path)))
    inserts = [str(insert(table).compile(engine)) for table in (RoundRow, ClientRoundRow)]
    settings = [(row, spec) for row in DATASETS for spec in partitions(row[-1])][: options.settings]
    for (row, partition), (method, recipe) in itertools.product(settings, METHODS.items()):
        dataset, model, lr, classes, samples, parameters, _ = row
        share, pace, cost = recipe
        held = counts(partition, classes, samples)
        partition_id = save_partition(engine, dataset, partition, held)
        difficulty = 1 - 0.12 * np.log10(classes) - (0.05 if partition.label == "Dir(1)" else 0)
        for seed in range(options.seeds):
            spec = RunSpec(
                data=DataSpec(name=dataset),
                partition=partition,
                model=model,
                train=TrainSpec(rounds=options.rounds, lr=lr),
                method=methods.spec(method, {}),
                seed=seed,
            )
            run_id = write.create_run(engine, spec, {"synthetic": True, "device": "none"})
            total = held.sum(1) // 4
            rng = np.random.default_rng(run_id)
            correct, loss = client_results(rng, share * difficulty, pace, total, options.rounds)
            sent = CLIENTS * parameters if method != "local" else 0
            with db.writing(engine) as connection:
                connection.exec_driver_sql(inserts[0], round_rows(run_id, correct, loss, total, 5 * cost, sent))
                connection.exec_driver_sql(inserts[1], client_rows(run_id, correct, loss, total))
            write.update_run(
                engine,
                run_id,
                status="finished",
                parameters=parameters,
                engine="loop",
                device="none (synthetic)",
                partition_id=partition_id,
                started_at=now(),
                finished_at=now(),
            )
    engine.dispose()
    runs, size = len(settings) * len(METHODS) * options.seeds, options.path.stat().st_size
    rows = runs * (options.rounds + 1) * (CLIENTS + 1)
    print(f"{options.path}: {runs:,} runs x {options.rounds:,} rounds x {CLIENTS} clients, {rows:,} rows")
    print(f"{size / 1e6:,.0f} MB in {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
