"""Measurements of `pflbench bench` in the database: each one is a row, with the seconds of every single round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Engine, insert, select

from pflbench.errors import UserError
from pflbench.store.database import inserted, reading, writing
from pflbench.store.schema import MeasurementRow

_NAME_LENGTH = 64


@dataclass(frozen=True)
class Arm:
    """One method on one executor."""

    method: str
    engine: str
    spec: Mapping[str, Any]  # the RunSpec
    seconds: Mapping[str, Sequence[float]]  # phase -> of each round
    floor: Mapping[str, Mapping[str, Any]]  # phase -> flops, bytes, seconds, bound
    peak_memory: int  # bytes: taken of the GPU, or the process's resident set, while this arm's rounds ran

    def rounds(self) -> list[float]:
        """Seconds of each round, all its phases together."""
        return [sum(phases) for phases in zip(*self.seconds.values(), strict=True)]


@dataclass(frozen=True)
class Measurement:
    """Arms that were measured together, round by round in turn."""

    device: str
    setting: Mapping[str, Any]  # what decides the work of a round, but for the method
    ceilings: Mapping[str, float | None]  # flops, tf32 (FLOP/s), bandwidth (bytes/s)
    arms: tuple[Arm, ...]
    environment: Mapping[str, Any]
    name: str | None = None
    id: int | None = None  # None: not stored yet
    created_at: str = ""


def check_name(name: str | None) -> None:
    """Raises UserError for a name that could not be told from an id, or does not fit."""
    if name is not None and (name.isdecimal() or not 0 < len(name) <= _NAME_LENGTH):
        raise UserError(f"--name '{name}' is not possible.", f"It has 1 to {_NAME_LENGTH} characters and is no number.")


def save(engine: Engine, measurement: Measurement) -> int:
    """Stores a measurement; returns its id. Raises UserError for an impossible name."""
    check_name(measurement.name)
    values = {name: value for name, value in asdict(measurement).items() if name not in ("id", "created_at")}
    with writing(engine) as connection:
        return inserted(connection, insert(MeasurementRow).values(values))


def find(engine: Engine, which: str) -> Measurement:
    """The measurement of an id, or the newest of a name. Raises UserError if there is none."""
    wanted = MeasurementRow.id == int(which) if which.isdecimal() else MeasurementRow.name == which
    found = _read(engine, wanted, limit=1)
    if not found:
        raise UserError(f"There is no measurement {which}.", "`pflbench bench list` shows all of them.")
    return found[0]


def newest(engine: Engine, limit: int) -> list[Measurement]:
    """At most `limit`, newest first."""
    return _read(engine, None, limit)


def _read(engine: Engine, wanted: Any, limit: int) -> list[Measurement]:
    query = select(MeasurementRow.__table__).order_by(MeasurementRow.id.desc()).limit(limit)
    if wanted is not None:
        query = query.where(wanted)
    with reading(engine) as connection:
        rows = connection.execute(query).mappings().all()
    return [Measurement(**{**row, "arms": tuple(Arm(**arm) for arm in row["arms"])}) for row in rows]
