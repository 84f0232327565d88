"""Reads a sweep from a YAML file, or from `--grid NAME=V,V`; errors name the line and column.

name: heads
method: [fedavg, fedala]
partition: [dirichlet, pathological]
beta: [0.1, 1]                # only for the partition dirichlet
seeds: 0-2
fedala.p: [1, 2, 4]           # only for the method fedala
exclude:
  - {method: fedala, partition: pathological}
change:
  - {if: {dataset: agnews}, to: {rounds: 100}}
include:
  - {method: ditto, dataset: mnist}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from pflbench.errors import UserError
from pflbench.sweep.grid import Change, RunGrid, checked, listed

PARTS = ("name", "exclude", "change", "include")  # of a file, besides options
Axes = dict[str, tuple[Any, ...]]  # option -> its values
_WHOLE = ("seeds", "group-sizes")  # their values have commas themselves
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")


@dataclass(frozen=True)
class Study:
    """name: of the sweep in the database."""

    name: str
    grid: RunGrid


def read(path: Path, name: str | None = None) -> Study:
    """Reads a YAML file. name: instead of the file's. Raises UserError if it is missing, no YAML or no sweep."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        hint = f"`sweep run` takes a YAML file; a stored sweep continues with `pflbench sweep resume {path.stem}`."
        raise UserError(f"There is no file {path}.", hint) from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is no text in UTF-8.") from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        raise UserError(f"{path}{_at(error.problem_mark)}: {error.problem or 'no YAML'}.") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise UserError(f"{path} is no YAML: {' '.join(str(error).split())[:200]}.") from None
    if root is None:
        raise UserError(f"{path} is empty.", "It needs at least: method: [fedavg, fedala]")
    study = _Reader(path).study(root)
    return replace(study, name=checked_name(name)) if name else study


def from_command_line(grids: Sequence[str], given: Mapping[str, Any], name: str | None, settings: Sequence[str] = ()) -> Study:
    """grids: as "beta=0.1,1". given: options of `run`, each with one value or several. settings: of --set.

    The default name is a hash of the grid, so that the same command finds the sweep again. Raises UserError for a faulty grid.
    """
    axes: Axes = {}
    for option, value in given.items():
        values = value if isinstance(value, (list, tuple)) else [value]
        axes[option] = tuple(checked(option, each)[1] for each in values)
    found: list[Axes] = []
    for text in grids:
        option, equals, several = (part.strip() for part in text.partition("="))
        if not equals or not several:
            raise UserError(f"{text}: expected NAME=VALUE,VALUE.", "For example --grid beta=0.1,1 --set fedala.p=1,2,4.")
        found.append(listed([text]) if "." in option else _axis(option, [several] if option in _WHOLE else several.split(",")))
    for own in (*found, listed(settings)):
        for twice in own.keys() & axes.keys():
            raise UserError(f"{twice} is given twice.", "Give it once, with all its values.")
        axes |= own
    if "method" not in axes:
        raise UserError("No method given.", "Name a file, or add -m, for each method one.")
    grid = RunGrid(axes)
    return Study(checked_name(name) if name else f"sweep-{sha256(repr(grid).encode()).hexdigest()[:8]}", grid)


def _axis(option: str, texts: Iterable[Any]) -> Axes:
    found = [checked(option, text.strip() if isinstance(text, str) else text) for text in texts]
    return {found[0][0]: tuple(dict.fromkeys(value for _, value in found))}


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path = path

    def study(self, root: yaml.Node) -> Study:
        top = dict(self._entries(root, "the file"))
        name = self.path.stem
        if "name" in top:
            node, name = top["name"], self._value(top["name"])
            with self._located(node):
                name = checked_name(str(name))
        axes = self._axes((key, node) for key, node in top.items() if key not in PARTS)
        if "method" not in axes:
            raise UserError(f"{self.path} names no method.", "Add, for example, method: [fedavg, fedala]")
        changes = [Change(self._condition(node, axes), None) for node in self._list(top.get("exclude"))]
        changes += [self._change(node, axes) for node in self._list(top.get("change"))]
        single = {key: values for key, values in axes.items() if len(values) == 1}
        also = [RunGrid({**single, **self._axes(self._entries(node, "include"))}) for node in self._list(top.get("include"))]
        return Study(name, RunGrid(axes, tuple(changes), tuple(also)))

    def _change(self, node: yaml.Node, axes: Axes) -> Change:
        parts = dict(self._entries(node, "change"))
        if set(parts) != {"if", "to"}:
            example = "For example {if: {dataset: agnews}, to: {rounds: 100}}"
            raise self._error(node, "A change has the parts if and to.", example)
        to = self._axes(self._entries(parts["to"], "to"))
        if any(len(values) > 1 for values in to.values()):
            raise self._error(parts["to"], "An option has several values in `to`.", "Give one value.")
        return Change(self._condition(parts["if"], axes), {name: values[0] for name, values in to.items()})

    def _condition(self, node: yaml.Node, axes: Axes) -> Axes:
        """Raises UserError for a condition that never holds: a misspelt value would be ignored silently."""
        when = self._axes(self._entries(node, "a condition"))
        for name, values in when.items():
            if missing := [value for value in values if value not in axes.get(name, ())]:
                raise self._error(node, f"This asks for {name} {missing[0]}, which the sweep does not have.")
        return when

    def _axes(self, entries: Iterable[tuple[str, yaml.Node]]) -> Axes:
        axes: Axes = {}
        for key, node in entries:
            value = self._value(node)
            if key == "seeds" and isinstance(value, list):
                value = ",".join(map(str, value))
            values = value if isinstance(value, list) else [value]
            if not values or None in values:
                raise self._error(node, f"{key} has no value.", f"Write {key}: and its value, or take the line out.")
            if any(isinstance(each, dict | list) for each in values):
                raise self._error(node, f"{key} has a value that is neither a number nor a word.", f"For example {key}: [1, 2]")
            with self._located(node):
                axes |= _axis(key, values)
        return axes

    def _entries(self, node: yaml.Node, what: str) -> Iterator[tuple[str, yaml.Node]]:
        """Keys and values of a mapping. Raises UserError for other nodes and repeated keys."""
        if not isinstance(node, yaml.MappingNode):
            raise self._error(node, f"Expected names and values for {what}.", "For example method: [fedavg, fedala]")
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self._error(key, "A name is expected here.")
            if key.value in seen:
                raise self._error(key, f"{key.value} is given twice.", "Give it once, with all its values.")
            seen.add(key.value)
            yield key.value, value

    def _list(self, node: yaml.Node | None) -> list[yaml.Node]:
        if node is None:
            return []
        if not isinstance(node, yaml.SequenceNode):
            raise self._error(node, "A list is expected here.", "Begin each entry with a dash.")
        return list(node.value)

    def _value(self, node: yaml.Node) -> Any:
        try:
            return yaml.SafeLoader("").construct_object(node, deep=True)
        except (yaml.YAMLError, ValueError, RecursionError):
            raise self._error(node, "This is no value.", "Give a number, a word or a list of these.") from None

    def _error(self, node: yaml.Node, message: str, hint: str = "") -> UserError:
        return UserError(f"{self.path}{_at(node.start_mark)}: {message}", hint)

    @contextmanager
    def _located(self, node: yaml.Node) -> Iterator[None]:
        try:
            yield
        except UserError as error:
            raise self._error(node, error.message, error.hint) from None


def _at(mark: Any) -> str:
    return "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"


def checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UserError(f"'{name}' cannot be the name of a sweep.", "Letters, digits, dots, dashes, at most 64.")
    return name
