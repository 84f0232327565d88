"""Arrays that runs observed, in bulk: which there are, those of many rounds at once, and what is computed from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from sqlalchemy import Engine, delete, insert, select

from pflbench.store.db import writing
from pflbench.store.read import reading
from pflbench.store.records import pack_array, unpack_array
from pflbench.store.schema import Artifact

Array = np.ndarray[Any, np.dtype[Any]]


def rounds(engine: Engine, run_ids: Collection[int], names: Collection[str]) -> dict[tuple[int, str], list[int]]:
    """(run, name) -> the rounds in which the run kept an array of this name, ascending; what was not kept is left out."""
    query = select(Artifact.run_id, Artifact.name, Artifact.round)
    query = query.where(Artifact.run_id.in_(run_ids), Artifact.name.in_(names)).order_by(Artifact.round)
    found: dict[tuple[int, str], list[int]] = defaultdict(list)
    with reading(engine) as c:
        for run, name, t in c.execute(query):
            found[run, name].append(t)
    return dict(found)


def names(engine: Engine, run_ids: Collection[int], prefix: str) -> list[str]:
    """The names with this beginning under which any of these runs kept arrays, sorted."""
    query = select(Artifact.name).where(Artifact.run_id.in_(run_ids), Artifact.name.startswith(prefix, autoescape=True))
    with reading(engine) as c:
        return list(c.scalars(query.distinct().order_by(Artifact.name)))


def arrays(engine: Engine, run_id: int, name: str, of: Sequence[int]) -> dict[int, Array]:
    """The run's arrays of this name in the given rounds, by round, ascending."""
    query = select(Artifact.round, Artifact.dtype, Artifact.shape, Artifact.data)
    query = query.where(Artifact.run_id == run_id, Artifact.name == name, Artifact.round.in_(of)).order_by(Artifact.round)
    with reading(engine) as c:
        return {t: unpack_array(data, dtype, shape) for t, dtype, shape, data in c.execute(query)}


def keep(engine: Engine, run_id: int, name: str, round: int, array: Array) -> None:
    """Stores an array that was computed from what a finished run left behind, in place of an earlier one."""
    row = {"run_id": run_id, "round": round, "name": name, "dtype": array.dtype.name, "shape": list(array.shape)}
    same = (Artifact.run_id == run_id, Artifact.name == name, Artifact.round == round)
    with writing(engine) as c:
        c.execute(delete(Artifact).where(*same))
        c.execute(insert(Artifact).values(**row, data=pack_array(array)))
