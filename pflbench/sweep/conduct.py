"""A sweep under way: jobs go to workers as places come free, and what there is already is skipped."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from sqlalchemy import Engine

from pflbench import interrupts
from pflbench.errors import Unreachable, UserError
from pflbench.spec import RunSpec
from pflbench.store import sweeps
from pflbench.store.failures import patiently
from pflbench.store.locks import UNDER_WAY
from pflbench.sweep.jobs import Job, RunOutcome, State, Workers

T = TypeVar("T")
LOOK = 0.5  # seconds between two looks at what is under way


@dataclass
class Course:
    """How a sweep stands. ahead: runs that wait, perhaps in a cluster's queue; under_way: those that are being made; ended: by
    key, those of this command.
    """

    ahead: list[RunSpec]
    skipped: dict[str, str] = field(default_factory=dict)  # key -> its state in the database
    under_way: list[RunSpec] = field(default_factory=list)
    ended: dict[str, RunOutcome] = field(default_factory=dict)
    stopped: str = ""  # why no further runs are begun

    def count(self, state: State) -> int:
        return sum(outcome.state == state for outcome in self.ended.values())


def course(engine: Engine, specs: Sequence[RunSpec], *, retry_failed: bool = False, limit: int | None = None) -> Course:
    """What is to be made of these runs: not what is finished or diverged, nor, unless asked for, what failed before."""
    stands = sweeps.standing(engine, specs)
    over = {"finished", "diverged", *(() if retry_failed else ("failed",))}
    skipped = {key: state for key, state in stands.states.items() if state in over}
    ahead = [spec for spec in specs if spec.key not in skipped]
    return Course(ahead if limit is None else ahead[:limit], skipped)


def unclaimed_jobs(engine: Engine, specs: Sequence[RunSpec], jobs: Callable[[Sequence[RunSpec]], Iterator[Job]]) -> Iterator[Job]:
    """Jobs of runs that nobody has finished or is at when a job is asked for. Each is given once.

    So any number of workers share a sweep, each with an iterator of its own. A run whose worker was killed comes last: it may
    need more memory than there is, and would take one worker after the other with it.
    """
    given: set[str] = set()
    while True:
        stands = patiently(lambda: sweeps.standing(engine, specs))
        left = [spec for spec in specs if stands.states[spec.key] in (sweeps.MISSING, "interrupted") and spec.key not in given]
        if not left:
            return
        killed = {key for key, run in stands.runs.items() if run is not None and run.status == "running"}
        job = next(jobs(sorted(left, key=lambda spec: spec.key in killed)))
        given |= {spec.key for spec in job.specs}
        yield job


def conduct(
    found: Course,
    workers: Workers,
    waiting: Iterator[Job],
    *,
    keep_going: bool = False,
    cancelled: Callable[[], bool] = lambda: False,
) -> Generator[Course, None, None]:
    """Makes what is ahead, and gives the course at every look. It changes in place.

    waiting: jobs of the runs that are ahead. A run that fails ends the sweep once what is under way is done, unless
    keep_going; one that diverges does not. KeyboardInterrupt, and `cancelled`, interrupt what is under way: its runs keep a
    checkpoint.
    """
    at_work: dict[Future[list[RunOutcome]], Job] = {}
    order = tuple(found.ahead)
    try:
        while True:
            while not found.stopped and len(at_work) < workers.places and (job := next(waiting, None)) is not None:
                _begin(found, job)
                at_work[workers.submit(job)] = job
            if not at_work:
                return
            wait(at_work, timeout=LOOK, return_when=FIRST_COMPLETED)
            _stand(found, at_work, order)
            if not found.stopped and found.count("failed") and not keep_going:
                found.stopped = "a run failed; --keep-going makes the others all the same"
            if not found.stopped and any(one.state == "interrupted" and one.message for one in found.ended.values()):
                found.stopped = "the database cannot be reached"
            if not found.stopped and _answered(cancelled, False):
                found.stopped = "it was cancelled"
                workers.stop()
            if found.stopped:
                _take_back(at_work)
            yield found
    except (KeyboardInterrupt, GeneratorExit, UserError):
        with interrupts.held():
            workers.stop()
            _take_back(at_work)
            wait(at_work)
            with suppress(UserError):
                if at_work:
                    _stand(found, at_work, order)
        raise


def _answered(ask: Callable[[], T], otherwise: T) -> T:
    """What the database says. A server that is away for a while stops nothing: workers go on without it, too."""
    try:
        return ask()
    except Unreachable:
        return otherwise


def _begin(found: Course, job: Job) -> None:
    keys = {spec.key for spec in job.specs}
    found.ahead = [spec for spec in found.ahead if spec.key not in keys]
    found.under_way += job.specs


def _stand(found: Course, at_work: dict[Future[list[RunOutcome]], Job], order: Sequence[RunSpec]) -> None:
    """Notes what has begun and what is over, which is no longer at work. Raises UserError where the workers cannot work."""
    for future in [future for future in at_work if future.done()]:
        del at_work[future]
        found.ended |= {outcome.key: outcome for outcome in future.result()}
    found.under_way = [spec for future, job in at_work.items() if future.running() for spec in job.specs]
    begun = {*found.ended, *(spec.key for spec in found.under_way)}
    found.ahead = [spec for spec in order if spec.key not in begun]


def _take_back(at_work: dict[Future[list[RunOutcome]], Job]) -> None:
    """What has not begun is not at work any more."""
    for future in list(at_work):
        if future.cancel():
            del at_work[future]


def under_way(found: Course, engine: Engine) -> dict[str, int]:
    """Rounds that the runs under way have reached, by key."""
    empty = sweeps.Standing({spec.key: None for spec in found.under_way}, {})
    stands = _answered(lambda: sweeps.standing(engine, found.under_way), empty)
    return {
        key: run.last_round or 0 if run is not None and run.status in (*UNDER_WAY, "interrupted") else 0
        for key, run in stands.runs.items()
    }
