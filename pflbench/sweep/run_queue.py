"""The database as a queue of runs: any number of workers take runs from it until none is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from sqlalchemy import URL, Engine

from pflbench import environment, interrupts, plain
from pflbench.errors import Occupied, Unreachable, Vanished
from pflbench.plugins import described
from pflbench.plugins.methods import plugged_in
from pflbench.run.device import find_device
from pflbench.run.execution import Execution
from pflbench.run.pack import Told, execute_pack
from pflbench.run.record import messages
from pflbench.spec import RunSpec
from pflbench.store import locks, runs, sweeps, write
from pflbench.store.database import connect
from pflbench.store.failures import patiently
from pflbench.store.runs import Run
from pflbench.store.sweeps import MISSING, SweepState

LOOK = 1.0  # seconds between two checks whether a sweep was cancelled

Steps = Generator[tuple[int, Told], None, None]
"""Reports of the runs of a pack, each with the run's number in the pack."""
Follow = Callable[[Sequence[RunSpec], Steps], Steps]


@dataclass(frozen=True)
class RunQueue:
    """Everything that a worker needs to execute runs. The state of the runs is in the database.

    url: of the database. own: key of a run -> its Execution, if not `how`. repeated: runs to execute again,
    as in `sweeps.sweep_state`. sweep: the number of the stored sweep, which may be cancelled.
    """

    specs: tuple[RunSpec, ...]
    url: URL
    data_dir: Path
    how: Execution
    plugins: tuple[Path, ...] = ()
    own: Mapping[str, Execution] = field(default_factory=dict)
    repeated: Mapping[str, int] = field(default_factory=dict)
    keep_going: bool = False
    sweep: int | None = None

    def execution(self, spec: RunSpec) -> Execution:
        return self.own.get(spec.key, self.how)

    def state(self, engine: Engine) -> SweepState:
        return sweeps.sweep_state(engine, self.specs, self.repeated)

    def ahead(self, state: SweepState) -> list[RunSpec]:
        """Unfinished runs that no process is executing."""
        return [spec for spec in self.specs if state.states[spec.key] in (MISSING, "interrupted")]

    def stopped(self, engine: Engine, state: SweepState) -> str:
        """Why no further run is started; "" if runs are."""
        if state.counts["failed"] and not self.keep_going:
            return "a run failed; --keep-going makes the others all the same"
        return "it was cancelled" if self.cancelled(engine) else ""

    def cancelled(self, engine: Engine) -> bool:
        """Whether the sweep was cancelled; False while the server does not answer."""
        with suppress(Unreachable):
            return self.sweep is not None and sweeps.cancelled(engine, self.sweep)
        return False

    def packs(self, specs: Sequence[RunSpec], engine: Engine) -> Iterator[list[RunSpec]]:
        """The runs that train together: up to `how.pack` that differ only in the seed; else one by one, in their order.

        Runs that have ended take no place in a pack, unless runs are repeated.
        """
        if self.how.pack == 1:
            yield from ([spec] for spec in specs)
            return
        over = set[str]() if self.repeated else set(patiently(lambda: self.state(engine)).keys("finished", "diverged"))
        alike: dict[Hashable, list[RunSpec]] = {}
        for spec in specs:
            kind = spec.model_copy(update={"seed": 0}).key, self.execution(spec), spec.key in self.repeated
            alike.setdefault(kind, []).append(spec)
        for group in alike.values():
            yield from ([spec] for spec in group if spec.key in over)
            ahead = [spec for spec in group if spec.key not in over]
            while ahead:
                size = -(-len(ahead) // -(-len(ahead) // self.how.pack))  # so that packs are about equally large
                yield ahead[:size]
                ahead = ahead[size:]

    def execute(self, specs: Sequence[RunSpec], engine: Engine) -> Steps:
        """Executes the runs of a pack."""
        anew = specs[0].key in self.repeated
        return execute_pack(specs, engine, self.data_dir, self.execution(specs[0]), force=anew)

    def on(self, device: str, cores: int) -> RunQueue:
        """The queue for a worker on a device, such as "cpu" or "cuda:1". cores: of the worker, for clients side by side."""

        def placed(how: Execution) -> Execution:
            alone = device == "cpu" and how.engine_on(device) == "loop"
            return replace(how, device=device, workers=how.workers or (cores if alone else None))

        return replace(self, how=placed(self.how), own={key: placed(how) for key, how in self.own.items()})


def news(run: Run | None) -> list[str]:
    """Messages for the user about a run."""
    return messages(run.environment) if run else []


def unclaimed(queue: RunQueue, engine: Engine, place: int = 0) -> Iterator[list[RunSpec]]:
    """Yields packs of runs that are unfinished and not being executed at that moment, each run once.

    A run whose worker was killed comes last: it may need more memory than there is, and would get one worker after another
    killed. place: number of the worker among those that start together, each of which starts with another pack.
    """
    given: set[str] = set()
    while True:
        state = patiently(partial(queue.state, engine))
        left = [spec for spec in queue.ahead(state) if spec.key not in given]
        if not left or queue.stopped(engine, state):
            return
        over = set(state.keys("finished", "diverged"))  # read once: those of a large sweep take a second
        queue = replace(queue, specs=tuple(spec for spec in queue.specs if spec.key not in over))
        killed = {key for key, run in state.runs.items() if run is not None and run.status == "running"}
        left.sort(key=lambda spec: spec.key in killed)
        packs = list(queue.packs(left, engine))
        specs = packs[place] if place < len(packs) else packs[0]
        place = 0
        given |= {spec.key for spec in specs}
        yield specs


def work(
    queue: RunQueue,
    engine: Engine,
    packs: Iterable[list[RunSpec]] | None = None,
    *,
    follow: Follow = lambda specs, steps: steps,
    failed: Callable[[Exception], None] = lambda error: None,
) -> list[str]:
    """Executes packs of runs, by default unclaimed ones until none is left. Returns the keys of this worker's runs.

    follow: receives the steps of a pack and passes them on. failed: receives each error, Occupied too, which is then stored
    unless it raises. Raises KeyboardInterrupt after a signal, Unreachable and Vanished: each run keeps its checkpoint.
    """
    made: list[str] = []
    for specs in unclaimed(queue, engine) if packs is None else packs:
        try:
            with closing(follow(specs, queue.execute(specs, engine))) as steps:
                made += [spec.key for spec in specs]
                _until_cancelled(queue, engine, steps)
        except (Unreachable, Vanished):
            raise
        except Exception as error:
            if interrupts.arrived():  # a library turned KeyboardInterrupt into another error
                raise KeyboardInterrupt from error
            failed(error)
            if isinstance(error, Occupied):  # another worker was quicker
                made.remove(specs[0].key)
            else:
                _store_failure(queue, engine, specs, described(error))
    return made


def work_alone(queue: RunQueue, device: str | None, cores: int, place: int = 0) -> None:
    """As `work`, in a process of its own. device None: the device that `queue.how` selects on this machine."""
    with plugged_in(queue.plugins):
        engine = patiently(lambda: connect(queue.url.render_as_string(hide_password=False)))
        try:
            queue = queue.on(device or str(find_device(queue.how.device)), cores)
            work(queue, engine, unclaimed(queue, engine, place))
        finally:
            engine.dispose()


def _until_cancelled(queue: RunQueue, engine: Engine, steps: Steps) -> None:
    """Executes the steps until the end or until the sweep is cancelled; interrupted runs keep a checkpoint."""
    looked = time.monotonic()
    for _ in steps:
        if time.monotonic() > looked + LOOK:
            looked = time.monotonic()
            if queue.cancelled(engine):
                return


def _store_failure(queue: RunQueue, engine: Engine, specs: Sequence[RunSpec], message: str) -> None:
    """Stores why runs could not start: other workers would try them again."""
    queue = replace(queue, specs=tuple(specs))
    state = patiently(lambda: queue.state(engine))
    if state.counts["failed"]:  # the others of the pack were interrupted and can be resumed
        return
    for spec in queue.ahead(state):
        with suppress(Occupied), locks.locked(engine, spec.key):
            host = queue.how.record_host
            if state.runs[spec.key] is None:
                write.create_run(engine, spec, environment.describe(host), whole=host)
            run = runs.newest(engine, spec.key)
            assert run is not None
            write.update_run(engine, run.id, status="failed", message=message if host else plain.privately(message))
