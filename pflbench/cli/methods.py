"""`pflbench methods`: lists and shows methods, writes and tests new ones."""

from __future__ import annotations

import inspect
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pflbench.cli import options as o
from pflbench.cli.console import message, print_fields, print_json, print_records, print_table, say

app = typer.Typer(help="List the methods, show their hyperparameters, write and test new ones.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="METHOD", autocompletion=o.method_names)]


@app.command("list")
def list_(plugins: o.Plugins = [], as_json: o.Json = False) -> None:  # noqa: B006  Typer gives every call its own list.
    """List the methods: built-in ones, then those of installed packages and of --plugin files."""
    from pflbench.methods import METHODS, card
    from pflbench.plugins import methods as users

    cards = [(name, card(name), "pflbench") for name in METHODS]
    cards += [(method.name, users.card(method), method.place) for method in users.found()]
    facts = ("title", "venue", "category")
    rows = [{"name": name, **{fact: getattr(said, fact) for fact in facts}, "from": place} for name, said, place in cards]
    print_records(rows, as_json)


@app.command()
def show(
    name: Name,
    plugins: o.Plugins = [],  # noqa: B006
    as_json: o.Json = False,
) -> None:
    """Show one method: its source and its hyperparameters, for `run --set METHOD.NAME=VALUE`."""
    from pflbench import methods

    name = methods.in_any_case(name)
    cls, hypers = methods.load(name), methods.hyperparameters(name)
    facts = {
        "name": name,
        "title": cls.title,
        "description": " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split()),
        **{fact: getattr(cls, fact) for fact in ("authors", "venue", "algorithm", "category", "version")},
        **({"beside the model": cls.own_parts} if cls.own_parts else {}),
        **({"plain SGD only": cls.optimizer_refused} if cls.optimizer_refused else {}),
        **methods.record(name),
    }
    if as_json:
        print_json({**facts, "hyperparameters": [asdict(hyper) for hyper in hypers]})
        return
    print_fields(facts.items())
    if hypers:
        say()
        columns = ("hyperparameter", "type", "limits", "default", "meaning", "searched by the FedALA paper")
        rows = [(h.name, h.type, h.limits, str(h.default), h.help, ", ".join(map(str, h.search))) for h in hypers]
        filled = [i for i in range(len(columns)) if any(row[i] for row in rows)]
        print_table([columns[i] for i in filled], [[row[i] for i in filled] for row in rows])


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new method: lower case, digits and hyphens.")],
    folder: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="Folder of its files.")] = Path(),
) -> None:
    """Write a small working method and its test, for you to change."""
    from pflbench.contract import template

    method, test = template.write(name, folder)
    say(method)
    say(test)
    message(f"Next: edit both, then pflbench methods test {name} --plugin {method}")


@app.command("test")
def check(name: Name, plugins: o.Plugins = []) -> None:  # noqa: B006
    """Run the contract suite, which every method must pass, on a method. Exit code 1 if it fails."""
    from pflbench.contract import keeps_the_contract
    from pflbench.methods import in_any_case

    if not keeps_the_contract(in_any_case(name)):
        raise typer.Exit(1)
