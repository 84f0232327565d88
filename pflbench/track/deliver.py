"""What is new in the database goes to a tracker, once. Nothing of a run waits for it: it reads what was committed.

What a tracker has of a run is a `Mark`, kept beside it. A mark is set after the rounds that it stands for; a tracker that was
stopped in between knows by other means what it has, or takes the same round twice as one.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from sqlalchemy import Engine

from pflbench.errors import Unreachable, UserError
from pflbench.store.exchange.points import TrackedRound, points
from pflbench.store.files import write_text
from pflbench.store.locks import UNDER_WAY
from pflbench.store.runs import Run


@dataclass(frozen=True)
class Mark:
    """What a tracker has of a run: its rounds up to this one (-1: none), and what it was told of its status."""

    round: int = -1
    status: str = ""


class Tracker(Protocol):
    """Where runs are shown. A run is the same one there if key and attempt are."""

    def mark(self, run: Run) -> Mark:
        """What is there already."""

    def write(self, run: Run, new: Sequence[TrackedRound]) -> None:
        """Takes rounds in ascending order, all beyond the mark."""

    def tell(self, run: Run, mark: Mark) -> None:
        """Takes the run's status, and keeps the mark. What is open of a run that is not under way is closed."""

    def close(self) -> None:
        """Whatever is open."""


class Delivery:
    """Brings a tracker up to date, as often as it is called. It remembers what it delivered: the tracker is asked once.

    rounds: how many were new so far. runs: of which runs.
    """

    def __init__(self, engine: Engine, tracker: Tracker) -> None:
        self._engine, self._tracker = engine, tracker
        self._marks: dict[tuple[str, int], Mark] = {}
        self.rounds = 0
        self.runs: set[int] = set()

    def __call__(self, runs: Sequence[Run]) -> None:
        """The runs with their status as it is now; those without a round are left out."""
        for run in runs:
            if run.last_round is not None:
                self._bring(run, run.last_round)

    def _bring(self, run: Run, last: int) -> None:
        name = run.key, run.attempt
        mark = self._marks.get(name) or self._tracker.mark(run)
        at = mark.round
        if last > mark.round:
            for new in points(self._engine, run, mark.round):
                self._tracker.write(run, new)
                at = new[-1].round
                self.rounds += len(new)
                self.runs.add(run.id)
        self._marks[name] = Mark(at, run.status)
        if self._marks[name] != mark:
            self._tracker.tell(run, self._marks[name])


def follow(deliver: Delivery, look: Callable[[], Sequence[Run]], every: float, patience: float) -> None:
    """Delivers what is new, again and again, until for `patience` seconds no run has been under way.

    A server that goes away is waited for as long as runs were under way when it was last there.
    """
    until = time.monotonic() + patience
    runs: Sequence[Run] = ()
    while True:
        with suppress(Unreachable):  # the next look may find it again
            runs = look()
            deliver(runs)
        now = time.monotonic()
        if any(run.status in UNDER_WAY for run in runs):
            until = now + patience
        elif now >= until:
            return
        time.sleep(every)


def read_mark(path: Path) -> Mark:
    """Of a file that `write_mark` wrote; nothing is marked where there is none."""
    try:
        return Mark(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Mark()
    except (ValueError, TypeError):
        raise UserError(f"{path} is damaged.", "Remove the folder that it lies in, and fill it again.") from None


def write_mark(path: Path, mark: Mark) -> None:
    make_folder(path.parent)
    write_text(path, json.dumps(asdict(mark)) + "\n")


def make_folder(folder: Path) -> None:
    """Raises UserError if it is not there and cannot be made, or not be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"Cannot write {folder}: {error.strerror or error}.", "Name another folder.") from None
    if not os.access(folder, os.W_OK):
        raise UserError(f"Cannot write {folder}: no permission.", "Name another folder.")
