"""A grid of options of `run`, each with one value or several, and the specifications of its runs.

Options that do not apply to a point are ignored, as beta without a Dirichlet partition.
Points with the same specification are one run.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from pflbench import methods
from pflbench.errors import UserError, unknown, why
from pflbench.methods.cards import SUFFIX
from pflbench.run.options import RunOptions
from pflbench.run.plan import SCHEMES, Parsed, method_name, plan, setting
from pflbench.spec import DEPENDS_ON, RunSpec, TrainSpec

Point = Mapping[str, Any]
"""A value for each option, by its name without leading dashes, or as "fedala.p" for a hyperparameter."""

Order = Literal["seed", "setting", "dataset"]
MOST = 50_000  # combinations, or runs, which are planned in half a minute
_RENAMED = {"method": "methods", "dataset": "datasets"}
_LEFT_OUT = {"data_dir", "settings", "seed", *_RENAMED.values()}
# These options decide which others apply.
_FIRST = ("method", "dataset", "partition", "ala", *dict.fromkeys(owner.replace("_", "-") for owner, _ in DEPENDS_ON.values()))
_PARTITION_OPTIONS = {option for options in SCHEMES.values() for option in options}


@dataclass(frozen=True)
class Change:
    """Sets the options `to` where all of `when` holds; None excludes the point. when: option -> values, any of which fits."""

    when: Mapping[str, tuple[Any, ...]]
    to: Point | None


@dataclass(frozen=True)
class RunGrid:
    """axes: option -> its values; all combinations are run. also: further grids, to which changes do not apply."""

    axes: Mapping[str, tuple[Any, ...]]
    changes: tuple[Change, ...] = ()
    also: tuple[RunGrid, ...] = ()

    def points(self) -> Iterator[Point]:
        """All points in the order of the axes, the last one fastest.

        Raises UserError for an axis that applies to no point, and for too many combinations, excluded ones included.
        """
        for count, point in enumerate(self._combinations()):
            if count >= MOST:
                raise _too_many()
            if point is not None:
                yield point

    def _combinations(self, inherited: Iterable[str] = ()) -> Iterator[Point | None]:
        """The points in their order, None for an excluded one. inherited: axes that need not apply to any."""
        first = {name: self.axes[name] for name in _FIRST if name in self.axes}
        decided = [dict(zip(first, values, strict=True)) for values in _product(first)]
        for name in self.axes:
            if name not in (*first, *inherited) and not any(self._applies(name, point) for point in decided):
                raise _applies_nowhere(name)
        for begun in decided:
            own = {name: values for name, values in self.axes.items() if name not in first and self._applies(name, begun)}
            for rest in _product(own):
                yield self._changed({**begun, **dict(zip(own, rest, strict=True))})
        for one in self.also:
            yield from one._combinations(self.axes)

    def values(self, name: str) -> list[Any]:
        """All values of an option, in axes, changes and further grids."""
        changed = [change.to[name] for change in self.changes if change.to and name in change.to]
        return [*self.axes.get(name, ()), *changed, *(value for one in self.also for value in one.values(name))]

    def _applies(self, name: str, point: Point) -> bool:
        """Whether an option applies to a point, which has at least the options of _FIRST."""
        owner, dot, _ = name.partition(".")
        if dot:
            ala = point.get("ala", False)
            named = {method_name(method, ala) for method in (*self.axes["method"], point["method"])}
            return (owner if owner in named else owner + SUFFIX) == method_name(point["method"], ala)
        field = options()[name]
        if field in DEPENDS_ON:
            owner, choices = DEPENDS_ON[field]
            return point.get(owner.replace("_", "-"), TrainSpec.model_fields[owner].default) in choices
        scheme = (point.get("partition") or "dirichlet").partition(":")[0]
        return field not in _PARTITION_OPTIONS or scheme not in SCHEMES or field in SCHEMES[scheme]

    def _changed(self, point: Point) -> Point | None:
        for change in self.changes:
            if all(name in point and point[name] in values for name, values in change.when.items()):
                if change.to is None:
                    return None
                point = {**point, **change.to}
        return {name: value for name, value in point.items() if name in _FIRST or self._applies(name, point)}


def specifications(grid: RunGrid, data_dir: Path, order: Order = "seed", base: RunOptions = RunOptions()) -> list[RunSpec]:
    """All runs of a grid without repetition. base: the other options.

    order: "seed" (all runs of a seed before the next seed), "setting" (all seeds of a setting together) or "dataset" (all runs
    of a dataset before the next, by seed). Raises UserError for what `run` would refuse, with the
    values of the axes at that point.
    """
    parsed: Parsed = {}
    found: dict[str, RunSpec] = {}
    for point in grid.points():
        try:
            for spec in plan(at_point(point, replace(base, data_dir=data_dir)), parsed):
                found.setdefault(spec.key, spec)
            if len(found) > MOST:
                raise _too_many()
        except UserError as error:
            # Errors about a method or a hyperparameter name it already.
            chosen = {name: value for name, value in point.items() if name != "method" and grid.axes.get(name) != (value,)}
            named = [f"{name} {value}" for name, value in chosen.items() if f"{name} = " not in error.message]
            at = f" (at {', '.join(named)})" if named else ""
            raise UserError(f"{error.message}{at}", error.hint) from None
    if not found:
        raise UserError("The sweep has no run: everything is excluded.", "Take an exclusion out, or add a value.")
    specs = list(found.values())
    if order == "setting":
        return specs
    seeds = list(dict.fromkeys(spec.seed for spec in specs))
    datasets = list(dict.fromkeys(spec.data for spec in specs)) if order == "dataset" else []
    return sorted(specs, key=lambda spec: (datasets.index(spec.data) if datasets else 0, seeds.index(spec.seed)))


def of_run(wanted: RunOptions) -> list[RunSpec]:
    """The runs of `pflbench run`, in the order of `plan`; each --set may have several values (`listed`)."""
    grid = RunGrid({"method": tuple(map(methods.in_any_case, wanted.methods)), "ala": (wanted.ala,), **listed(wanted.settings)})
    return specifications(grid, wanted.data_dir, "dataset", wanted)


def listed(settings: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The values of --set: "fedala.p=1,2,4" is a list. A hyperparameter of free text has one value, which may contain commas.

    Raises UserError for other forms, unknown methods and repeated names.
    """
    found: dict[str, tuple[str, ...]] = {}
    for text in settings:
        method, parameter, value = setting(text)
        name = f"{method}.{parameter}"
        if name in found:
            raise UserError(f"--set gives {name} twice.", f"Give it once, with all its values: --set {name}=VALUE,VALUE.")
        free = any(hyper.name == parameter and "str" in hyper.type.split(" | ") for hyper in methods.hyperparameters(method))
        found[name] = (value,) if free else tuple(dict.fromkeys(part.strip() for part in value.split(",")))
    return found


@cache
def options() -> dict[str, str]:
    """The options of a grid: name on the command line -> field of `run.options.RunOptions`."""
    names = {field.name.replace("_", "-"): field.name for field in fields(RunOptions) if field.name not in _LEFT_OUT}
    return {**_RENAMED, **names}


def checked(name: str, value: Any) -> tuple[str, Any]:
    """The option's name with dashes, and the value in its type. Raises UserError for an unknown option or a wrong value."""
    if "." in name:
        return name, value
    name = name.replace("_", "-")
    if name not in options():
        raise unknown("option of a sweep", name, (*options(), "METHOD.NAME"))
    if name == "seeds" and isinstance(value, int):
        value = str(value)
    value = str(value) if isinstance(value, bool) else value  # Pydantic would take True as the number 1
    try:
        return name, _type(name).validate_python(value)
    except ValidationError as error:
        raise UserError(f"{name}: {value!r:.100} is not possible: {why(error.errors())}.") from None


@cache
def _type(name: str) -> TypeAdapter[Any]:
    if name in _RENAMED:
        return TypeAdapter(str)
    kind = typing.get_type_hints(RunOptions)[options()[name]]
    return TypeAdapter(next((each for each in typing.get_args(kind) if each is not type(None)), kind))


def at_point(point: Point, base: RunOptions) -> RunOptions:
    """The options of one point. base: all others; of its hyperparameters only those of the point stay."""
    settings = tuple(f"{name}={value}" for name, value in point.items() if "." in name)
    plain: dict[str, Any] = {
        options()[name]: (value,) if name in _RENAMED else value for name, value in point.items() if "." not in name
    }
    return replace(base, settings=settings, **plain)


def _product(axes: Mapping[str, tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """All combinations. Raises UserError before the first if there are too many."""
    if math.prod(map(len, axes.values())) > MOST:
        raise _too_many()
    return product(*axes.values())


def _too_many() -> UserError:
    return UserError(f"The sweep has more than {MOST:,} combinations.", "Take values out, or make several sweeps of it.")


def _applies_nowhere(name: str) -> UserError:
    method, dot, _ = name.partition(".")
    if dot:
        methods.load(method)
        return UserError(f"{name}: {method} is not among the methods that are run.", f"Add it to them, or drop {name}.")
    if options()[name] in DEPENDS_ON:
        owner, choices = DEPENDS_ON[options()[name]]
    else:
        owner, choices = "partition", tuple(scheme for scheme, own in SCHEMES.items() if options()[name] in own)
    needed = f"{owner.replace('_', '-')} {' or '.join(choices)}"
    return UserError(f"{name} goes with {needed}, which the sweep does not have.", f"Drop {name}.")
