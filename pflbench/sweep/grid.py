"""A grid: options of `run`, each with one value or several, and the specifications that it stands for.

An option that has no meaning at a point is left out there, as beta without a Dirichlet partition.
Points that come to the same specification are one run.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from pflbench.errors import UserError, unknown, why
from pflbench.methods.cards import SUFFIX
from pflbench.run.plan import SCHEMES, Wish, plan
from pflbench.spec import DataSpec, RunSpec

Point = Mapping[str, Any]
"""One value for each option, by its name on the command line without dashes before it; "fedala.p" for a hyperparameter."""

Order = Literal["seed", "setting"]
ORDERS: tuple[Order, ...] = typing.get_args(Order)
_RENAMED = {"method": "methods", "dataset": "datasets"}
_LEFT_OUT = {"data_dir", "settings", "seed", *_RENAMED.values()}
_FIRST = ("method", "dataset", "partition", "ala")  # they decide what else has a meaning
_PARTITION_OPTIONS = {option for options in SCHEMES.values() for option in options}


@dataclass(frozen=True)
class Change:
    """Where all of `when` holds, `to` holds as well; None: there is no such run. A list in `when` means any of its values."""

    when: Mapping[str, tuple[Any, ...]]
    to: Point | None

    def concerns(self, point: Point) -> bool:
        return all(name in point and point[name] in values for name, values in self.when.items())


@dataclass(frozen=True)
class RunGrid:
    """axes: option -> its values, of which all combinations are meant. also: further grids, which changes leave as they are."""

    axes: Mapping[str, tuple[Any, ...]]
    changes: tuple[Change, ...] = ()
    also: tuple[RunGrid, ...] = ()

    def points(self) -> Iterator[Point]:
        """All points in the order of the axes, the last one fastest."""
        schemes = {_scheme(value) for value in self.axes.get("partition", (None,))}
        for name in self.axes:
            _require_owner(name, set(self.axes.get("method", ())), schemes)
        for point in self._combined():
            changed = self._changed(point)
            if changed is not None:
                yield changed
        for one in self.also:
            yield from one.points()

    def _combined(self) -> Iterator[Point]:
        first = {name: self.axes[name] for name in _FIRST if name in self.axes}
        for decided in product(*first.values()):
            point = dict(zip(first, decided, strict=True))
            own = {name: values for name, values in self.axes.items() if name not in first and _means_something(name, point)}
            for rest in product(*own.values()):
                yield {**point, **dict(zip(own, rest, strict=True))}

    def _changed(self, point: Point) -> Point | None:
        for change in self.changes:
            if change.concerns(point):
                if change.to is None:
                    return None
                point = {**point, **change.to}
        return point


def specifications(grid: RunGrid, data_dir: Path, order: str = "seed") -> list[RunSpec]:
    """All runs of a grid, each once. order: one seed of everything before the next, or all seeds of a setting together.

    Raises UserError for what `run` would refuse, with the point at which it does; and for another order.
    """
    if order not in ORDERS:
        raise unknown("order", order, ORDERS)
    parsed: dict[str, DataSpec] = {}
    found: dict[str, RunSpec] = {}
    for point in grid.points():
        try:
            for spec in plan(_wish(point, data_dir), parsed):
                found.setdefault(spec.key, spec)
        except UserError as error:
            at = ", ".join(f"{name} {value}" for name, value in point.items())
            raise UserError(f"{error.message} (at {at})", error.hint) from None
    if not found:
        raise UserError("The sweep has no run: everything is excluded.", "Take an exclusion out, or add a value.")
    if order == "setting":
        return list(found.values())
    seeds = list(dict.fromkeys(spec.seed for spec in found.values()))
    return sorted(found.values(), key=lambda spec: seeds.index(spec.seed))  # which leaves the order of equals


@cache
def options() -> dict[str, str]:
    """The options of a grid: name on the command line -> field of `run.plan.Wish`."""
    names = {field.name.replace("_", "-"): field.name for field in fields(Wish) if field.name not in _LEFT_OUT}
    return {**_RENAMED, **names}


def checked(name: str, value: Any) -> tuple[str, Any]:
    """The option's name with dashes, and the value in its type. Raises UserError for what is neither option nor value."""
    if "." in name:
        if not isinstance(value, (str, int, float, bool)):
            raise UserError(f"{name}: {value!r} is no value of a hyperparameter.", "Give a number, a word or a list of these.")
        return name, value
    name = name.replace("_", "-")
    if name not in options():
        raise unknown("option of a sweep", name, (*options(), "METHOD.NAME"))
    if name == "seeds" and isinstance(value, int):
        value = str(value)
    try:
        return name, _type(name).validate_python(value)
    except ValidationError as error:
        raise UserError(f"{name}: {value!r} is not possible: {why(error.errors())}.") from None


@cache
def _type(name: str) -> TypeAdapter[Any]:
    if name in _RENAMED:
        return TypeAdapter(str)
    kind = typing.get_type_hints(Wish)[options()[name]]
    return TypeAdapter(next((each for each in typing.get_args(kind) if each is not type(None)), kind))


def _wish(point: Point, data_dir: Path) -> Wish:
    settings = tuple(f"{name}={value}" for name, value in point.items() if "." in name)
    plain = {options()[name]: value for name, value in point.items() if "." not in name and name not in _RENAMED}
    datasets = (point["dataset"],) if "dataset" in point else ()
    return Wish((point["method"],) if "method" in point else (), datasets, data_dir, settings=settings, **plain)


def _scheme(partition: str | None) -> str:
    return (partition or "dirichlet").partition(":")[0]


def _means_something(name: str, point: Point) -> bool:
    method, dot, _ = name.partition(".")
    if dot:
        return _belongs(method, point.get("method", ""))
    field = options()[name]
    scheme = _scheme(point.get("partition"))
    return field not in _PARTITION_OPTIONS or scheme not in SCHEMES or field in SCHEMES[scheme]


def _belongs(named: str, method: str) -> bool:
    return named == method or named.removesuffix(SUFFIX) == method.removesuffix(SUFFIX)


def _require_owner(name: str, methods: Iterable[str], schemes: Iterable[str]) -> None:
    """Raises UserError for an option that has no meaning at any point."""
    method, dot, _ = name.partition(".")
    if dot:
        if not any(_belongs(method, each) for each in methods):
            raise UserError(f"{name}: {method} is not among the methods of the sweep.", f"Add it to `method`, or drop {name}.")
        return
    field = options()[name]
    if field in _PARTITION_OPTIONS and not any(field in SCHEMES.get(scheme, {field: field}) for scheme in schemes):
        owners = " and ".join(scheme for scheme, own in SCHEMES.items() if field in own)
        raise UserError(f"{name} belongs to the partition {owners}, which the sweep does not have.", f"Drop {name}.")
