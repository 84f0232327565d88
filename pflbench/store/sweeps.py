"""Sweeps in the database: a name and the runs that it stands for. How far they are is read from the runs themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, delete, insert, select, update

from pflbench.errors import UserError
from pflbench.spec import RunSpec
from pflbench.store import paths
from pflbench.store.database import again_if_there, inserted, reading, writing
from pflbench.store.locks import presence
from pflbench.store.runs import Run, attempts
from pflbench.store.schema import SweepRow, now

MISSING = "missing"  # of a run that was never begun


@dataclass(frozen=True)
class StoredSweep:
    """environment: how it was asked for: command, execution, data_dir, plugins, file."""

    id: int
    name: str
    specs: tuple[RunSpec, ...]
    environment: Mapping[str, Any]
    cancelled_at: str | None
    created_at: str


@dataclass(frozen=True)
class Standing:
    """How a sweep's runs are: each one's newest attempt, None where there is none, and what it is now."""

    runs: Mapping[str, Run | None]  # by key
    states: Mapping[str, str]

    @property
    def counts(self) -> Counter[str]:
        """State -> runs."""
        return Counter(self.states.values())


def save(engine: Engine, name: str, specs: Sequence[RunSpec], environment: Mapping[str, Any]) -> StoredSweep:
    """Stores a sweep. One of that name is replaced: its runs stay what they are. It is no longer cancelled."""
    values = {
        "name": name,
        "specs": [paths.in_spec(spec.model_dump(mode="json"), lambda path: paths.kept(path, engine.url)) for spec in specs],
        "environment": _located(environment, lambda path: paths.kept(path, engine.url)),
    }

    def put() -> None:
        with writing(engine) as connection:
            found = connection.execute(select(SweepRow.id).where(SweepRow.name == name)).scalar()
            if found is None:
                inserted(connection, insert(SweepRow).values(values))
            else:
                connection.execute(update(SweepRow).where(SweepRow.id == found).values({**values, "cancelled_at": None}))

    again_if_there(put)
    return find(engine, name)


def find(engine: Engine, name: str) -> StoredSweep:
    """Raises UserError if there is none of that name."""
    for sweep in _read(engine, SweepRow.name == name):
        return sweep
    known = ", ".join(sweep.name for sweep in listed(engine))
    raise UserError(f"There is no sweep '{name}' in this database.", f"Sweeps: {known}." if known else "It has no sweeps.")


def listed(engine: Engine) -> list[StoredSweep]:
    """All, oldest first."""
    return _read(engine)


def cancel(engine: Engine, name: str) -> StoredSweep:
    """Whoever is at it stops its runs, with their checkpoints. Raises UserError if there is none of that name."""
    _set_cancelled(engine, find(engine, name).id, now())
    return find(engine, name)


def reopen(engine: Engine, name: str) -> StoredSweep:
    """No longer cancelled. Raises UserError if there is none of that name."""
    _set_cancelled(engine, find(engine, name).id, None)
    return find(engine, name)


def remove(engine: Engine, name: str) -> None:
    """Forgets a sweep; its runs stay. Raises UserError if there is none of that name."""
    sweep = find(engine, name)
    with writing(engine) as connection:
        connection.execute(delete(SweepRow).where(SweepRow.id == sweep.id))


def cancelled(engine: Engine, sweep_id: int) -> bool:
    """Also where it was removed."""
    with reading(engine) as connection:
        row = connection.execute(select(SweepRow.cancelled_at).where(SweepRow.id == sweep_id)).one_or_none()
    return row is None or row[0] is not None


def standing(engine: Engine, specs: Sequence[RunSpec]) -> Standing:
    """How runs are. A run that counts as finished stays so when a later attempt was broken off."""
    found = attempts(engine, [spec.key for spec in specs])
    runs = {spec.key: _counting(found.get(spec.key, [])) for spec in specs}
    present = presence(engine)
    states = {key: MISSING if run is None else present(key, run.status) for key, run in runs.items()}
    return Standing(runs, states)


def _counting(found: Sequence[Run]) -> Run | None:
    finished = [run for run in found if run.status == "finished"]
    return next(reversed(finished or found), None)


def _set_cancelled(engine: Engine, sweep_id: int, at: str | None) -> None:
    with writing(engine) as connection:
        connection.execute(update(SweepRow).where(SweepRow.id == sweep_id).values(cancelled_at=at))


def _read(engine: Engine, *where: Any) -> list[StoredSweep]:
    query = select(SweepRow.__table__).where(*where).order_by(SweepRow.id)
    with reading(engine) as connection:
        rows = connection.execute(query).mappings().all()
    return [_restored(engine, row) for row in rows]


def _restored(engine: Engine, row: Mapping[Any, Any]) -> StoredSweep:
    def found(path: str) -> str:
        return paths.found(path, engine.url)

    specs = tuple(RunSpec.model_validate(paths.in_spec(spec, found)) for spec in row["specs"])
    return StoredSweep(**{**row, "specs": specs, "environment": _located(row["environment"], found)})


def _located(environment: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """With the paths changed that going on with the sweep needs."""
    plugins = [change(path) for path in environment.get("plugins", [])]
    located = {"data_dir": change(environment["data_dir"])} if "data_dir" in environment else {}
    return {**environment, **located, **({"plugins": plugins} if plugins else {})}
