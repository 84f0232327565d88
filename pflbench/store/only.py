"""A database of which reports see some runs alone: what they collect, list and draw is restricted in one place."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import ColumnElement, Engine, select, true

from pflbench.store.schema import Partition, Run

_ONLY = "pflbench_only_runs"


def only(engine: Engine, run_ids: Collection[int]) -> Engine:
    """The same database with the same connections, in which `read.results` and its like find these runs alone."""
    return engine.execution_options(**{_ONLY: frozenset(run_ids)})


def visible(engine: Engine) -> ColumnElement[bool]:
    """Of runs: whether they are among those that the database is restricted to, if it is."""
    runs = engine.get_execution_options().get(_ONLY)
    return true() if runs is None else Run.id.in_(runs)


def visible_partition(engine: Engine) -> ColumnElement[bool]:
    """Of partitions: whether one of these runs has it."""
    if _ONLY not in engine.get_execution_options():
        return true()
    return Partition.id.in_(select(Run.partition_id).where(visible(engine)))
