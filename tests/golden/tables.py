"""The text of every table of the golden database, in tables.txt: what tests/report/test_golden_tables.py holds it against.

    python tests/golden/tables.py

writes it anew. Read the difference before you commit it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import Engine

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from golden.raw import unpack

from pflbench.report.declared import TABLES
from pflbench.report.selection import Filters
from pflbench.report.tables.grid import render
from pflbench.store import database as db

TARGET = Path(__file__).with_name("tables.txt")
WIDTH = 120
RANKED = ("fedprox", "fedprox+ala", "ditto", "ditto+ala", "fedrep", "fedrep+ala")
# Of tables that take any run, some runs: all columns and notes are there.
OPTIONS: dict[str, dict[str, Any]] = {
    "accuracy": {"filters": Filters(datasets=("fashionmnist", "agnews")), "test": "t"},
    "overhead": {"filters": Filters(models=("resnet18", "fasttext")), "paper": "always"},
    "clients": {"filters": Filters(datasets=("fashionmnist",))},
    "evidence": {"filters": Filters(datasets=("cifar100",))},
    "time-to-accuracy": {"filters": Filters(models=("resnet18", "fasttext"))},
    "ranks": {"filters": Filters(RANKED, partitions=("Dir(0.1)",))},
}


def texts(engine: Engine) -> str:
    return "\n".join(_texts(engine))


def _texts(engine: Engine) -> Iterator[str]:
    for name, table in ((name, table) for name, table in TABLES.items() if table.reproducible):
        grid = table.load()(engine, **OPTIONS.get(name, {})).grid()
        yield f"== {name} ==\n{render(grid, width=WIDTH)}"


def write() -> None:
    with TemporaryDirectory() as folder:
        engine = db.connect(db.to_url(str(unpack(Path(folder) / "golden.db"))))
        TARGET.write_text(texts(engine), encoding="utf-8")
        engine.dispose()


if __name__ == "__main__":
    write()
