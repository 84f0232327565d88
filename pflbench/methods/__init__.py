"""The list of all methods, and how a name and `--set` values become a method.

A new method is one file in this folder and one line here: tables, figures and lists show the attributes of its class (`cards`).
The order is that of the rows of tables, and gives further methods their colours. `plugins.methods` finds the user's methods. A
method is imported only when it is used.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pflbench.errors import UserError, unknown, why
from pflbench.methods import cards
from pflbench.methods.cards import SUFFIX, Card
from pflbench.plugins import methods as plugins
from pflbench.spec import MethodSpec, Value

if TYPE_CHECKING:
    from pflbench.methods.base import Method

METHODS: dict[str, str] = {
    "local": "pflbench.methods.local:Local",
    "fedavg": "pflbench.methods.fedavg:FedAvg",
    "fedprox": "pflbench.methods.fedprox:FedProx",
    "fedavg-c": "pflbench.methods.finetuned:FedAvgC",
    "fedprox-c": "pflbench.methods.finetuned:FedProxC",
    "per-fedavg": "pflbench.methods.perfedavg:PerFedAvg",
    "fedrep": "pflbench.methods.fedrep:FedRep",
    "pfedme": "pflbench.methods.pfedme:PFedMe",
    "ditto": "pflbench.methods.ditto:Ditto",
    "fedamp": "pflbench.methods.fedamp:FedAMP",
    "heurfedamp": "pflbench.methods.heurfedamp:HeurFedAMP",
    "fedphp": "pflbench.methods.fedphp:FedPHP",
    "fedfomo": "pflbench.methods.fedfomo:FedFomo",
    "apple": "pflbench.methods.apple:APPLE",
    "partialfed": "pflbench.methods.partialfed:PartialFed",
    "fedala": "pflbench.methods.fedala:FedALA",
    "elastic": "pflbench.methods.elastic:Elastic",
    "feddeper": "pflbench.methods.feddeper:FedDeper",
    "fedavg-ft": "pflbench.methods.fedavgft:FedAvgFT",
    "fedper": "pflbench.methods.fedper:FedPer",
    "lg-fedavg": "pflbench.methods.lgfedavg:LGFedAvg",
    "fedbabu": "pflbench.methods.fedbabu:FedBABU",
    "fedbn": "pflbench.methods.fedbn:FedBN",
    "apfl": "pflbench.methods.apfl:APFL",
    "scaffold": "pflbench.methods.scaffold:SCAFFOLD",
    "moon": "pflbench.methods.moon:MOON",
    "feddyn": "pflbench.methods.feddyn:FedDyn",
    "fedrod": "pflbench.methods.fedrod:FedRoD",
    "fedproto": "pflbench.methods.fedproto:FedProto",
    "feddbe": "pflbench.methods.feddbe:FedDBE",
    "fedpac": "pflbench.methods.fedpac:FedPAC",
    "fedas": "pflbench.methods.fedas:FedAS",
    "gpfl": "pflbench.methods.gpfl:GPFL",
    "fedcp": "pflbench.methods.fedcp:FedCP",
}


PRESETS = ("fedala2022", "heurfedamp2021", "pfllib2025")
"""Named sets of hyperparameters, each switching `Method.presets` (methods.md 0.6, 1.9)."""


_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


@dataclass(frozen=True)
class Hyper:
    """One hyperparameter: type and limits in words, default (the FedALA paper's value), description, the paper's search range."""

    name: str
    type: str
    limits: str
    default: Value
    help: str
    search: tuple[Value, ...]


def names(with_ala: bool = False) -> list[str]:
    """All methods, built-in ones first; with_ala: then all that ALA can be plugged into, such as "fedrep+ala"."""
    others = {method.name: method for method in plugins.found()}
    plain = list(dict.fromkeys([*METHODS, *others]))
    refused = [name for name in plain if with_ala and (card(name) if name in METHODS else plugins.card(others[name])).ala_refused]
    return [*plain, *(f"{name}{SUFFIX}" for name in plain if with_ala and name not in refused)]


def in_any_case(name: str) -> str:
    """The name of the method that is meant: "FedALA" is fedala. Unknown names stay as they are."""
    known = names(with_ala=True)
    return name if name in known or name.lower() not in known else name.lower()


def card(name: str) -> Card:
    """The attributes of a built-in method, or of one with ALA ("ditto+ala"); blank for others. No method is imported."""
    base = name.removesuffix(SUFFIX)
    own = cards.read(METHODS[base]) if base in METHODS else Card()
    return own if base == name else own.plus(cards.read("pflbench.methods.ala:ALA"))


def load(name: str) -> type[Method]:
    """The method's class, for "x+ala" the class of x; an unknown name or a refused combination is a UserError."""
    base = name.removesuffix(SUFFIX)
    plugin = plugins.find(base)
    if plugin is None and base not in METHODS:
        raise unknown("method", name, names(with_ala="+" in name))
    refused = card(base).ala_refused if plugin is None else plugins.card(plugin).ala_refused
    if base != name and refused:
        fitting = (other for other in METHODS if not card(other).ala_refused)
        raise UserError(f"{name} is not possible: {refused}.", f"ALA goes with: {', '.join(fitting)}.")
    if plugin is not None:
        return plugins.load(plugin)
    module, attribute = METHODS[base].split(":")
    cls: type[Method] = getattr(import_module(module), attribute)
    return cls


def record(name: str) -> dict[str, str]:
    """Where a plug-in's code comes from, for the record of a run; empty for built-in methods, which the commit identifies."""
    plugin = plugins.find(name.removesuffix(SUFFIX))
    return plugins.record(plugin) if plugin is not None else {}


def hyperparameters(name: str) -> tuple[Hyper, ...]:
    """The method's hyperparameters in the order of its class; for "x+ala" those of x, then those of ALA."""
    decided = _decided(name)
    fields = {n: f for cls in _classes(name) for n, f in cls.__pydantic_fields__.items() if n not in decided}
    return tuple(
        Hyper(n, _in_words(f.annotation), _limits(f), f.default, f.description or "", _search(f)) for n, f in fields.items()
    )


def make(spec: MethodSpec) -> Method:
    """The method with the specification's hyperparameters; an unknown or impossible one is a UserError."""
    title, decided = load(spec.name).title, _decided(spec.name)
    given = {k: v for k, v in spec.hyperparameters.items() if k not in decided or decided[k] != v}
    valid = {h.name for h in hyperparameters(spec.name)}
    for name in given:
        if not valid:
            raise UserError(f"{title} has no hyperparameters, so '{spec.name}.{name}' cannot be set.")
        if name in decided:
            raise UserError(f"{spec.name}.{name} is {decided[name]} and cannot be set: ALA takes its place there.")
        if name not in valid:
            raise unknown(f"hyperparameter of {spec.name}", name, valid)
    method, *ala = (_valid(spec.name, cls, {**given, **decided}) for cls in _classes(spec.name))
    if ala:
        from pflbench.methods.plus import PlusALA

        return PlusALA(method, *ala)
    plain: Method = method
    return plain


def spec(name: str, overrides: Mapping[str, Value], preset: str | None = None) -> MethodSpec:
    """The complete specification: hyperparameters validated, strings converted to their types, all written out.

    preset: a named set of hyperparameters (methods.md 0.6), below the overrides.
    """
    classes = _classes(name)
    switched = {k: v for cls in classes for k, v in cls.presets.get(preset, {}).items() if k not in _decided(name)}
    method = make(MethodSpec(name=name, hyperparameters={**switched, **overrides}))
    parts = [method.base, method.ala] if len(classes) > 1 else [method]  # type: ignore[attr-defined]
    values: dict[str, Any] = {k: v for part in parts for k, v in dataclasses.asdict(part).items()}  # type: ignore[arg-type]
    version = sum(cls.version for cls in classes) - len(classes) + 1
    return MethodSpec(name=name, version=version, hyperparameters=values, test_labels=method.uses_test_labels())


def _classes(name: str) -> tuple[Any, ...]:
    """The classes of a name: the method's, and ALA's if it is plugged in."""
    cls = load(name)
    if not name.endswith(SUFFIX):
        return (cls,)
    from pflbench.methods.ala import ALA

    both = sorted(vars(cls)["__pydantic_fields__"].keys() & ALA.__pydantic_fields__)  # type: ignore[attr-defined]
    if both:
        raise UserError(
            f"{name} is not possible: the method and ALA both have a hyperparameter {both[0]}.", "Rename the method's."
        )
    return (cls, ALA)


def _decided(name: str) -> Mapping[str, Value]:
    """Hyperparameters whose values ALA fixes when it is plugged in."""
    return load(name).ala_decides if name.endswith(SUFFIX) else {}


def _valid(name: str, cls: Any, values: Mapping[str, Value]) -> Any:
    from pydantic import ValidationError

    try:
        return cls(**{k: v for k, v in values.items() if k in cls.__pydantic_fields__})
    except ValidationError as error:
        first, *more = error.errors()
        if not first["loc"]:  # of the method's own __post_init__
            reason = why([first]).removeprefix("Value error, ")
            raise UserError(f"{name}: {reason}.", f"See `pflbench methods show {name}`.") from None
        reason = why([first, *(detail for detail in more if detail["loc"][:1] == first["loc"][:1])])
        raise UserError(
            f"{name}.{first['loc'][0]} = {first['input']!r} is not possible: {reason}.",
            f"See `pflbench methods show {name}`.",
        ) from None


def _in_words(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " | ".join(str(v) for v in get_args(kind))
    if get_origin(kind) is Annotated:
        return _in_words(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return " | ".join(_in_words(part) for part in get_args(kind))
    return getattr(kind, "__name__", str(kind))


def _limits(field: Any) -> str:
    """Also those of one type of several, as of `Count | Literal["all"]`."""
    of_types = [more for kind in get_args(field.annotation) for more in getattr(kind, "__metadata__", ())]
    limits = [limit for part in (field, *of_types) for limit in part.metadata]
    return ", ".join(
        f"{sign} {getattr(limit, name)}" for limit in limits for name, sign in _SIGNS.items() if hasattr(limit, name)
    )


def _search(field: Any) -> tuple[Value, ...]:
    return tuple((field.json_schema_extra or {}).get("search", ()))
