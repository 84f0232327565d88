"""`pflbench data`: lists, checks and downloads datasets."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from pflbench.cli import options as o
from pflbench.cli.console import message, print_json, print_records, say
from pflbench.cli.progress import data_view
from pflbench.errors import UserError

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

    rows = [
        {
            **{name: getattr(dataset, name) for name in ("name", "title", "samples", "classes")},
            "download": dataset.size,
            "variants": dataset.variants or None,
            "model": dataset.defaults.model,
            "lr": dataset.defaults.lr,
        }
        for dataset in DATASETS.values()
    ]
    packaged = [{"name": one.name, "from": one.place} for one in installed("dataset")]
    own = [{"own data": "FILE.py:NAME" if one is PYTHON else f"{one.name}:PATH", "": one.title} for one in SOURCES.values()]
    if as_json:
        kinds = [{"name": one.name, "expects": one.title} for one in SOURCES.values()]
        print_json({"datasets": rows, "packages": packaged, "own": kinds})
        return
    for table in filter(None, (rows, packaged, own)):
        print_records(table)
        say()


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
    print_records([dict(zip(("dataset", "file", "state", "detail"), row, strict=True)) for row in rows], as_json)
    if not rows:
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


def fetch_missing(names: Iterable[str], data_dir: Path, wanted: bool, quiet: bool) -> None:
    """Reads the named datasets, and downloads missing ones. If that fails, the reason is printed, and the run reports the data.

    wanted: False for --no-download.
    """
    from pflbench import data

    for name in dict.fromkeys(names):
        with data_view(quiet) as progress:
            size = data.missing_size(name, data_dir, progress)
        if not size or not wanted:
            continue
        message(f"{name} is not in {data_dir}: downloading {size}. Ctrl-C ends it, and the same command continues it.")
        base, variant = _split(name)
        try:
            with data_view(quiet) as progress:
                data.download(base, data_dir, variant, progress)
        except UserError as failed:
            message(f"Note: {failed.message}")


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
