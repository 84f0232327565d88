"""The workers of a command: as many as there is room for, until all its runs are over."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from sqlalchemy import Engine

from pflbench import interrupts
from pflbench.errors import UserError
from pflbench.store.failures import patiently
from pflbench.store.sweeps import SweepState
from pflbench.sweep.run_queue import RunQueue

LOOK = 0.5  # seconds between two looks at the database, which take a tenth of the time at most
TRIES = 4
KILLED = "its workers were killed, as by the system when memory runs out; fewer jobs at a time may help (--jobs)"


class Workers(Protocol):
    """Processes that each do `run_queue.work`, on this machine or in a cluster."""

    lost: int
    """How many have ended otherwise than by themselves."""

    @property
    def places(self) -> int:
        """How many there may be. It may change, as a cluster does."""

    def start(self, queue: RunQueue) -> None:
        """One more."""

    def alive(self) -> int:
        """How many there are. Raises UserError where none of them can work."""

    def stop(self) -> None:
        """Interrupts them and waits for their end: their runs keep a checkpoint."""

    def close(self) -> None:
        """Gives back what they hold."""


def run_jobs(queue: RunQueue, engine: Engine, workers: Workers, look: Callable[[SweepState], None]) -> str:
    """Has all runs made, and waits for those that other commands are at. Returns why it has begun no further ones, or "".

    look: is given the state at every look. A worker that is killed is replaced, and its run goes on, until one after another is
    killed and no run gets to its end. KeyboardInterrupt, and errors of the database, interrupt all workers.
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
    except (KeyboardInterrupt, UserError):
        with interrupts.held():
            workers.stop()
        raise
    finally:
        workers.close()
