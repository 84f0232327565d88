"""kill -9 in every command that writes: what was committed stays, and the same command again ends as if nothing had been.

As if nothing had been: the same rows, bit for bit, but for times and memory; no file left over; `db check` clean.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support.cases import rest_slow
from support.faults import aftermath, witness
from support.faults.client import Disturbance
from support.faults.tally import Tally
from support.faults.victims import VICTIMS, Material, Of

ALL = 1_000_000
NAMES = [victim.name for victim in VICTIMS]


@pytest.mark.parametrize("name", rest_slow(NAMES, "run"))
def test_sql(name: str, trials: Of, tally: Tally) -> None:
    """kill -9 before an SQL statement"""
    of = trials(name)
    for at in tally.some(range(len(of.whole.events["sql"])), 2 if name == "run" else 1, ALL if name == "run" else 24):
        of.killed_at(tally, "sql", at)


@pytest.mark.parametrize("name", rest_slow(NAMES, "run"))
def test_files(name: str, trials: Of, tally: Tally) -> None:
    """kill -9 before a file operation"""
    of = trials(name)
    for at in tally.some(range(len(of.whole.events["file"])), 2 if name == "run" else 1, ALL):
        of.killed_at(tally, "file", at)


@pytest.mark.parametrize("name", rest_slow(NAMES))
def test_random(name: str, trials: Of, tally: Tally) -> None:
    """kill -9 at a random time"""
    of, chance = trials(name), random.Random(0)
    wanted = tally.number(3, 80 if name == "run" else 12)
    for _ in range(10 * wanted):  # some come when it is over already
        if tally.tries < wanted:
            of.killed_after(tally, chance.random() * of.whole.seconds)


# What is lost is seen: else a table of noughts would say nothing.
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
