"""One place of a sweep's work: some runs that are made together, by whichever worker, and what became of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from sqlalchemy import Engine

from pflbench.errors import Diverged, Occupied, Unreachable, UserError, Vanished
from pflbench.methods.outside import plugged_in
from pflbench.run.execution import Execution, find_device
from pflbench.run.pack import Told, execute_pack, packs
from pflbench.spec import RunSpec
from pflbench.store.database import connect
from pflbench.store.failures import patiently, sqlite_path

PATIENCE = 180.0  # seconds in which the lock of a process that was killed elsewhere should be free
PAUSE = 1.0

State = Literal["finished", "diverged", "failed", "interrupted", "elsewhere"]
Steps = Generator[tuple[int, Told], None, None]
"""What the runs of a job report, each with its number in the job."""


@dataclass(frozen=True)
class Job:
    """Runs that differ in the seed alone, or one run. plugins: files of the methods that are not built in."""

    specs: tuple[RunSpec, ...]
    url: str
    data_dir: Path
    how: Execution
    plugins: tuple[Path, ...] = ()
    force: bool = False


@dataclass(frozen=True)
class RunOutcome:
    """elsewhere: another process is at the run. message: why it did not finish. news: what the user should know of it."""

    key: str
    state: State
    message: str = ""
    news: tuple[str, ...] = ()


class Workers(Protocol):
    """Who makes jobs: processes on this machine, or a cluster."""

    @property
    def places(self) -> int:
        """Jobs that are given to them at a time. It may change, as a cluster does."""

    def submit(self, job: Job) -> Future[list[RunOutcome]]:
        """Begins a job as soon as there is a place. An outcome for each of its runs, whatever happens to them.

        As long as the future is pending, the job has not begun: cancelling it takes the job back. UserError in it: the workers
        cannot take any job.
        """

    def stop(self) -> None:
        """Interrupts what is under way: its runs keep a checkpoint, and their futures end."""

    def close(self) -> None:
        """Waits for what is under way, and gives back what the workers hold."""


class Here:
    """This process, one job at a time: `submit` returns when it is over.

    follow: sees the steps of a job as they come, and passes them on. Ctrl-C passes, and so does an error unless keep_going.
    """

    places = 1

    def __init__(self, store: Engine, follow: Callable[[Job, Steps], Steps], keep_going: bool = False) -> None:
        self._store, self._follow = store, follow
        self._kept: tuple[type[BaseException], ...] = (Exception,) if keep_going else ()

    def submit(self, job: Job) -> Future[list[RunOutcome]]:
        steps = execute_pack(job.specs, self._store, job.data_dir, job.how, force=job.force)
        answer: Future[list[RunOutcome]] = Future()
        answer.set_result(_outcomes(job, self._follow(job, steps), self._kept))
        return answer

    def stop(self) -> None:
        """Nothing is under way between two jobs."""

    def close(self) -> None:
        """It holds nothing."""


def jobs_of(
    specs: Sequence[RunSpec],
    store: Engine,
    data_dir: Path,
    how: Execution,
    plugins: tuple[Path, ...] = (),
    *,
    force: bool = False,
    own: Callable[[RunSpec], tuple[Execution, bool]] | None = None,
) -> Iterator[Job]:
    """Jobs of these runs, packed as `how` says.

    force: also what is finished takes a place in a pack, and is made anew. own: how a run is made and whether anew, where that
    is not the same for all. The jobs mean the same from any folder.
    """
    file = sqlite_path(store.url)
    url = store.url if file is None else store.url.set(database=str(file.absolute()))
    place = url.render_as_string(hide_password=False)
    each = own or (lambda _: (how, force))
    for together in packs(specs, store, how, force=force, also_alike=each):
        execution, anew = each(together[0])
        yield Job(tuple(together), place, data_dir.absolute(), execution, plugins, anew)


def placed(job: Job, device: str, cores: int) -> Job:
    """The job for a device, such as "cpu" or "cuda:1". cores: its share, on which clients go side by side."""
    how = job.how
    alone = device == "cpu" and how.engine_on(device) == "loop"
    return replace(job, how=replace(how, device=device, workers=how.workers or (cores if alone else None)))


def make(job: Job, prepared: Callable[[], Job] | None = None) -> list[RunOutcome]:
    """Makes a job's runs in this process, which is a worker's. KeyboardInterrupt ends all of them as `interrupted`.

    prepared: gives the job as it is made here, once its plug-ins are there.
    """

    def steps() -> Steps:
        with ExitStack() as stack:
            stack.enter_context(plugged_in(job.plugins))
            here = prepared() if prepared else job
            engine = patiently(lambda: connect(here.url))
            stack.callback(engine.dispose)
            yield from execute_pack(here.specs, engine, here.data_dir, here.how, force=here.force)

    return _outcomes(job, steps(), (KeyboardInterrupt, Exception))


def make_away(job: Job, folder: Path, cores: int, *, again: bool) -> list[RunOutcome]:
    """As `make`, in the command's folder, where there is one here.

    cores: those that are the job's. again: its first worker was killed, and may seem to be at the runs for a while.
    """
    with suppress(OSError):
        os.chdir(folder)
    until = time.monotonic() + PATIENCE * again
    try:
        while True:
            outcomes = make(job, prepared=lambda: placed(job, str(find_device(job.how.device)), cores))
            if time.monotonic() > until or all(outcome.state != "elsewhere" for outcome in outcomes):
                return outcomes
            time.sleep(PAUSE)
    except KeyboardInterrupt:
        return [RunOutcome(spec.key, "interrupted") for spec in job.specs]


def _outcomes(job: Job, steps: Steps, kept: tuple[type[BaseException], ...]) -> list[RunOutcome]:
    """What becomes of a job's runs. kept: exceptions that end them and are told in their outcomes; others pass."""
    ended: dict[int, RunOutcome] = {}
    news: list[tuple[str, ...]] = [()] * len(job.specs)
    rest: tuple[State, str] = "failed", "The run ended without a result."
    try:
        with closing(steps):
            for number, step in steps:
                key = job.specs[number].key
                if isinstance(step, UserError):
                    state: State = "diverged" if isinstance(step, Diverged) else "elsewhere"
                    ended[number] = RunOutcome(key, state, str(step), news[number])
                    continue
                news[number] += step.news
                if step.kind in ("finished", "exists"):
                    ended[number] = RunOutcome(key, "finished", news=news[number])
    except kept as error:
        rest = _ended_by(error)
    return [ended.get(number, RunOutcome(spec.key, *rest, news[number])) for number, spec in enumerate(job.specs)]


def _ended_by(error: BaseException) -> tuple[State, str]:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", ""
    if isinstance(error, Unreachable | Vanished):  # what there is of the run is kept
        return "interrupted", str(error)
    if isinstance(error, UserError):
        return "elsewhere" if isinstance(error, Occupied) else "failed", str(error)
    return "failed", f"{type(error).__name__}: {error}"
