"""What pages on runs say beyond a list of runs, read for many runs at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, func, select

from pflbench.store.read import reading
from pflbench.store.schema import Artifact, Run, Series


@dataclass(frozen=True)
class Kept:
    """Arrays of one name that a run left behind: how many, of which rounds."""

    name: str
    count: int
    first: int
    last: int


@dataclass(frozen=True)
class Detail:
    """A run as it was asked for and where it was made. parameters: of one model."""

    spec: dict[str, Any]
    environment: dict[str, Any]
    parameters: int | None
    engine: str | None
    started_at: str | None
    series: tuple[str, ...]
    artifacts: tuple[Kept, ...]


def details(engine: Engine, run_ids: Collection[int]) -> dict[int, Detail]:
    """By run; runs that are not there are left out."""
    columns = (Run.id, Run.spec, Run.environment, Run.parameters, Run.engine, Run.started_at)
    named = select(Series.run_id, Series.name).where(Series.run_id.in_(run_ids)).distinct().order_by(Series.name)
    kept = select(Artifact.run_id, Artifact.name, func.count(), func.min(Artifact.round), func.max(Artifact.round))
    kept = kept.where(Artifact.run_id.in_(run_ids)).group_by(Artifact.run_id, Artifact.name).order_by(Artifact.name)
    series: dict[int, list[str]] = defaultdict(list)
    artifacts: dict[int, list[Kept]] = defaultdict(list)
    with reading(engine) as c:
        rows = c.execute(select(*columns).where(Run.id.in_(run_ids))).all()
        for run, name in c.execute(named):
            series[run].append(name)
        for run, name, count, first, last in c.execute(kept):
            artifacts[run].append(Kept(name, count, first, last))
    return {
        id: Detail(spec, environment, parameters, executor, started, tuple(series[id]), tuple(artifacts[id]))
        for id, spec, environment, parameters, executor, started in rows
    }
