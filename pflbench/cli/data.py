"""`pflbench data`: lists, checks and downloads datasets."""

from __future__ import annotations

from collections.abc import Collection, Iterable
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
    typer.Argument(metavar="NAME", autocompletion=o.dataset_names, help="A dataset, with :VARIANT or without."),
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
            "variants": list(dataset.variants) or None,
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
        typer.Argument(metavar="[NAME]...", autocompletion=o.dataset_names, help="Default: all in the data folder."),
    ] = None,
    data_dir: o.DataDir = o.DEFAULT_DATA,
    as_json: o.Json = False,
) -> None:
    """Read every file of datasets and check for the official content. Exit code 2 if a file is missing or damaged.

    A dataset is official, other (whole, but not known to be the official content) or damaged.
    """
    from pflbench import data

    rows = []
    for name in names or data.DATASETS:
        found = _verified(name, data_dir)
        if names or any(state != "missing" for _, _, state, _ in found):
            rows += found
    print_records([dict(zip(("dataset", "file", "state", "detail"), row, strict=True)) for row in rows], as_json)
    if not rows:
        message(f"No datasets in {data_dir}.")
    bad = {name for name, _, state, _ in rows if state in ("missing", "corrupt", "damaged")}
    for name, _, state, _ in rows:
        if state == "other":
            known = data.DATASETS[data.named(name).name].checksum_known
            unknown = "no published checksum is known, so it may or may not be the official content"
            what = "not the official content" if known else unknown
            message(f"{name}: {what}. Runs on it have keys, labels and columns of their own.")
    for name in sorted(bad):
        message(f"{name} is missing or damaged. Get it: pflbench data download {name} --data-dir {data_dir}")
    if bad:
        raise typer.Exit(2)


@app.command()
def download(name: Name, data_dir: o.DataDir = o.DEFAULT_DATA) -> None:
    """Download a dataset and check it. Existing files are not downloaded again."""
    from pflbench import data

    data.download(name, data_dir)
    message(f"{name} is complete in {data_dir}.")


def fetch_missing(names: Iterable[str], partitions: Collection[str], data_dir: Path, wanted: bool, quiet: bool) -> None:
    """Reads the named datasets, and downloads missing ones. If that fails, the reason is printed, and the run reports the data.

    partitions: of all runs, if known; PFLlib folders bring their data. wanted: False for --no-download.
    """
    from pflbench import data

    if partitions and all(one.startswith("pfllib") for one in partitions):
        return
    for name in dict.fromkeys(names):
        with data_view(quiet) as progress:
            size = data.missing_size(name, data_dir, progress)
        if not size or not wanted:
            continue
        message(f"{name} is not in {data_dir}: downloading {size}. Ctrl-C ends it, and the same command continues it.")
        try:
            with data_view(quiet) as progress:
                data.download(name, data_dir, progress)
        except UserError as failed:
            message(f"Note: {failed.message}")


def _verified(name: str, data_dir: Path) -> list[tuple[str, str, str, str]]:
    """Dataset, file, state and detail of each file, and of all of it unless files are missing."""
    from pflbench import data

    rows = [(name, str(finding.file), str(finding.state), finding.detail) for finding in data.verify(name, data_dir)]
    states = {state for _, _, state, _ in rows}
    whole = "damaged", ""
    if "corrupt" not in states:
        if "missing" in states:
            return rows
        try:
            found = data.identify(data.named(name), data_dir)
            whole = ("official", "") if found is None else (found.state, f"{found.detail}; content {found.hash[:16]}")
        except UserError as error:
            whole = "damaged", error.message
    return [*rows, (name, WHOLE, *whole)]
