"""One place of a sweep's work: some runs that are made together, by whichever worker, and what became of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from sqlalchemy import Engine

from pflbench.errors import Diverged, Occupied, UserError
from pflbench.methods.outside import plugged_in
from pflbench.run.execution import Execution
from pflbench.run.pack import execute_pack, packs
from pflbench.spec import RunSpec
from pflbench.store.database import connect

State = Literal["finished", "diverged", "failed", "interrupted", "elsewhere"]


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
    """elsewhere: another process is at the run. message: why it did not finish."""

    key: str
    state: State
    message: str = ""


class Workers(Protocol):
    """Who makes jobs: processes on this machine, or on many."""

    name: str
    places: int  # jobs at a time

    def submit(self, job: Job) -> Future[list[RunOutcome]]:
        """Begins a job as soon as there is a place. An outcome for each of its runs, whatever happens."""

    def stop(self) -> None:
        """Interrupts what is under way: its runs keep a checkpoint, and their futures end."""

    def close(self) -> None:
        """Waits for what is under way, and gives back what the workers hold."""


def jobs_of(
    specs: Sequence[RunSpec], store: Engine, data_dir: Path, how: Execution, plugins: tuple[Path, ...] = ()
) -> Iterator[Job]:
    """Jobs of these runs, packed as `how` says. Memory is looked at when one is asked for."""
    url = store.url.render_as_string(hide_password=False)
    for together in packs(specs, store, data_dir, how):
        yield Job(tuple(together), url, data_dir, how, plugins)


def make(job: Job) -> list[RunOutcome]:
    """Makes a job's runs in this process. KeyboardInterrupt ends all of them as `interrupted`."""
    reached: dict[int, RunOutcome] = {}
    try:
        with ExitStack() as stack:
            stack.enter_context(plugged_in(job.plugins))
            engine = connect(job.url)
            stack.callback(engine.dispose)
            steps = execute_pack(job.specs, engine, job.data_dir, job.how, force=job.force)
            with closing(steps):
                for number, step in steps:
                    key = job.specs[number].key
                    if isinstance(step, Diverged):
                        reached[number] = RunOutcome(key, "diverged", str(step))
                    elif step.kind in ("finished", "exists"):
                        reached[number] = RunOutcome(key, "finished")
    except KeyboardInterrupt:
        return _rest(job.specs, reached, "interrupted", "")
    except Occupied as error:
        return _rest(job.specs, reached, "elsewhere", error.message)
    except UserError as error:
        return _rest(job.specs, reached, "failed", str(error))
    except Exception as error:
        return _rest(job.specs, reached, "failed", f"{type(error).__name__}: {error}")
    return _rest(job.specs, reached, "failed", "The run ended without a result.")


def _rest(specs: Sequence[RunSpec], reached: dict[int, RunOutcome], state: State, message: str) -> list[RunOutcome]:
    """What was reached, and of all others the same."""
    return [reached.get(number, RunOutcome(spec.key, state, message)) for number, spec in enumerate(specs)]
