"""`pflbench doctor`: is everything here that a run needs?"""

from __future__ import annotations

import typer

from pflbench.cli import options as o
from pflbench.cli.console import message, print_fields, print_json


def doctor(db: o.Db = o.DEFAULT_DB, data_dir: o.DataDir = o.DEFAULT_DATA, as_json: o.Json = False) -> None:
    """Show versions, device, data found and the state of the database. Exit code 2 if something will not work."""
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
