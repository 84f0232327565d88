"""Arrays that runs have stored: packing, listing, reading."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Engine, delete, insert, select

from pflbench.errors import UserError
from pflbench.store.database import reading, writing
from pflbench.store.files import replacing
from pflbench.store.schema import ArtifactRow

Array = np.ndarray[Any, np.dtype[Any]]
Counts = np.ndarray[tuple[int, int], np.dtype[np.int64]]
Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
Integers = np.ndarray[tuple[int], np.dtype[np.int64]]


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


def nan_to_none(array: Array) -> list[Any]:
    """The array as lists of numbers, None for NaN: JSON and columns of numbers have no NaN."""
    plain = array.astype(object)
    plain[np.isnan(array)] = None
    return list(plain.tolist())


def row(run_id: int, name: str, round: int, array: Array) -> dict[str, Any]:
    """The array as a row of the table `artifact`."""
    described = {"run_id": run_id, "round": round, "name": name, "dtype": array.dtype.name, "shape": list(array.shape)}
    return described | {"data": pack_array(array)}


def listed(engine: Engine, run_id: int) -> list[dict[str, Any]]:
    """Name, round, dtype and shape of all arrays of a run, by name and round."""
    query = select(ArtifactRow.name, ArtifactRow.round, ArtifactRow.dtype, ArtifactRow.shape)
    with reading(engine) as c:
        found = c.execute(query.where(ArtifactRow.run_id == run_id).order_by(ArtifactRow.name, ArtifactRow.round))
        return [dict(row) for row in found.mappings()]


def rounds(engine: Engine, run_ids: Collection[int], names: Collection[str] | None = None) -> dict[tuple[int, str], list[int]]:
    """(run, name) -> the rounds with an array of this name, ascending; left out if there is none. names: by default all."""
    query = select(ArtifactRow.run_id, ArtifactRow.name, ArtifactRow.round).where(ArtifactRow.run_id.in_(run_ids))
    if names is not None:
        query = query.where(ArtifactRow.name.in_(names))
    found: dict[tuple[int, str], list[int]] = defaultdict(list)
    with reading(engine) as c:
        for run, name, t in c.execute(query.order_by(ArtifactRow.round)):
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
    stored = rounds(engine, [run_id])
    kept = stored.get((run_id, name), [])
    wanted = [t for t in kept if round in (None, t)]
    if not wanted and kept:
        raise UserError(
            f"Run {run_id} has no '{name}' of round {round}.", f"It has {len(kept)}, of round {kept[0]} to {kept[-1]}."
        )
    if not wanted:
        names = sorted(name for _, name in stored)
        raise UserError(f"Run {run_id} has no artifact '{name}'.", f"It has: {', '.join(names) or 'none'}.")
    return read(engine, run_id, name, wanted[-1:])[wanted[-1]]


def keep(engine: Engine, run_id: int, name: str, round: int, array: Array) -> None:
    """Stores an array that was computed from those of a finished run; replaces an earlier one."""
    same = (ArtifactRow.run_id == run_id, ArtifactRow.name == name, ArtifactRow.round == round)
    with writing(engine) as c:
        c.execute(delete(ArtifactRow).where(*same))
        c.execute(insert(ArtifactRow).values(**row(run_id, name, round, array)))


def write_npy(path: Path, array: Array) -> None:
    """Writes an .npy file under exactly this name. Raises UserError if it cannot be written."""
    with replacing(path) as out:
        np.save(out, array)
