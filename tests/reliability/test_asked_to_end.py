"""SIGTERM, SIGHUP and Ctrl-C at random times, once and twice: what was reached is kept, and the same command goes on."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest
from support.command import Done
from support.faults.client import Disturbance
from support.faults.tally import Tally
from support.faults.victims import Of

SIGNALS = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}
NAMES = ("run", "import", "export csv", "report")
CASES = [(name, number, times) for number in SIGNALS for times in (1, 2) for name in NAMES]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number", "times"), CASES)
def test_signal(name: str, number: str, times: int, trials: Of, tally: Tally) -> None:
    """asked to end at a random time"""
    of, chance, sent = trials(name), random.Random(number), getattr(signal, number)
    codes = (SIGNALS[number], -sent, 130 if number == "SIGINT" else -sent)  # the last: before the command has begun

    def disturb(folder: Path, more: Disturbance) -> Done:
        child = of.start(folder, more)
        time.sleep(chance.random() * of.whole.seconds)
        for _ in range(times):
            child.signal(sent)
            time.sleep(chance.random() * 0.02)
        return child.wait()

    wanted = tally.number(1, 12 if name == "run" else 4)
    for i in range(5 * wanted):  # some come when it is over already
        if tally.tries < wanted:
            of.one(tally, f"{number}, try {i}", disturb, codes)
