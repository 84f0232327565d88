"""`pflbench methods`: which methods there are, and their hyperparameters."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from pflbench.cli import options as o
from pflbench.cli.console import print_fields, print_json, print_table

app = typer.Typer(help="List the methods and show their hyperparameters.", no_args_is_help=True)

_FACTS = ("title", "venue", "category")


@app.command("list")
def list_(as_json: o.Json = False) -> None:
    """List the methods."""
    from pflbench.methods import METHODS

    rows = [{"name": name, **{fact: _facts(name).get(fact, "") for fact in _FACTS}} for name in METHODS]
    if as_json:
        print_json(rows)
    else:
        print_table(("name", *_FACTS), [(row["name"], *(row[fact] for fact in _FACTS)) for row in rows])


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="METHOD", autocompletion=o.completion(o.method_names))],
    as_json: o.Json = False,
) -> None:
    """Show one method: its source and its hyperparameters, for `run --set METHOD.NAME=VALUE`."""
    from pflbench import methods

    cls, hypers = methods.load(name), methods.hyperparameters(name)
    facts = {
        "name": name,
        "title": cls.title,
        "description": " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split()),
        "authors": cls.authors,
        "venue": cls.venue,
        "algorithm": cls.algorithm,
        "category": cls.category,
        "version": cls.version,
    }
    if as_json:
        print_json({**facts, "hyperparameters": [asdict(hyper) for hyper in hypers]})
        return
    print_fields(facts.items())
    if hypers:
        print()
        rows = [(h.name, h.type, str(h.default), h.help, ", ".join(map(str, h.search))) for h in hypers]
        print_table(("hyperparameter", "type", "default", "meaning", "searched by the FedALA paper"), rows)


def _facts(name: str) -> dict[str, str]:
    """A method's class attributes, its own and inherited ones, read from the source: importing it would import torch."""
    from pflbench.methods import METHODS

    places = {place.split(":")[1]: place.split(":")[0] for place in METHODS.values()}
    return _attributes(METHODS[name].split(":")[1], places)


def _attributes(name: str, places: Mapping[str, str]) -> dict[str, str]:
    if name not in places:
        return {}
    found = find_spec(places[name])
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"the table of contents names {places[name]}, which is not there")
    tree = ast.parse(Path(found.origin).read_text(encoding="utf-8"))
    definition = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    facts: dict[str, str] = {}
    for base in definition.bases:
        facts |= _attributes(ast.unparse(base), places)
    for statement in definition.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            facts |= {ast.unparse(target): str(statement.value.value) for target in statement.targets}
    return facts
