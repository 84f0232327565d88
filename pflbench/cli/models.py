"""`pflbench models`: lists and shows models, and tests your own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from pflbench.cli import options as o
from pflbench.cli.console import print_fields, print_json, print_records, say
from pflbench.errors import UserError

if TYPE_CHECKING:
    from pflbench.models.anatomy import Anatomy
    from pflbench.spec import OwnModel

app = typer.Typer(help="List the models, show their parts, test your own.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="MODEL", autocompletion=o.models, help="A model, or FILE.py:NAME.")]
Dataset = Annotated[
    str | None,
    typer.Option(
        "--dataset",
        "-d",
        metavar="NAME",
        autocompletion=o.dataset_names,
        help="Dataset, for shape and classes. Default: the first one that the model fits.",
    ),
]
POSITIONS, WORDS = 200, 98_635  # of AG News (methods.md 4.2), whose texts need not be here
FEW_WORDS = 1000  # that the contract suite does with


class _Kind(NamedTuple):
    """What a model must know of data. shape: of a sample."""

    label: str
    shape: tuple[int, ...]
    classes: int
    vocabulary: int | None


@app.command("list")
def list_(dataset: Dataset = None, data_dir: o.DataDir = o.DEFAULT_DATA, as_json: o.Json = False) -> None:
    """List the models, built-in ones and those of installed packages, with their parameters for a dataset."""
    from pflbench.models import names

    kinds = _kinds(dataset, data_dir)
    columns = ("name", "description", "from", "for", "parameters", "head", "blocks")
    rows = []
    for name in names():
        row: dict[str, Any] = dict.fromkeys(columns) | {"name": name}
        rows.append(row)
        try:
            _, own, facts = _named(name)
            row |= {"description": facts["description"], "from": facts["from"]}
            kind, made = _made(name, own, kinds)
        except UserError as error:
            row["blocks" if row["from"] else "description"] = error.message
            continue
        blocks = [block.names for block in made.blocks]
        row |= {"for": kind.label, "parameters": made.parameters, "head": made.head.names, "blocks": blocks}
    print_records(rows, as_json, spare=("from",))


@app.command()
def show(name: Name, dataset: Dataset = None, data_dir: o.DataDir = o.DEFAULT_DATA, as_json: o.Json = False) -> None:
    """Show one model for a dataset: its parameters, its head, and the blocks that ALA's p counts from the top."""
    found, own, facts = _named(name)
    kind, made = _made(found, own, _kinds(dataset, data_dir))
    above, blocks = 0, []
    for p, block in enumerate(made.blocks, start=1):
        above += block.parameters
        blocks.append({"p": p, "block": block.names, "parameters": block.parameters, "top p blocks": above})
    about = {
        "name": found,
        **facts,
        "data": f"{kind.label}: {' x '.join(map(str, kind.shape))}, {kind.classes} classes",
        "parameters": made.parameters,
        "buffers": made.buffers,
        "head": made.head.names,
        "parameters of the head": made.head.parameters,
    }
    if as_json:
        print_json({**about, "blocks": blocks})
        return
    print_fields(about.items())
    say()
    print_records(blocks)


@app.command("test")
def check(name: Name, dataset: Dataset = None, data_dir: o.DataDir = o.DEFAULT_DATA) -> None:
    """Run the contract suite, which every model must pass, on a model. Exit code 1 if it fails."""
    from pflbench.contract import model_keeps_the_contract

    found, own, _ = _named(name)
    kind, _ = _made(found, own, _kinds(dataset, data_dir))
    words = None if kind.vocabulary is None else min(kind.vocabulary, FEW_WORDS)
    if not model_keeps_the_contract(found, own, kind.shape, kind.classes, words):
        raise typer.Exit(1)


def _named(text: str) -> tuple[str, OwnModel | None, dict[str, Any]]:
    from pflbench import models

    name, own = models.find(text)
    return name, own, models.facts(name, own)


def _made(name: str, own: OwnModel | None, kinds: list[_Kind]) -> tuple[_Kind, Anatomy]:
    """The model for the first of these data that it fits. Raises UserError, the first, if it fits none."""
    from pflbench.models.anatomy import anatomy

    refused: list[UserError] = []
    for kind in kinds:
        try:
            return kind, anatomy(name, kind.shape, kind.classes, kind.vocabulary, own)
        except UserError as error:
            refused.append(error)
    raise refused[0]


def _kinds(dataset: str | None, data_dir: Path) -> list[_Kind]:
    """Of the named dataset; without one, of all datasets, whether they are here or not."""
    from pflbench.data import DATASETS

    return [_kind(name, data_dir) for name in (DATASETS if dataset is None else [dataset])]


def _kind(dataset: str, data_dir: Path) -> _Kind:
    from pflbench import data

    found = data.DATASETS.get(dataset.partition(":")[0])
    if found is None:
        arrays = data.load(data.parse(dataset, data_dir), data_dir)
        return _Kind(dataset, tuple(arrays.x.shape[1:]), len(arrays.classes), arrays.vocabulary)
    classes = found.variants.get(data.named(dataset).variant or "", found.classes)
    return _Kind(found.name, found.shape or (POSITIONS,), classes, WORDS if found.shape is None else None)
