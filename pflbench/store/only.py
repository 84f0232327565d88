"""A database of which reports see some runs alone: what they collect, list and draw is restricted in one place.

Runs of `reproduce --scale smoke` show that everything works, and nothing about methods: reports see them where they are named, or
asked for.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import ColumnElement, Engine, func, select, true

from pflbench.store.database import reading
from pflbench.store.schema import PartitionRow, RunRow

_ONLY, _SMOKE = "pflbench_only_runs", "pflbench_smoke"
SMOKE = "smoke"


def only(engine: Engine, run_ids: Collection[int]) -> Engine:
    """The same database with the same connections, in which `read.results` and its like find these runs alone."""
    return engine.execution_options(**{_ONLY: frozenset(run_ids)})


def visible(engine: Engine) -> ColumnElement[bool]:
    """Of runs: whether they are among those that the database is restricted to, if it is; else whether they are no smoke runs."""
    options = engine.get_execution_options()
    if (runs := options.get(_ONLY)) is not None:
        return RunRow.id.in_(runs)
    return true() if _SMOKE in options else ~is_smoke()


def with_smoke(engine: Engine) -> Engine:
    """The same database, in which reports see smoke runs as well."""
    return engine.execution_options(**{_SMOKE: True})


def hides_smoke(engine: Engine) -> bool:
    """Whether smoke runs are not seen."""
    return not {_ONLY, _SMOKE} & set(engine.get_execution_options())


def hidden_smoke(engine: Engine) -> int:
    """How many runs of `reproduce --scale smoke` are not seen."""
    if not hides_smoke(engine):
        return 0
    with reading(engine) as c:
        return int(c.scalar(select(func.count()).select_from(RunRow).where(is_smoke())) or 0)


def is_smoke() -> ColumnElement[bool]:
    """Of runs: whether they were made by `reproduce --scale smoke`."""
    return func.coalesce(RunRow.environment["scale"].as_string(), "") == SMOKE


def visible_partition(engine: Engine) -> ColumnElement[bool]:
    """Of partitions: whether one of these runs has it."""
    if _ONLY not in engine.get_execution_options():
        return true()
    return PartitionRow.id.in_(select(RunRow.partition_id).where(visible(engine)))
