"""A method's card: the attributes of its class, read from the source, since importing a method would import torch."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pflbench.spec import Value

SUFFIX = "+ala"

# Function bodies are left out: parsing them would take most of the time.
_FUNCTION = re.compile(r"^( *)def .*(?:\n(?:\1[ )].*)?)*", re.MULTILINE)


@dataclass(frozen=True)
class Card:
    """The class attributes of a `Method` that are plain values, and the defaults of its hyperparameters."""

    title: str = ""
    authors: str = ""
    venue: str = ""
    algorithm: str = ""
    category: str = ""
    fine_tuned: bool = False
    presets: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    ala_decides: Mapping[str, Value] = field(default_factory=dict)
    ala_refused: str = ""
    optimizer_refused: str = ""
    hyperparameters: Mapping[str, Value] = field(default_factory=dict)

    def plus(self, ala: Card) -> Card:
        """The card of the method with ALA plugged in. ala: ALA's own card."""
        switched = {name: {**self.presets.get(name, {}), **of} for name, of in ala.presets.items()}
        values = {**self.hyperparameters, **ala.hyperparameters, **self.ala_decides}
        title = self.title and f"{self.title}+ALA"
        return replace(self, title=title, presets={**self.presets, **switched}, hyperparameters=values)


_FACTS = tuple(field.name for field in fields(Card) if field.name != "hyperparameters")


def of(cls: type) -> Card:
    """The card of an imported class, without hyperparameters."""
    return Card(**{name: getattr(cls, name) for name in _FACTS})


@cache
def read(place: str) -> Card:
    """The card of the class at "package.module:Class"; blank if there is no such class. No method is imported."""
    facts: dict[str, Any] = {}
    values: dict[str, Value] = {}
    for cls in reversed(_lineage(*place.split(":"))):
        for name, value in _attributes(cls):
            if _is_hyper(value):
                values[name] = _literal(value)
            elif name in _FACTS:
                facts[name] = _literal(value)
    return Card(**facts, hyperparameters=values)


def _lineage(module: str, name: str) -> list[ast.ClassDef]:
    """A class and its base classes of pflbench, the nearest first."""
    if not module.startswith("pflbench."):
        return []
    classes, elsewhere = _parsed(module)
    if name not in classes:
        return _lineage(elsewhere[name], name) if name in elsewhere else []
    lineage = [classes[name]]
    for base in classes[name].bases:
        lineage += _lineage(module, ast.unparse(base))
    return list(dict.fromkeys(reversed(lineage)))[::-1]  # a common base class comes after all that inherit from it


@cache
def _parsed(module: str) -> tuple[dict[str, ast.ClassDef], dict[str, str]]:
    """A module's classes by name, and the modules from which it imports other names."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"there is no module {module}, which is listed as that of a method")
    text = Path(spec.origin).read_text(encoding="utf-8")
    try:
        body = ast.parse(_FUNCTION.sub(r"\1def _(): ...\n", text)).body
    except SyntaxError:  # a string contained lines that look like a function
        body = ast.parse(text).body
    elsewhere = {name.name: str(node.module) for node in body if isinstance(node, ast.ImportFrom) for name in node.names}
    return {node.name: node for node in body if isinstance(node, ast.ClassDef)}, elsewhere


def _attributes(cls: ast.ClassDef) -> list[tuple[str, ast.expr]]:
    """The names and values that are assigned in a class body."""
    single = [(s.target, s.value) for s in cls.body if isinstance(s, ast.AnnAssign) and s.value is not None]
    several = [(target, s.value) for s in cls.body if isinstance(s, ast.Assign) for target in s.targets]
    return [(ast.unparse(target), value) for target, value in [*single, *several]]


def _is_hyper(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] in ("hyper", "aggregated")


def _literal(value: ast.expr) -> Any:
    """The value, or the default of a `hyper`; "" if it is not written out."""
    default = value.args[0] if isinstance(value, ast.Call) and value.args else value
    try:
        return ast.literal_eval(default)
    except ValueError:
        return ""
