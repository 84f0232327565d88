"""Arrays that runs have stored: packing, listing, reading."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Engine, delete, func, insert, select

from pflbench.errors import UserError
from pflbench.store.database import reading, writing
from pflbench.store.schema import ArtifactRow

Array = np.ndarray[Any, np.dtype[Any]]
Counts = np.ndarray[tuple[int, int], np.dtype[np.int64]]
Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
Integers = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True)
class ArrayInfo:
    """An array of a run, without its data."""

    name: str
    round: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Kept:
    """The arrays of one name of a run: their number, first and last round."""

    name: str
    count: int
    first: int
    last: int


def pack_array(array: Array) -> bytes:
    """The array's buffer (C order, little-endian), compressed. dtype and shape are stored in other columns."""
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return zlib.compress(little.tobytes(order="C"), level=1)


def unpack_array(data: bytes, dtype: str, shape: Sequence[int]) -> Array:
    """The inverse of `pack_array`, for a dtype named like "float32".

    Raises ValueError, TypeError or zlib.error for damaged data.
    """
    little = np.dtype(dtype).newbyteorder("<")
    return np.frombuffer(zlib.decompress(data), dtype=little).astype(dtype).reshape(tuple(shape))


def row(run_id: int, name: str, round: int, array: Array) -> dict[str, Any]:
    """The array as a row of the table `artifact`."""
    described = {"run_id": run_id, "round": round, "name": name, "dtype": array.dtype.name, "shape": list(array.shape)}
    return described | {"data": pack_array(array)}


def infos(engine: Engine, run_id: int) -> tuple[ArrayInfo, ...]:
    """All arrays of a run, by name and round."""
    query = select(ArtifactRow.name, ArtifactRow.round, ArtifactRow.dtype, ArtifactRow.shape)
    with reading(engine) as c:
        found = c.execute(query.where(ArtifactRow.run_id == run_id).order_by(ArtifactRow.name, ArtifactRow.round)).all()
    return tuple(ArrayInfo(name, t, dtype, tuple(shape)) for name, t, dtype, shape in found)


def kept(engine: Engine, run_ids: Collection[int]) -> dict[int, list[Kept]]:
    """The arrays of each run, by name; runs without arrays are left out."""
    columns = (ArtifactRow.run_id, ArtifactRow.name, func.count(), func.min(ArtifactRow.round), func.max(ArtifactRow.round))
    query = select(*columns).where(ArtifactRow.run_id.in_(run_ids)).group_by(ArtifactRow.run_id, ArtifactRow.name)
    found: dict[int, list[Kept]] = defaultdict(list)
    with reading(engine) as c:
        for run, name, count, first, last in c.execute(query.order_by(ArtifactRow.name)):
            found[run].append(Kept(name, count, first, last))
    return dict(found)


def names(engine: Engine, run_ids: Collection[int], prefix: str) -> list[str]:
    """The names of these runs' arrays that begin with `prefix`, sorted."""
    query = select(ArtifactRow.name).where(ArtifactRow.run_id.in_(run_ids), ArtifactRow.name.startswith(prefix, autoescape=True))
    with reading(engine) as c:
        return list(c.scalars(query.distinct().order_by(ArtifactRow.name)))


def rounds(engine: Engine, run_ids: Collection[int], names: Collection[str]) -> dict[tuple[int, str], list[int]]:
    """(run, name) -> the rounds with an array of this name, ascending; left out if there is none."""
    query = select(ArtifactRow.run_id, ArtifactRow.name, ArtifactRow.round)
    query = query.where(ArtifactRow.run_id.in_(run_ids), ArtifactRow.name.in_(names)).order_by(ArtifactRow.round)
    found: dict[tuple[int, str], list[int]] = defaultdict(list)
    with reading(engine) as c:
        for run, name, t in c.execute(query):
            found[run, name].append(t)
    return dict(found)


def read(engine: Engine, run_id: int, name: str, of: Sequence[int]) -> dict[int, Array]:
    """The run's arrays of this name in the rounds `of`, by round, ascending."""
    query = select(ArtifactRow.round, ArtifactRow.dtype, ArtifactRow.shape, ArtifactRow.data)
    query = query.where(ArtifactRow.run_id == run_id, ArtifactRow.name == name, ArtifactRow.round.in_(of))
    with reading(engine) as c:
        found = c.execute(query.order_by(ArtifactRow.round))
        return {t: unpack_array(data, dtype, shape) for t, dtype, shape, data in found}


def read_one(engine: Engine, run_id: int, name: str, round: int | None = None) -> Array:
    """The array of a run and round (default: the newest). Raises UserError, with the run's names, if there is none."""
    own = ArtifactRow.run_id == run_id
    query = select(ArtifactRow.dtype, ArtifactRow.shape, ArtifactRow.data).where(own, ArtifactRow.name == name)
    if round is not None:
        query = query.where(ArtifactRow.round == round)
    with reading(engine) as c:
        found = c.execute(query.order_by(ArtifactRow.round.desc()).limit(1)).first()
        if found is None:
            where = "" if round is None else f" of round {round}"
            present = c.scalars(select(ArtifactRow.name).where(own).distinct().order_by(ArtifactRow.name))
            raise UserError(f"Run {run_id} has no artifact '{name}'{where}.", f"It has: {', '.join(present) or 'none'}.")
    return unpack_array(found.data, found.dtype, found.shape)


def keep(engine: Engine, run_id: int, name: str, round: int, array: Array) -> None:
    """Stores an array that was computed from those of a finished run; replaces an earlier one."""
    same = (ArtifactRow.run_id == run_id, ArtifactRow.name == name, ArtifactRow.round == round)
    with writing(engine) as c:
        c.execute(delete(ArtifactRow).where(*same))
        c.execute(insert(ArtifactRow).values(**row(run_id, name, round, array)))
