"""A method's card: what its class says of it, read from the source, since importing a method would import torch."""

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

# Most of a file is the bodies of its functions, and most of the time goes into parsing them.
_FUNCTION = re.compile(r"^( *)def .*(?:\n(?:\1[ )].*)?)*", re.MULTILINE)


@dataclass(frozen=True)
class Card:
    """The class attributes of a `Method` that are plain values, and the defaults of its hyperparameters."""

    title: str = ""
    authors: str = ""
    venue: str = ""
    algorithm: str = ""
    category: str = ""
    presets: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    ala_decides: Mapping[str, Value] = field(default_factory=dict)
    ala_refused: str = ""
    optimizer_refused: str = ""
    hyperparameters: Mapping[str, Value] = field(default_factory=dict)

    def plus(self, ala: Card) -> Card:
        """The same with ALA plugged in, where ALA has a card of its own."""
        switched = {name: {**self.presets.get(name, {}), **of} for name, of in ala.presets.items()}
        values = {**self.hyperparameters, **ala.hyperparameters, **self.ala_decides}
        title = self.title and f"{self.title}+ALA"
        return replace(self, title=title, presets={**self.presets, **switched}, hyperparameters=values)


_FACTS = tuple(field.name for field in fields(Card) if field.name != "hyperparameters")


def of(cls: type) -> Card:
    """The card of a class that is there, without its hyperparameters."""
    return Card(**{name: getattr(cls, name) for name in _FACTS})


@cache
def read(place: str) -> Card:
    """The card of the class at "package.module:Class"; blank where there is no such class. No method is imported."""
    said: dict[str, Any] = {}
    values: dict[str, Value] = {}
    for cls in reversed(_lineage(*place.split(":"))):
        for name, value in _attributes(cls):
            if _is_hyper(value):
                values[name] = _literal(value)
            elif name in _FACTS:
                said[name] = _literal(value)
    return Card(**said, hyperparameters=values)


def _lineage(module: str, name: str) -> list[ast.ClassDef]:
    """A class and those that it inherits from, the nearest first; of other packages none."""
    if not module.startswith("pflbench."):
        return []
    classes, elsewhere = _parsed(module)
    if name not in classes:
        return _lineage(elsewhere[name], name) if name in elsewhere else []
    found = [classes[name]]
    for base in classes[name].bases:
        found += _lineage(module, ast.unparse(base))
    return list(dict.fromkeys(reversed(found)))[::-1]  # what several inherit from comes after all of them


@cache
def _parsed(module: str) -> tuple[dict[str, ast.ClassDef], dict[str, str]]:
    """A module's classes by name, and the modules from which it imports other names."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{module} is named as the place of a method, and is not there")
    text = Path(spec.origin).read_text(encoding="utf-8")
    try:
        body = ast.parse(_FUNCTION.sub(r"\1def _(): ...\n", text)).body
    except SyntaxError:  # a string with lines like those of a function
        body = ast.parse(text).body
    elsewhere = {name.name: str(node.module) for node in body if isinstance(node, ast.ImportFrom) for name in node.names}
    return {node.name: node for node in body if isinstance(node, ast.ClassDef)}, elsewhere


def _attributes(cls: ast.ClassDef) -> list[tuple[str, ast.expr]]:
    """The names that a class body gives values to."""
    single = [(s.target, s.value) for s in cls.body if isinstance(s, ast.AnnAssign) and s.value is not None]
    several = [(target, s.value) for s in cls.body if isinstance(s, ast.Assign) for target in s.targets]
    return [(ast.unparse(target), value) for target, value in [*single, *several]]


def _is_hyper(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] in ("hyper", "aggregated")


class _FirstArgument(ast.NodeTransformer):
    """Puts the first argument in the place of a call: the default of a `hyper`."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        return node.args[0] if node.args else ast.Constant("")


def _literal(value: ast.expr) -> Any:
    try:
        return ast.literal_eval(_FirstArgument().visit(value))
    except ValueError:  # made of something else: the class alone knows it
        return ""
