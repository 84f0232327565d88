"""A program for test_same_bits.py: runs of each method, again and again, and whether any bit of their rows differs.

    python same_bits.py METHOD,METHOD,... REPETITIONS BUSY

Workers alternate between 1, 2 and 4; those with 4 are interrupted and resumed. BUSY processes compute nothing beside them, and if
there are any, every thread is moved from core to core all the time. Prints a digest per method, and what differed. First comes
that of a product that is the first thing a client's thread does.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from sqlalchemy import Engine
from support.runs import interrupted, numbers, spec

from pflbench.contract.small import federation
from pflbench.run.execution import Execution
from pflbench.run.training import execute
from pflbench.store import database as db

WORKERS = (1, 2, 4)
INTERRUPTED = 4  # workers


@contextmanager
def disturbed(busy: int) -> Iterator[None]:
    over = threading.Event()
    every = sorted(os.sched_getaffinity(0))

    def move() -> None:
        while not over.wait(0.02):
            where = random.choice([*({core} for core in every), set(every)])
            for thread in os.listdir("/proc/self/task"):
                with suppress(OSError):  # it has ended
                    os.sched_setaffinity(int(thread), where)

    beside = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    mover = threading.Thread(target=move)
    try:
        if busy:
            mover.start()
        yield
    finally:
        over.set()
        for process in beside:
            process.kill()
            process.wait()


def products() -> dict[str, torch.Tensor]:
    """Of sums with 100,000 terms, which the threads of an operation would share."""
    a = torch.sin(torch.arange(2e6)).reshape(20, -1)
    b = a.T.contiguous()
    fed, found = federation("mlp", "loop"), {}

    def client(*_: object) -> None:
        found["client"] = a @ b

    fed.executor._each(fed.batches(torch.arange(1)), client)
    fed.executor.close()
    return found


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def once(name: str, repetition: int, store: Engine) -> str:
    hasty = {"max_init_epochs": "12"} if "ala" in name else {}
    this = spec(name, set=hasty, rounds=3, dtype="float32", batch_size=10)
    how = Execution("cpu", "loop", workers=WORKERS[repetition % len(WORKERS)], checkpoint_every=0)
    if how.workers == INTERRUPTED:
        interrupted(this, store, 2, how, force=True)
    last = list(execute(this, store, Path("data"), how, force=True))[-1]
    return digest(repr(numbers(store, last.run_id)).encode())


def main(names: str, repetitions: str, busy: str) -> int:
    differed = 0
    for where, product in products().items():
        print(where, digest(product.numpy().tobytes()))
    with disturbed(int(busy)), tempfile.TemporaryDirectory() as folder:
        store = db.connect(db.to_url(str(Path(folder) / "results.db")))
        for name in names.split(","):
            found = [once(name, repetition, store) for repetition in range(int(repetitions))]
            differed += len(set(found)) > 1
            told = "" if len(set(found)) == 1 else f"  {len(set(found))} different results: {found}"
            print(f"{name} {found[0]}{told}", flush=True)
    return min(differed, 1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
