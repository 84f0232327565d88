"""What stands in reports/ is what its databases give: every table and caption is made again by the command that it names."""

from __future__ import annotations

import lzma
import re
import shlex
import sqlite3
from pathlib import Path

import pytest
from support.command import ROOT, Shell

REPORTS = ROOT / "reports"
# What `make demo` leaves there is nobody's but the reader's.
FILES = sorted(path for path in REPORTS.iterdir() if not path.name.startswith("demo-") and path.suffix != ".html")
MADE = re.compile(r"Made by `([^`]+)` \(pflbench \S+, commit ([0-9a-f]+\+?)\)")
WRITTEN = [path for path in FILES if path.suffix in (".md", ".txt")]


def provenance(path: Path) -> tuple[list[str], str]:
    """The command that a table or caption names, and the commit."""
    found = MADE.search(path.read_text(encoding="utf-8"))
    assert found, path
    return shlex.split(found[1]), found[2]


def test_there_is_nothing_else() -> None:
    databases = {path.name for path in FILES if path.name.endswith(".db.xz")}
    figures = {path.stem for path in FILES if path.suffix == ".png"}
    assert figures == {path.name.removesuffix(".caption.txt") for path in FILES if path.name.endswith(".caption.txt")}
    assert {path.name for path in FILES} == databases | {f"{name}.png" for name in figures} | {path.name for path in WRITTEN}
    used = {command[command.index("--db") + 1] + ".xz" for command, _ in map(provenance, WRITTEN)}
    assert used == databases


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.name)
def test_a_report_is_made_again_from_its_database(path: Path, shell: Shell, tmp_path: Path) -> None:
    (program, *command), commit = provenance(path)
    assert program == "pflbench"
    assert not commit.endswith("+"), "made from a commit, not from what was being worked on"
    database = command[command.index("--db") + 1]
    (tmp_path / database).write_bytes(lzma.decompress((REPORTS / f"{database}.xz").read_bytes()))
    (tmp_path / "reports").mkdir()
    done = shell(*command)
    assert done.code == 0, done
    text = path.read_text(encoding="utf-8")
    again = (tmp_path / "reports" / path.name).read_text(encoding="utf-8")
    assert MADE.sub("", again) == MADE.sub("", text)
    assert not re.search(r"total s|s/round|training time", text), "measured while other programs used the machine"


def test_an_h200_has_the_numbers_of_a_cpu(tmp_path: Path) -> None:
    """What benchmarks/NOTES.md says of them: torch 2.11 there, 2.13 here; there in captured steps, FedALA's seeds in a pack."""
    found = []
    for packed in (REPORTS / "agnews-2000.db.xz", ROOT / "benchmarks" / "h200" / "runs.db.xz"):
        file = tmp_path / packed.stem
        file.write_bytes(lzma.decompress(packed.read_bytes()))
        query = """SELECT method, seed, round, accuracy, test_loss FROM round JOIN run ON run.id = run_id
                   WHERE dataset LIKE 'agnews%' AND status = 'finished' AND round <= 100 AND accuracy IS NOT NULL"""
        with sqlite3.connect(file) as database:
            found.append({row[:3]: row[3:] for row in database.execute(query)})
    cpu, gpu = found
    assert len(gpu) == 4 * 11
    assert all(accuracy == cpu[reading][0] for reading, (accuracy, _) in gpu.items())
    assert max(abs(loss - cpu[reading][1]) for reading, (_, loss) in gpu.items()) < 2.1e-7
