"""kill -9 in every command that writes: what was committed stays, and the same command again ends as if nothing had been.

As if nothing had been: the same rows, bit for bit, but for times and memory; no file left over; `db check` clean.
"""

from __future__ import annotations

import random

import pytest
from support.cases import rest_slow
from support.faults.tally import Tally
from support.faults.victims import VICTIMS, Of

ALL = 1_000_000
NAMES = [victim.name for victim in VICTIMS]


@pytest.mark.parametrize("name", rest_slow(NAMES, "run"))
def test_sql(name: str, trials: Of, tally: Tally) -> None:
    """kill -9 before an SQL statement"""
    of = trials(name)
    for at in tally.some(range(len(of.whole.events["sql"])), 2 if name == "run" else 1, ALL if name == "run" else 24):
        of.killed_at(tally, "sql", at)


@pytest.mark.parametrize("name", rest_slow(NAMES, "run", "export csv"))
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
