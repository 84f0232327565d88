"""`pflbench data`: lists, checks and downloads datasets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pflbench.cli import options as o
from pflbench.cli.console import message, print_json, print_table, say
from pflbench.errors import UserError

if TYPE_CHECKING:
    from pflbench.data import Dataset

WHOLE = "all of it"

app = typer.Typer(help="List, check and download datasets.", no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", autocompletion=o.completion(o.dataset_names), help="A dataset, with :VARIANT or without."),
]


@app.command("list")
def list_(as_json: o.Json = False) -> None:
    """List the datasets and the kinds of own data."""
    from pflbench.data import DATASETS, PYTHON, SOURCES
    from pflbench.plugins import installed

    rows = [_row(dataset) for dataset in DATASETS.values()]
    packaged = [{"name": one.name, "from": one.place} for one in installed("dataset")]
    if as_json:
        print_json(
            {"datasets": rows, "packages": packaged, "own": [{"name": s.name, "expects": s.title} for s in SOURCES.values()]}
        )
        return
    columns = ("name", "title", "samples", "classes", "download", "variants", "model", "lr")
    print_table(columns, [[row[c] or None for c in columns] for row in rows])
    if packaged:
        say()
        print_table(("name", "from"), [tuple(row.values()) for row in packaged])
    say()
    own_data = [(f"{source.name}:PATH", source.title) for source in SOURCES.values() if source is not PYTHON]
    print_table(("own data", ""), [*own_data, ("FILE.py:NAME", PYTHON.title)])


@app.command()
def verify(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", autocompletion=o.completion(o.dataset_names), help="Default: all in the data folder."
        ),
    ] = None,
    data_dir: o.DataDir = o.DEFAULT_DATA,
    as_json: o.Json = False,
) -> None:
    """Read every file of datasets and check for the official content. Exit code 2 if a file is missing or damaged.

    A dataset is official, other (whole, but not known to be the official content) or damaged.
    """
    found = _verified(names or [], data_dir)
    rows = [(name, *row) for name, held in found.items() for row in held]
    if as_json:
        print_json([dict(zip(("dataset", "file", "state", "detail"), row, strict=True)) for row in rows])
    elif rows:
        print_table(("dataset", "file", "state", "detail"), rows)
    else:
        message(f"No datasets in {data_dir}.")
    bad = {name for name, _, state, _ in rows if state in ("missing", "corrupt", "damaged")}
    for name, _, state, _ in rows:
        if state == "other":
            message(f"{name}: not the official content. Runs on it have keys, labels and columns of their own.")
    for name in sorted(bad):
        message(f"{name} is missing or damaged. Get it: pflbench data download {name} --data-dir {data_dir}")
    if bad:
        raise typer.Exit(2)


@app.command()
def download(name: Name, data_dir: o.DataDir = o.DEFAULT_DATA) -> None:
    """Download a dataset and check it. Existing files are not downloaded again."""
    from pflbench import data

    base, variant = _split(name)
    data.download(base, data_dir, variant)
    message(f"{name} is complete in {data_dir}.")


def _row(dataset: Dataset) -> dict[str, Any]:
    return {
        "name": dataset.name,
        "title": dataset.title,
        "samples": dataset.samples,
        "classes": dataset.classes,
        "download": dataset.size,
        "variants": list(dataset.variants),
        "model": dataset.defaults.model,
        "lr": dataset.defaults.lr,
        "url": dataset.url,
    }


def _split(name: str) -> tuple[str, str | None]:
    base, _, variant = name.partition(":")
    return base, variant or None


def _verified(names: list[str], data_dir: Path) -> dict[str, list[tuple[str, str, str]]]:
    """File, state and detail of each file of the named datasets, and of all of it; without names, of those that are here."""
    from pflbench import data

    found = {}
    for name in names or data.DATASETS:
        base, variant = _split(name)
        findings = data.verify(base, data_dir, variant)
        if names or any(finding.state != "missing" for finding in findings):
            rows = [(str(finding.file), str(finding.state), finding.detail) for finding in findings]
            found[name] = [*rows, *_content(name, [state for _, state, _ in rows], data_dir)]
    return found


def _content(name: str, states: list[str], data_dir: Path) -> list[tuple[str, str, str]]:
    """The row of a dataset as a whole; none where files are missing."""
    from pflbench import data

    if "corrupt" in states:
        return [(WHOLE, "damaged", "")]
    if "missing" in states:
        return []
    try:
        found = data.identify(data.named(name), data_dir)
    except UserError as error:
        return [(WHOLE, "damaged", error.message)]
    if found is None:
        return [(WHOLE, "official", "")]
    return [(WHOLE, found.state, f"{found.detail}; content {found.hash[:16]}")]
