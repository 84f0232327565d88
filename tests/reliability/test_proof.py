"""The proof itself: what is lost is seen. Else a table of noughts would say nothing."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support.faults import aftermath, tally, witness
from support.faults.client import Disturbance
from support.faults.victims import Material, Of

CHANGES = {
    "a round": ("DELETE FROM round WHERE round = 2", (1, 1)),
    "the last digit of a loss": ("UPDATE client_round SET loss = loss * (1 + 3e-16) WHERE round = 1 AND client = 0", (1, 1)),
    "a status": ("UPDATE run SET status = 'failed'", (1, 1)),
    "a second attempt": ("INSERT INTO series SELECT run_id, 'more', round, 0.5, 1 FROM round", (0, 0)),
}


def test_a_change_is_seen(material: Material, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    shutil.copy(material.path("first"), whole / "pflbench.db")
    reference = aftermath.left(whole)
    for name, (statement, lost) in CHANGES.items():
        folder = tmp_path / name
        shutil.copytree(whole, folder)
        assert aftermath.differences(aftermath.left(folder), reference) == []
        with closing(sqlite3.connect(folder / "pflbench.db")) as connection, connection:
            connection.execute(statement)
        found = aftermath.left(folder)
        assert aftermath.lost(found, reference) == lost, name
        assert len(aftermath.differences(found, reference)) == 1, name
    (whole / ".o.csv.7.partial").touch()
    assert aftermath.differences(aftermath.left(whole), reference) == [".o.csv.7.partial was left behind"]


def test_a_kill_comes_where_it_was_asked_for_and_a_witness_knows_what_was_committed(trials: Of, tmp_path: Path) -> None:
    of = trials("run")
    at = len(of.whole.events["sql"]) * 3 // 4
    folder, log, events = of.fresh(), tmp_path / "witness", tmp_path / "events"
    count: Disturbance = ("counted", {"kinds": ["sql"], "into": str(events)})
    kill: Disturbance = ("killed", {"kinds": ["sql"], "at": at})
    assert of.made(folder, count, kill, ("witnessed", {"into": str(log)})).code == -9
    assert events.read_text().splitlines() == of.whole.events["sql"][: at + 1]
    told, found = witness.heard(log, folder / "pflbench.db"), aftermath.counts(folder / "pflbench.db")
    assert found["round"] > 0
    assert told.missing(found) == 0
    assert told.missing({**found, "round": found["round"] - 1}) == 1


def test_the_table_has_what_was_counted(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{tally.BEGIN}\nold\n{tally.END}\nafter\n")
    counted = tally.Tally("kill -9", "test_kill.py::test_sql")
    counted.count("one", 1, 12)
    counted.count("two")
    none = tally.Tally("disk full", "test_shortage.py::test_disk", why_none="no file system may be mounted here")
    tally.write(page, [counted.plain(), none.plain()], "how")
    lines = page.read_text().splitlines()
    assert "| kill -9 | 2 | 1 | 12 | `test_kill.py::test_sql` |" in lines
    assert "| disk full | 0: no file system may be mounted here | | | `test_shortage.py::test_disk` |" in lines
    assert "| **all** | **2** | **1** | **12** | |" in lines
    assert (lines[0], lines[-1]) == ("before", "after")
    assert "old" not in lines
    assert counted.told() == "one: 1 runs and 12 rows were lost"


@pytest.mark.parametrize(
    ("asked", "number", "chosen"), [(None, 3, [0, 4, 9]), (5, 5, [0, 2, 4, 7, 9]), (0, 200, [0, 1, 3, 4, 5, 6, 8, 9])]
)
def test_how_many_tries(asked: int | None, number: int, chosen: list[int]) -> None:
    counted = tally.Tally("", "", asked)
    assert counted.number(3, 200) == number
    assert list(counted.some(range(10), 3, 8)) == chosen
