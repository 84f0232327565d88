"""Jobs of a Slurm cluster, handed in through submitit as arrays. What is preempted goes on at its runs' checkpoints.

The command looks on, and may end: what is in the queue stays there, and the next command for the same runs takes it over.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from pflbench.errors import UserError
from pflbench.sweep.jobs import Job, RunOutcome, State, make_away

PAUSE = 1.0  # seconds between two looks at what has ended
LOOK = 10.0  # seconds between two looks at the queue
MISSED = 2  # of these in a row without a job: it has left the queue; without an answer: a command that was stopped ends
ARRAY = 1000  # jobs at a time, which is what Slurm allows in an array where it is not told otherwise
SILENT = "Slurm does not answer: what is in its queue stays there, and the next command for the same runs takes it over."
AGAIN = "SLURM_RESTART_COUNT"  # how often Slurm has requeued a job, told to the job


class Queue(Protocol):
    """What holds jobs until there is a place for them."""

    def states(self) -> dict[str, str] | None:
        """PENDING, RUNNING and so on, of the user's jobs that are not over, by their ids. None where it does not answer."""

    def interrupt(self, ids: Sequence[str]) -> None:
        """SIGINT for those that run; those that wait are taken out."""

    def take_out(self, ids: Sequence[str]) -> None:
        """Those of these that wait."""

    def end(self, id: str) -> str:
        """Why a job is over, as far as that is known."""


@dataclass
class _Handed:
    """A job in the queue. ours: as submitit knows it; missed: looks at the queue in which it was not there."""

    job: Job
    future: Future[list[RunOutcome]]
    ours: Any
    missed: int = 0


class SlurmJobs:
    """executor: submitit's, with all that sbatch is told. cores: of each job. places: jobs in the queue at a time."""

    def __init__(self, executor: Any, queue: Queue, cores: int = 1, places: int | None = None) -> None:
        self.places = min(places or ARRAY, ARRAY)
        self._executor, self._queue, self._cores = executor, queue, cores
        self._folder = Path(executor.folder)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # a database's URL may have a password
        self._waiting: list[tuple[Job, Future[list[RunOutcome]]]] = []
        self._handed: dict[str, _Handed] = {}
        self._left = self._left_there()
        self._lock = threading.Lock()
        self._stopped, self._looked = False, time.monotonic()
        self._silent = 0  # times in a row that Slurm, or the folder, was asked in vain
        self._broken: Exception | None = None  # a bug, which ended the watching
        self._closed = threading.Event()
        self._watch = threading.Thread(target=self._watched, daemon=True)
        self._watch.start()

    def submit(self, job: Job) -> Future[list[RunOutcome]]:
        future: Future[list[RunOutcome]] = Future()
        with self._lock:
            if self._broken:
                future.set_exception(self._broken)
            else:
                self._waiting.append((job, future))
        return future

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            self._queue.interrupt(list(self._handed))

    def close(self) -> None:
        self._closed.set()
        self._watch.join()
        self._take_out()
        with suppress(OSError):
            self._folder.rmdir()  # if nothing is left in it

    def _watched(self) -> None:
        while not self._closed.wait(PAUSE):
            with self._lock:
                try:
                    self._watch_once()
                except OSError:  # a shared folder may be away for a moment
                    self._silent += 1
                except Exception as error:
                    self._broken = error
                    self._leave(error)
                    return
                if self._stopped and self._silent >= MISSED:
                    self._leave()

    def _watch_once(self) -> None:
        self._hand_in()
        self._take_out()
        self._collect()
        if time.monotonic() > self._looked + (PAUSE if self._stopped else LOOK):
            self._look()
            self._looked = time.monotonic()

    def _leave(self, error: Exception | None = None) -> None:
        """Waits for no job any more, nor touches its files: those in the queue are taken over by the next command."""
        left = [*self._waiting, *((handed.job, handed.future) for handed in self._handed.values())]
        self._waiting, self._handed = [], {}
        for job, future in left:
            if not future.running() and (future.done() or not future.set_running_or_notify_cancel()):
                continue
            if error:
                future.set_exception(error)
            else:
                future.set_result(_all(job, "interrupted", SILENT))

    def _hand_in(self) -> None:
        """All that was submitted since the last time, as one array."""
        waiting, self._waiting = self._waiting, []
        for job, future in waiting:
            if self._stopped and future.set_running_or_notify_cancel():
                future.set_result(_all(job, "interrupted"))
            elif ours := self._left.pop(_keys(job), None):
                self._handed[ours.job_id] = _Handed(job, future, ours)
        known = {id(handed.future) for handed in self._handed.values()}
        new = [(job, future) for job, future in waiting if not future.done() and id(future) not in known]
        if not new:
            return
        try:
            with self._executor.batch():
                made = [self._executor.submit(Task(), job, Path.cwd(), self._cores) for job, _ in new]
        except Exception as error:  # sbatch has said why
            refused = UserError(f"Slurm takes no job: {_last_line(error)}", "--slurm KEY=VALUE says what sbatch is told.")
            for _, future in new:
                if future.set_running_or_notify_cancel():
                    future.set_exception(refused)
            return
        for (job, future), ours in zip(new, made, strict=True):
            self._handed[ours.job_id] = _Handed(job, future, ours)

    def _take_out(self) -> None:
        """What was cancelled before it began."""
        ids = [id for id, handed in self._handed.items() if handed.future.cancelled()]
        if ids:
            self._queue.take_out(ids)
            for id in ids:
                del self._handed[id]

    def _collect(self) -> None:
        """Those that have left a result."""
        there = set(os.listdir(self._folder))
        for id, handed in list(self._handed.items()):
            if handed.ours.paths.result_pickle.name in there:
                try:
                    outcomes = handed.ours.result()
                except Exception as error:
                    outcomes = _all(handed.job, "failed", f"{_last_line(error)}\nSee {handed.ours.paths.stderr}.")
                self._end(id, outcomes)

    def _look(self) -> None:
        """Which have begun, and which have left the queue without a result."""
        states = self._queue.states()
        self._silent = self._silent + 1 if states is None else 0
        if states is None:
            return
        for id, handed in list(self._handed.items()):
            state = states.get(id)
            handed.missed = 0 if state else handed.missed + 1
            if state and state != "PENDING" and not handed.future.running():
                handed.future.set_running_or_notify_cancel()
            elif handed.missed >= MISSED and not handed.ours.paths.result_pickle.exists():
                told = f"It left the queue without a result: {self._queue.end(id)}.\nSee {handed.ours.paths.stderr}."
                self._end(id, _all(handed.job, "interrupted") if self._stopped else _all(handed.job, "failed", told))

    def _end(self, id: str, outcomes: list[RunOutcome]) -> None:
        future = self._handed.pop(id).future
        if future.running() or future.set_running_or_notify_cancel():
            future.set_result(outcomes)
        if all(outcome.state != "failed" for outcome in outcomes):
            self._forget(id)

    def _left_there(self) -> dict[tuple[str, ...], Any]:
        """Jobs of an earlier command that are in the queue still, by their runs' keys."""
        found, states = {}, self._queue.states()
        for path in self._folder.glob("*_submitted.pkl"):
            id = path.name.removesuffix("_submitted.pkl")
            if states is None or id in states:
                ours = self._executor.job_class(self._folder, id)
                with suppress(AttributeError, ImportError, TypeError):  # of another version of pflbench: it goes its own way
                    found[_keys(ours.submission().args[0])] = ours
            else:
                self._forget(id)
        return found

    def _forget(self, id: str) -> None:
        """Its files, and those of its array with the last of it."""
        for path in self._folder.glob(f"{id}_*"):
            path.unlink(missing_ok=True)
        array = id.partition("_")[0]
        if not list(self._folder.glob(f"{array}_*_submitted.pkl")):
            (self._folder / f"{array}_submission.sh").unlink(missing_ok=True)
            for link in self._folder.glob(".submission_file_*"):  # submitit's to that file
                if not link.exists():
                    link.unlink(missing_ok=True)


def _keys(job: Job) -> tuple[str, ...]:
    return tuple(spec.key for spec in job.specs)


def _all(job: Job, state: State, message: str = "") -> list[RunOutcome]:
    return [RunOutcome(spec.key, state, message) for spec in job.specs]


def _last_line(error: Exception) -> str:
    return next(reversed(str(error).strip().splitlines()), type(error).__name__)


# -- on the nodes -----------------------------------------------------------------------------------------------------------


class Task:
    """What a job of the queue calls. It keeps a checkpoint before Slurm ends it, and is requeued where it may go on."""

    def __call__(self, job: Job, folder: Path, cores: int) -> list[RunOutcome]:
        from submitit.core.job_environment import JobEnvironment

        soon_over = getattr(signal, f"SIG{JobEnvironment.USR_SIG}")
        requeue: Any = signal.getsignal(soon_over)
        told: list[int] = []

        def interrupted(number: int, _: FrameType | None) -> None:
            told.append(number)
            if len(told) == 1:
                raise KeyboardInterrupt

        for number in (soon_over, signal.SIGTERM):
            signal.signal(number, interrupted)
        outcomes = make_away(job, folder, cores, again=int(os.environ.get(AGAIN, 0)) > 0)
        if told and any(outcome.state == "interrupted" for outcome in outcomes):
            if told[0] == soon_over:
                requeue(soon_over, None)  # submitit's own, which ends this process
            raise SystemExit(1)  # without a result: if Slurm has requeued the job, it begins again
        return outcomes

    def checkpoint(self, *arguments: Any) -> Any:
        """For submitit: what is to be called after the job was requeued."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *arguments)
