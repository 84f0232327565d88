"""The database behind the tests of pages: its runs are few, and their numbers easy."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from sqlalchemy import Engine
from support.report_database import add_partition, add_run, at_work, spec

from pflbench.report.selection import Filters
from pflbench.site.page import Made, build
from pflbench.site.serve import Server
from pflbench.store import write
from pflbench.store.database import connect_read_only

MADE = Made("results.db", "2026-01-02T03:04:05Z", "1.2.3", "abc123", "pflbench report")
RUNNING = 6
SNEAKY = "<img src=x onerror=alert(1)></script>"
CURVES = {
    "fedavg": ([0.1, 0.85, 0.8], [0.1, 0.8, 0.87]),
    "ditto": ([0.1, 0.99, 0.98], [0.1, 0.97, 0.98]),
    "local": ([0.1, 0.09, 0.08], [0.1, 0.07, 0.08]),
}


held = ExitStack()  # until the tests are over


def fill(engine: Engine) -> None:
    """Runs 1 to 4: FedAvg and Ditto by turns on MNIST; 5: FedAvg on Cifar10; 6 is under way; 7 and 8: Local on MNIST."""
    partition = add_partition(engine)
    for seed in (0, 1):
        for method in ("fedavg", "ditto"):
            _add(engine, method, seed, partition)
    add_run(engine, spec("fedavg", dataset="cifar10", rounds=2), [0.1, 0.5, 0.6])
    going = add_run(engine, spec("fedavg", 5, rounds=9), [0.1, 0.7, 0.65], status="running", partition=partition)
    write.update_run(engine, going, message=SNEAKY)
    held.enter_context(at_work(engine, going))
    for seed in (0, 1):
        _add(engine, "local", seed, partition)


def _add(engine: Engine, method: str, seed: int, partition: int) -> None:
    sent = {f"{what}_{way}": 5 for what in ("params", "scalars", "bytes") for way in ("up", "down")}
    run = spec(method, seed, rounds=2)
    add_run(engine, run, CURVES[method][seed], partition=partition, seconds=2.0, participants=1, **sent)


@contextmanager
def serving(url: str) -> Iterator[Server]:
    """A server of the database's page, on a free port, in a thread."""
    reader = connect_read_only(url)
    server = Server(reader, lambda: build(reader, MADE, Filters(), "all", live=True), 0)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        reader.dispose()
