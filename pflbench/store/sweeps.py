"""Sweeps in the database: a name and its runs' specifications. Their progress is read from the runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Engine, insert, select, update

from pflbench.errors import UserError
from pflbench.spec import RunSpec
from pflbench.store import paths
from pflbench.store.database import reading, retry_insert, writing
from pflbench.store.locks import presence
from pflbench.store.runs import Run, attempts, that_counts
from pflbench.store.schema import SweepRow, now
from pflbench.store.write import update_run

MISSING = "missing"  # the state of a run that was never begun


@dataclass(frozen=True)
class StoredSweep:
    """environment: command, options of execution, data_dir, plugins, file."""

    id: int
    name: str
    specs: tuple[RunSpec, ...]
    environment: Mapping[str, Any]
    cancelled_at: str | None
    created_at: str


@dataclass(frozen=True)
class SweepState:
    """The attempt of each run of a sweep that counts (None if it was never begun), and its current state."""

    runs: Mapping[str, Run | None]  # by key
    states: Mapping[str, str]

    @property
    def counts(self) -> Counter[str]:
        """The number of runs in each state."""
        return Counter(self.states.values())

    def keys(self, *states: str) -> list[str]:
        """The keys of the runs in one of these states, in the order of the sweep."""
        return [key for key, state in self.states.items() if state in states]


def save(engine: Engine, name: str, specs: Sequence[RunSpec], environment: Mapping[str, Any]) -> StoredSweep:
    """Stores a sweep. Replaces one of that name, also a cancelled one; its runs stay. Raises UserError if that is a study."""
    if "study" not in environment and any("study" in one.environment for one in listed(engine, SweepRow.name == name)):
        raise UserError(f"'{name}' is a study of `pflbench tune`.", "Take another name.")
    values = located(
        {"name": name, "specs": [spec.model_dump(mode="json") for spec in specs], "environment": environment},
        lambda path: paths.kept(path, engine.url),
    )

    def put() -> None:
        with writing(engine) as connection:
            known = update(SweepRow).where(SweepRow.name == name).values(**values, cancelled_at=None)
            if connection.execute(known).rowcount == 0:
                connection.execute(insert(SweepRow).values(values))

    retry_insert(put)
    return find(engine, name)


def find(engine: Engine, name: str) -> StoredSweep:
    """Raises UserError if there is none of that name."""
    for sweep in listed(engine, SweepRow.name == name):
        return sweep
    known = ", ".join(sweep.name for sweep in listed(engine))
    raise UserError(f"There is no sweep '{name}' in this database.", f"Sweeps: {known}." if known else "It has no sweeps.")


def listed(engine: Engine, *where: ColumnElement[bool]) -> list[StoredSweep]:
    """Sweeps, oldest first. where: conditions on the table `sweep`."""
    with reading(engine) as connection:
        rows = connection.execute(select(SweepRow.__table__).where(*where).order_by(SweepRow.id)).mappings().all()
    located_rows = [located(dict(row), lambda path: paths.found(path, engine.url)) for row in rows]
    return [StoredSweep(**{**row, "specs": tuple(map(RunSpec.model_validate, row["specs"]))}) for row in located_rows]


def set_cancelled(engine: Engine, name: str, cancelled: bool) -> StoredSweep:
    """Cancels or reopens a sweep. Workers of a cancelled one write checkpoints and stop. Raises UserError if there is none."""
    with writing(engine) as connection:
        connection.execute(update(SweepRow).where(SweepRow.name == name).values(cancelled_at=now() if cancelled else None))
    return find(engine, name)


def cancelled(engine: Engine, sweep_id: int) -> bool:
    with reading(engine) as connection:
        return connection.execute(select(SweepRow.cancelled_at).where(SweepRow.id == sweep_id)).scalar() is not None


def sweep_state(engine: Engine, specs: Sequence[RunSpec], repeated: Mapping[str, int] = {}) -> SweepState:
    """The states of runs. A finished run stays finished if a later attempt was interrupted.

    repeated: by key of runs that are repeated, the number of the last attempt that does not count.
    """
    found, present = attempts(engine, [spec.key for spec in specs]), presence(engine)
    runs: dict[str, Run | None] = {}
    for spec in specs:
        counting = [run for run in found.get(spec.key, []) if run.id > repeated.get(spec.key, 0)]
        runs[spec.key] = that_counts(counting)
    return SweepState(runs, {key: present(key, run.status if run else MISSING) for key, run in runs.items()})


def last_ended(engine: Engine, keys: Collection[str]) -> dict[str, int]:
    """The number of each run's last attempt that has ended; 0 if there is none."""
    found = attempts(engine, keys)
    return {key: max((run.id for run in found.get(key, []) if run.ended), default=0) for key in keys}


def requeue(engine: Engine, specs: Sequence[RunSpec]) -> None:
    """Queues failed runs again."""
    for run in sweep_state(engine, specs).runs.values():
        if run is not None and run.status == "failed":
            update_run(engine, run.id, status="queued")


def located(row: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """A row of the table with `change` applied to the paths of its data and plug-ins, which resuming the sweep needs."""
    environment = dict(row["environment"])
    if environment.get("plugins"):
        environment["plugins"] = [change(path) for path in environment["plugins"]]
    if "data_dir" in environment:
        environment["data_dir"] = change(environment["data_dir"])
    return {**row, "specs": [paths.in_spec(spec, change) for spec in row["specs"]], "environment": environment}
