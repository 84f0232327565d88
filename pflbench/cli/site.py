"""`pflbench report` and `pflbench serve`: all results on one page."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pflbench import interrupts
from pflbench.cli import options as o
from pflbench.cli.console import command_line, message, say
from pflbench.cli.db import opened
from pflbench.cli.reports import FILTERS, ROUND_RULE, found_runs, uncollected
from pflbench.errors import NothingYet
from pflbench.plain import without_passwords
from pflbench.store.files import write_text

if TYPE_CHECKING:
    from pflbench.site.page import Made

DEFAULT_OUTPUT = Path("reports/report.html")
DEFAULT_PORT = 8765
_RULE = o.group(round_rule=ROUND_RULE)


def _made(url: str) -> Made:
    from sqlalchemy import make_url

    from pflbench import __version__
    from pflbench.environment import commit
    from pflbench.site.page import Made
    from pflbench.store.failures import sqlite_path
    from pflbench.store.schema import now

    target = make_url(url)
    file = sqlite_path(target)
    return Made(file.name if file else str(target.database), now(), __version__, commit(), command_line())


@uncollected()
@o.taking(which=FILTERS, by=_RULE)
def report(
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file.")] = DEFAULT_OUTPUT,
    which: o.Given,
    by: o.Given,
    pages: Annotated[
        str,
        typer.Option(
            "--runs",
            metavar="all|shown|none|N,N",
            autocompletion=lambda: ("all", "shown", "none"),
            help="Runs with a page of their own; shown: those in tables and figures. Default: all of up to 200 runs, else none.",
        ),
    ] = "auto",
    db: o.Db = o.DEFAULT_DB,
) -> None:
    """Write all tables, figures and runs into one HTML file that needs no network, and print its path."""
    from pflbench.report.labels import counted
    from pflbench.report.selection import Filters
    from pflbench.site import html, page, runs
    from pflbench.store.database import to_url

    with opened(db) as engine:
        built = page.build(engine, _made(to_url(db)), Filters(**which), pages, by["round_rule"] or "best")
        text = html.document(built, runs.pages(engine, built.runs, built.pages))
    if output == DEFAULT_OUTPUT:
        output.parent.mkdir(exist_ok=True)
    write_text(output, text)
    pages_of = f"pages of {len(built.pages)} of {counted(len(built.runs), 'run')}"
    message(f"{len(built.tables)} tables, {len(built.figures)} figures, {pages_of}.")
    say(output)


@o.taking(which=FILTERS, by=_RULE)
def serve(
    *,
    which: o.Given,
    by: o.Given,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on 127.0.0.1.")] = DEFAULT_PORT,
    db: o.Db = o.DEFAULT_DB,
) -> None:
    """Show the page of `report` live in a browser, on this machine only and read-only. Ctrl-C ends it."""
    from pflbench.report.selection import Filters, parse
    from pflbench.site import page
    from pflbench.site.serve import Server
    from pflbench.store.database import connect_read_only, to_url
    from pflbench.store.failures import friendly
    from pflbench.store.schema import now

    interrupts.stopping = b"\n"  # no run to keep a checkpoint of
    url = to_url(db)
    made, filters, rule = _made(url), Filters(**which), by["round_rule"] or "best"
    parse(rule)
    with friendly(url):
        engine = connect_read_only(url)

        def newest() -> page.Page:
            return page.build(engine, replace(made, at=now()), filters, "all", rule, live=True)

        try:
            with suppress(NothingYet):
                found_runs(engine, which)  # refuses what no run has
            with Server(engine, newest, port) as server:
                say(server.address, flush=True)
                message(f"{without_passwords(db, alone=True)}, read-only. Ctrl-C ends it.")
                server.serve_forever()
        finally:
            engine.dispose()
