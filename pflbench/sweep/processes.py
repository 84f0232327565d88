"""Workers on this machine: processes that take runs from the database."""

from __future__ import annotations

import os
import signal
import sys
import threading
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.context import SpawnProcess

from pflbench import environment, interrupts
from pflbench.errors import Unreachable, UserError, Vanished
from pflbench.sweep.run_queue import RunQueue, work_alone


class Processes:
    """places: number of processes. devices: given to the processes in turn, as "cuda:0" and "cuda:1".

    cores: of each process; None: an equal share of all.
    """

    def __init__(self, places: int, devices: tuple[str, ...], cores: int | None = None) -> None:
        self.places, self.lost = places, 0
        self._devices, self._cores = devices, cores or max(1, environment.cores() // places)
        self._at_work: dict[int, SpawnProcess] = {}  # by place

    def start(self, queue: RunQueue) -> None:
        place = next(place for place in range(self.places) if place not in self._at_work)
        device = self._devices[place % len(self._devices)]
        process = get_context("spawn").Process(target=_worker, args=(queue, device, self._cores, place))
        resource_tracker.ensure_running()  # else it starts together with the process and unblocks signals
        # A signal waits until the process handles signals, instead of killing it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, interrupts.SIGNALS)
        try:
            process.start()
            self._at_work[place] = process
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def alive(self) -> int:
        for place, process in list(self._at_work.items()):
            if process.exitcode is not None:
                self.lost += process.exitcode != 0
                del self._at_work[place]
        return len(self._at_work)

    def stop(self) -> None:
        for process in self._at_work.values():
            process.terminate()
        for process in self._at_work.values():
            process.join()

    def close(self) -> None:
        """Nothing to release."""


# -- in the process of a worker -------------------------------------------------------------------------------------------


def _worker(queue: RunQueue, device: str, cores: int, place: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the command passes it on
    threading.Thread(target=_end_with_command, daemon=True).start()
    with interrupts.caught(last=True):
        interrupts.stopping = b""  # the command itself answers the user
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, interrupts.SIGNALS)
            work_alone(queue, device, cores, place)
        except KeyboardInterrupt:
            sys.exit(interrupts.exit_code())
        except (Unreachable, Vanished):
            sys.exit(2)  # the command meets the same error and prints it
        except UserError as error:
            sys.exit(f"Error: {error}")


def _end_with_command() -> None:
    """Ends the worker as after SIGTERM if its command was killed."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
