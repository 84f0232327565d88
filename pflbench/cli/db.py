"""`pflbench db`: the results database; `pflbench doctor`: whether a run has everything that it needs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pflbench.cli import options as o
from pflbench.cli.checkup import checkup
from pflbench.cli.console import message, print_fields, print_info, print_json, say
from pflbench.cli.progress import bars
from pflbench.errors import NothingYet
from pflbench.plain import without_passwords

if TYPE_CHECKING:
    from sqlalchemy import Engine

app = typer.Typer(help="Upgrade, check, copy, back up and describe the results database.", no_args_is_help=True)


@contextmanager
def opened(db: str, *, create: bool = False) -> Iterator[Engine]:
    """The database, which must exist unless `create`. Its failures become UserErrors."""
    from pflbench.store.database import connect, to_url
    from pflbench.store.failures import friendly

    url = to_url(db)
    with friendly(url):
        engine = connect(url, create=create)
        try:
            _warn_of_the_network(engine)
            yield engine
        finally:
            engine.dispose()  # closing the last connection removes the write-ahead log


def _warn_of_the_network(engine: Engine) -> None:
    """Warns once a command about a write-ahead log on a network file system."""
    from pflbench.store import journal
    from pflbench.store.failures import sqlite_path

    path, where = sqlite_path(engine.url), journal.at_risk(engine)
    if where is None or path is None or path in _warned:
        return
    _warned.add(path)
    message(f"{path} is on a network file system ({where}): two machines that have it open may damage it by its write-ahead log.")
    message(f"When no process has it open: sqlite3 {shlex.quote(str(path))} 'PRAGMA journal_mode=DELETE'")


_warned: set[Path] = set()


@contextmanager
def opened_or_empty(db: str) -> Iterator[Engine]:
    """The database; an empty one in memory if it does not exist."""
    with ExitStack() as stack:
        try:
            engine = stack.enter_context(opened(db))
        except NothingYet:
            engine = stack.enter_context(opened("sqlite://", create=True))
        yield engine


@app.command()
def upgrade(db: o.Db = o.DEFAULT_DB, as_json: o.Json = False) -> None:
    """Upgrade the schema to the newest revision, as opening a database does."""
    from pflbench.store import database

    before, after = database.upgrade(database.to_url(db))
    if as_json:
        print_json({"from": before, "to": after})
    else:
        say(f"Schema before: {before or 'none'}. Now: {after}.")


@app.command()
def check(db: o.Db = o.DEFAULT_DB, as_json: o.Json = False) -> None:
    """Look for damage: file, schema, references, contradictory rows. Exit code 2 if there is any."""
    from pflbench.store import inspection

    problems = inspection.check(db)
    if as_json:
        print_json({"ok": not problems, "problems": problems})
    else:
        say("\n".join(problems) if problems else "No problems found.")
    if problems:
        message(f"{len(problems)} problem{'s' * (len(problems) != 1)} in {without_passwords(db, alone=True)}.")
        raise typer.Exit(2)


@app.command()
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="A database: a file or a SQLAlchemy URL.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="A new or empty database: a file or a SQLAlchemy URL.")],
    quiet: o.Quiet = False,
    as_json: o.Json = False,
) -> None:
    """Copy a whole database, for example from SQLite to PostgreSQL or back, with all numbers of rows."""
    from pflbench.store.database import connect_read_only, to_url
    from pflbench.store.exchange import copy as exchange
    from pflbench.store.failures import place

    there = connect_read_only(to_url(source))
    try:
        with opened(target, create=True) as into:
            with bars(quiet) as progress:
                counts = exchange.copy(there, into, progress)
            left, name = exchange.unfinished(into), place(into.url)
    finally:
        there.dispose()
    print_info(counts, as_json)
    message(f"Copied {sum(counts.values()):,} rows to {name}.")
    if left:
        message(f"Unfinished runs: {left}. Checkpoints are not copied: `pflbench run` starts them over.")


@app.command()
def backup(
    target: Annotated[Path, typer.Argument(metavar="TO", help="A new file.")],
    db: o.Db = o.DEFAULT_DB,
    as_json: o.Json = False,
) -> None:
    """Copy the database of one moment to a new SQLite file, also while runs write to it, and check the copy."""
    from pflbench.store import inspection
    from pflbench.store.database import to_url
    from pflbench.store.exchange.backup import backup as copy_online

    copy_online(to_url(db), target)
    print_info(inspection.info(str(target)), as_json)
    message("The copy has no damage. Checkpoints are not copied.")


@app.command()
def info(db: o.Db = o.DEFAULT_DB, as_json: o.Json = False) -> None:
    """Show place, size, schema and content of the database."""
    from pflbench.store import inspection

    print_info(inspection.info(db), as_json)


def doctor(
    gpu: Annotated[
        bool, typer.Option("--gpu", help="Check the GPU: compare all its ways of computing with the CPU, in some minutes.")
    ] = False,
    device: Annotated[str, typer.Option(metavar="auto|cuda[:N]", help="--gpu: the GPU. auto: the first one.")] = "auto",
    db: o.Db = o.DEFAULT_DB,
    data_dir: o.DataDir = o.DEFAULT_DATA,
    as_json: o.Json = False,
) -> None:
    """Show versions, device, data found and the state of the database. Exit code 2 if something will not work.

    With --gpu: whether the GPU, with its driver and this PyTorch, gives the right numbers in every way that a run may take.
    The result is kept for the records of later runs. Exit code 1 if something is wrong.
    """
    if gpu:
        checkup(device, as_json)
        return
    from pflbench.run.doctor import examine

    found = examine(db, data_dir)
    if as_json:
        print_json(found)
    else:
        for section in ("versions", "device", "data", "database"):
            print_fields([(section.upper(), ""), *((name.replace("_", " "), value) for name, value in found[section].items())])
    for problem in found["problems"]:
        message(problem)
    if found["problems"]:
        raise typer.Exit(2)
