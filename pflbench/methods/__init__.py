"""The table of contents of all methods, and the way from a name and `--set` values to a method.

A new method is one file in this folder and one line here. No method is imported before it is asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from pflbench.errors import UserError, unknown
from pflbench.spec import MethodSpec, Value

if TYPE_CHECKING:
    from pflbench.methods.base import Method

METHODS: dict[str, str] = {
    "local": "pflbench.methods.local:Local",
    "fedavg": "pflbench.methods.fedavg:FedAvg",
    "fedprox": "pflbench.methods.fedprox:FedProx",
    "ditto": "pflbench.methods.ditto:Ditto",
    "fedala": "pflbench.methods.fedala:FedALA",
}


@dataclass(frozen=True)
class Hyper:
    """One hyperparameter: its type in words, its default (the FedALA paper's value), what it is, the paper's search range."""

    name: str
    type: str
    default: Value
    help: str
    search: tuple[Value, ...]


def load(name: str) -> type[Method]:
    """The method's class; an unknown name is a UserError that lists the valid ones."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    module, attribute = METHODS[name].split(":")
    cls: type[Method] = getattr(import_module(module), attribute)
    return cls


def hyperparameters(name: str) -> tuple[Hyper, ...]:
    """The method's hyperparameters in the order of its definition."""
    cls = load(name)
    fields = cls.__pydantic_fields__  # type: ignore[attr-defined]
    return tuple(Hyper(n, _in_words(f.annotation), f.default, f.description or "", _search(f)) for n, f in fields.items())


def make(spec: MethodSpec) -> Method:
    """The method with the specification's hyperparameters; an unknown or impossible one is a UserError."""
    from pydantic import ValidationError

    cls = load(spec.name)
    valid = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for name in spec.hyperparameters:
        if name not in valid:
            if not valid:
                raise UserError(f"{cls.title} has no hyperparameters, so '{spec.name}.{name}' cannot be set.")
            raise unknown(f"hyperparameter of {spec.name}", name, valid)
    try:
        return cls(**spec.hyperparameters)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise UserError(
            f"{spec.name}.{name} = {first['input']!r} is not possible: {first['msg']}.",
            f"See `pflbench methods show {spec.name}`.",
        ) from None


def spec(name: str, overrides: Mapping[str, Value]) -> MethodSpec:
    """The complete specification: all hyperparameters written out and validated, strings converted to their types."""
    method = make(MethodSpec(name=name, hyperparameters=dict(overrides)))
    values: dict[str, Any] = dataclasses.asdict(method)  # type: ignore[call-overload]
    return MethodSpec(name=name, version=method.version, hyperparameters=values)


def _in_words(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " | ".join(str(v) for v in get_args(kind))
    return getattr(kind, "__name__", str(kind))


def _search(field: Any) -> tuple[Value, ...]:
    extra = field.json_schema_extra or {}
    return tuple(extra.get("search", ()))
