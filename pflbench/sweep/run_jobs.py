"""Runs as many workers as there is room for until all runs of a command have ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from sqlalchemy import Engine

from pflbench import interrupts
from pflbench.store.failures import patiently
from pflbench.store.sweeps import SweepState
from pflbench.sweep.run_queue import RunQueue

LOOK = 0.5  # seconds between two reads of the database, which take at most a tenth of the time
TRIES = 4
KILLED = "its workers were killed, as by the system when memory runs out; fewer jobs at a time may help (--jobs)"


class Workers(Protocol):
    """Processes that each call `run_queue.work`, on this machine or in a cluster."""

    lost: int
    """Number of workers that were killed or ended with an error."""

    @property
    def places(self) -> int:
        """The largest number of workers; it may change, as a cluster does."""

    def start(self, queue: RunQueue) -> None:
        """Starts a worker."""

    def alive(self) -> int:
        """Number of workers alive. Raises UserError if none can work."""

    def stop(self) -> None:
        """Interrupts the workers and waits for their end: their runs keep a checkpoint."""

    def close(self) -> None:
        """Releases the workers' resources."""


def run_jobs(queue: RunQueue, engine: Engine, workers: Workers, look: Callable[[SweepState], None]) -> str:
    """Has the workers execute all runs, and waits for runs of other commands. Returns why it started no further runs, or "".

    look: is called with every state that is read. A killed worker is replaced, and its run resumed, unless TRIES workers in a row
    are killed before a run ends. KeyboardInterrupt and every error interrupt all workers.
    """
    over = killed = lost = 0
    try:
        while True:
            began = time.monotonic()
            alive, state = workers.alive(), patiently(lambda: queue.state(engine))
            look(state)
            ahead, under_way = len(queue.ahead(state)), state.counts["running"]
            if (done := len(queue.specs) - ahead - under_way) > over:
                over, killed = done, 0
            if workers.lost > lost:
                lost, killed = workers.lost, killed + 1
            why = queue.stopped(engine, state) or (KILLED if killed >= TRIES else "")
            if not alive and (why or not ahead + under_way):
                return why
            if ahead and not why:
                for _ in range(min(workers.places, ahead + under_way) - alive):
                    workers.start(queue)
            time.sleep(max(LOOK, 10 * (time.monotonic() - began)))
    except BaseException:  # also a closed stdout: at its end Python waits for workers, which would train on
        with interrupts.held():
            workers.stop()
        raise
    finally:
        workers.close()
