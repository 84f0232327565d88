"""Workers on this machine: processes that each make one job after another."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context, parent_process, resource_tracker
from queue import SimpleQueue
from types import FrameType

from pflbench import environment, interrupts
from pflbench.sweep.jobs import Job, RunOutcome, make, placed

KILLED = "Its process was killed, as by the system when memory runs out; fewer jobs at a time may help (--jobs)."


class Processes:
    """places: processes. devices: they are given to them in turn, such as "cuda:0" and "cuda:1".

    cores: of each process; None: all of them share those that there are.

    A process that dies takes its own job with it, and no other.
    """

    def __init__(self, places: int, devices: tuple[str, ...], cores: int | None = None) -> None:
        self.places = places
        self._share = cores or max(1, environment.cores() // places)
        self._free: SimpleQueue[_Process] = SimpleQueue()
        self._all = [_Process(devices[i % len(devices)]) for i in range(places)]
        for process in self._all:
            self._free.put(process)

    def submit(self, job: Job) -> Future[list[RunOutcome]]:
        process = self._free.get()
        return process.submit(placed(job, process.device, self._share), lambda: self._free.put(process))

    def stop(self) -> None:
        for process in self._all:
            process.interrupt()

    def close(self) -> None:
        for process in self._all:
            process.close()


class _Process:
    """One process, started with the first job, and anew where it died."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._pool: ProcessPoolExecutor | None = None
        self._number: Future[int]  # of the process, once it is up

    def submit(self, job: Job, then: Callable[[], None]) -> Future[list[RunOutcome]]:
        answer: Future[list[RunOutcome]] = Future()
        answer.set_running_or_notify_cancel()

        def done(made: Future[list[RunOutcome]]) -> None:
            try:
                outcomes = made.result()
            except BrokenProcessPool:
                self._pool = None
                outcomes = [RunOutcome(spec.key, "failed", KILLED) for spec in job.specs]
            except BaseException as error:
                outcomes = [RunOutcome(spec.key, "failed", f"{type(error).__name__}: {error}") for spec in job.specs]
            if any(outcome.state == "interrupted" for outcome in outcomes):
                self._pool = None  # it ends by itself, and takes no other job
            then()
            answer.set_result(outcomes)

        try:
            self._started().submit(_worked, job).add_done_callback(done)
        except BrokenProcessPool:  # it died between two jobs
            self._pool = None
            self._started().submit(_worked, job).add_done_callback(done)
        return answer

    def interrupt(self) -> None:
        if self._pool is not None:
            with suppress(ProcessLookupError, BrokenProcessPool):
                os.kill(self._number.result(), signal.SIGINT)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True)

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, get_context("spawn"), _begin)
            resource_tracker.ensure_running()  # else it is started with the process, and unblocks signals
            # Until it can tell what it is asked, a Ctrl-C in the terminal waits for it instead of ending it.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, interrupts.SIGNALS)
            try:
                self._number = self._pool.submit(os.getpid)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return self._pool


# -- in the process of a worker -------------------------------------------------------------------------------------------

_busy = threading.Event()
_asked = threading.Event()  # to stop


def _begin() -> None:
    """Ctrl-C reaches all processes of a terminal, SIGTERM all of a job: each is interrupted, once, and begins nothing else."""
    for number in interrupts.SIGNALS:
        signal.signal(number, _interrupted)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, interrupts.SIGNALS)
    threading.Thread(target=_follow_parent, daemon=True).start()


def _interrupted(number: int, frame: FrameType | None) -> None:
    first = not _asked.is_set()
    _asked.set()
    if first and _busy.is_set():
        interrupts.arrive(number, frame)


def _follow_parent() -> None:
    """A worker whose command was killed stops as after Ctrl-C, and ends."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    while _busy.is_set():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
    os._exit(1)


def _worked(job: Job) -> list[RunOutcome]:
    _busy.set()
    try:
        if not _asked.is_set():
            return make(job)
    except KeyboardInterrupt:
        pass
    finally:
        _busy.clear()
    return [RunOutcome(spec.key, "interrupted") for spec in job.specs]
