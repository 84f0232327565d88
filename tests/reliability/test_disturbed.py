"""A clock that goes back, a database that is locked, a checkpoint with wrong bits, a run that is stopped: the same rows."""

from __future__ import annotations

import random
import re
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from support.command import Done
from support.faults import aftermath
from support.faults.client import Disturbance
from support.faults.tally import Tally
from support.faults.victims import Of, Trials

DAY = 86_400.0


@pytest.mark.slow
def test_clock(trials: Of, tally: Tally) -> None:
    """clock set back by an hour at every fifth look, and by days before the run is resumed"""
    of = trials("run")
    wrong: Disturbance = ("clock", {"ahead": 30 * DAY, "back": 3600.0, "every": 5})
    for at in tally.some(range(0, len(of.whole.events["sql"]), 3), 2):
        kill: Disturbance = ("killed", {"kinds": ["sql"], "at": at})
        of.one(tally, f"killed at {at}", lambda folder, more, kill=kill: of.made(folder, wrong, kill, more))


@pytest.mark.slow
def test_locked(trials: Of, tally: Tally) -> None:
    """database locked by another process for longer than is waited"""
    of, chance = trials("run"), random.Random(0)

    def disturb(folder: Path, more: Disturbance) -> Done:
        with closing(sqlite3.connect(folder / "pflbench.db", isolation_level=None, timeout=5)) as other:
            child = of.start(folder, ("impatient", {"seconds": 0.2}), more)
            time.sleep(chance.random() * of.whole.seconds)
            other.execute("BEGIN IMMEDIATE")
            return child.wait()

    wanted = tally.number(2, 12)
    for i in range(5 * wanted):
        if tally.tries < wanted:
            of.one(tally, f"try {i}", disturb, (2,), "has been locked")


@pytest.mark.slow
def test_moved(trials: Of, tally: Tally) -> None:
    """database that is moved away under a run, and put back"""
    of, chance = trials("run"), random.Random(0)

    def disturb(folder: Path, more: Disturbance) -> Done:
        path, elsewhere = folder / "pflbench.db", folder / "elsewhere.db"
        child = of.start(folder, more)
        time.sleep(chance.random() * of.whole.seconds)
        path.rename(elsewhere)
        done = child.wait()
        elsewhere.replace(path)
        return done

    wanted = tally.number(2, 10)
    for i in range(5 * wanted):  # some come when it is over already, or before the database was opened
        if tally.tries < wanted:
            of.one(tally, f"try {i}", disturb, (2,), "while it was in use")


def checkpoint(of: Trials, spoil: Callable[[Path], None]) -> Callable[[Path, Disturbance], Done]:
    """Killed when there is a checkpoint, which is then spoilt."""
    moves = [at for at, name in enumerate(of.whole.events["file"]) if name == "os.rename"]
    kill: Disturbance = ("killed", {"kinds": ["file"], "at": moves[-1] + 1})

    def disturb(folder: Path, more: Disturbance) -> Done:
        done = of.made(folder, kill, more)
        (found,) = folder.glob("*.checkpoints/*.pt")
        spoil(found)
        return done

    return disturb


@pytest.mark.slow
def test_flipped_bits(trials: Of, tally: Tally) -> None:
    """checkpoint with a flipped bit"""
    of, chance = trials("run"), random.Random(0)

    def flip(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(content)

    for i in range(tally.number(1, 60)):
        of.one(tally, f"bit {i}", checkpoint(of, flip))


@pytest.mark.slow
def test_cut_off(trials: Of, tally: Tally) -> None:
    """checkpoint that is cut off"""
    of, chance = trials("run"), random.Random(0)

    def cut(path: Path) -> None:
        path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size)])

    for i in range(tally.number(2, 10)):
        of.one(tally, f"cut {i}", checkpoint(of, cut))


@pytest.mark.slow
def test_stopped(trials: Of, tally: Tally) -> None:
    """`runs rm`, and a second `run`, while the run is stopped with Ctrl-Z"""
    of, chance = trials("run"), random.Random(0)
    refused: list[str] = []

    def disturb(folder: Path, more: Disturbance) -> Done:
        child = of.start(folder, more)
        until = time.monotonic() + 30
        while not aftermath.counts(folder / "pflbench.db").get("round") and time.monotonic() < until:
            time.sleep(0.002)
        time.sleep(chance.random() * of.whole.seconds / 10)
        child.signal(signal.SIGSTOP)
        under_way = bool(list(folder.glob("*.checkpoints/*.lock")))
        for command in (("runs", "rm", "1", "--yes"), of.victim.arguments) if under_way else ():
            done = of.forks(*command, folder=folder, disturbed=[("impatient", {"seconds": 0.2})])
            refused.append(f"{done.code} {done.err}")
        child.signal(signal.SIGCONT)
        return child.wait()

    for i in range(tally.number(2, 10)):
        of.one(tally, f"stop {i}", disturb, (0,))
    told = "is under way|Another process is at this run|has been locked"  # where it was stopped in a commit
    tally.wrong += [text for text in refused if not re.match(f"2 .*({told})", text, re.S)]
    assert refused
