"""The worked study of `examples/study`: its commands, in fewer rounds, make the table and the figure that its page shows."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from support.command import ROOT, Shell, finish, start

STUDY = ROOT / "examples" / "study"
PAGE = (STUDY / "README.md").read_text(encoding="utf-8")
METHODS = ("FedAvg", "FedALA", "p=2", "p=3")


def commands() -> list[list[str]]:
    """The lines of its first block, without `cd`."""
    block = re.search(r"```\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    lines = [line.partition("  #")[0].strip() for line in block[1].splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("pflbench ")]


def test_the_page_shows_what_is_committed() -> None:
    table = (STUDY / "accuracy.md").read_text(encoding="utf-8")
    rows = [line for line in table.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + len(METHODS)
    for name, row in zip(METHODS, rows[2:], strict=True):
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
    runs = json.loads(shell("sweep", "status", "range", "--json").out)["runs"]
    assert [(run["state"], run["rounds"]) for run in runs] == [("finished", "2/2")] * 24
    table = (tmp_path / "accuracy.md").read_text(encoding="utf-8")
    rows = [line for line in table.splitlines() if line.startswith("|")]
    assert all(name in row for name, row in zip(METHODS, rows[2:], strict=True))
    assert "n = 3" in table
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
