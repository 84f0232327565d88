"""`examples/`: the sweep of Table 2, and the worked study, whose commands make what its page shows, in fewer rounds."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from support.command import ROOT, Shell, finish, parsed, start

from pflbench.reproduce.goal import goals
from pflbench.sweep.grid import specifications
from pflbench.sweep.study import read

EXAMPLES = ROOT / "examples"
STUDY = EXAMPLES / "study"
PAGE = (STUDY / "README.md").read_text(encoding="utf-8")
ROWS = ("FedAvg", "FedALA", "p=2", "p=3", "Majority class")


@pytest.mark.slow
def test_the_sweep_of_table_2_has_the_runs_of_reproduce(tmp_path: Path) -> None:
    (goal,) = goals("table2")
    found = [spec.key for spec in specifications(read(EXAMPLES / "table2.yaml").grid, tmp_path)]
    assert len(found) == 14 * 8 * 5
    assert set(found) == {one.spec.key for one in goal.planned(tmp_path)}


def commands() -> list[list[str]]:
    """The lines of its first block, without `cd`."""
    block = re.search(r"```\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    lines = [line.partition("  #")[0].strip() for line in block[1].splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("pflbench ")]


def rows_of(table: str) -> list[str]:
    """Without the two of its head."""
    return [line for line in table.splitlines() if line.startswith("|")][2:]


def test_the_page_shows_what_is_committed() -> None:
    for name, row in zip(ROWS, rows_of((STUDY / "accuracy.md").read_text(encoding="utf-8")), strict=True):
        assert name in row
        assert row in PAGE
    assert "curves.png" in PAGE
    assert (STUDY / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_study_as_its_page_says(shell: Shell, tmp_path: Path) -> None:
    for name in ("range.yaml", "net.py"):
        shutil.copy(STUDY / name, tmp_path)
    file = tmp_path / "range.yaml"
    text = file.read_text(encoding="utf-8")
    assert "\nrounds: 15\n" in text
    shorter = "\nrounds: 2\nbatch-size: 100\nfedala.max_init_epochs: 2\n"
    file.write_text(text.replace("\nrounds: 15\n", shorter), encoding="utf-8")
    sweep, *reports = commands()
    assert sweep == ["sweep", "range.yaml"]
    done = finish(start(*sweep, "--jobs", "2", folder=tmp_path))
    assert done.code == 0, done.err
    for report in reports:
        done = shell(*report)
        assert done.code == 0, done.err
    runs = parsed(shell("sweep", "status", "range", "--json"))["runs"]
    assert [(run["state"], run["rounds"]) for run in runs] == [("finished", "2/2")] * 24
    table = (tmp_path / "accuracy.md").read_text(encoding="utf-8")
    assert all(name in row for name, row in zip(ROWS, rows_of(table), strict=True))
    assert "n = 3" in table
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
