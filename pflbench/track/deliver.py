"""Sends new rounds to a tracker, once. It reads committed rounds, so that no run waits for it.

A `Mark`, stored with the tracker, says which rounds the tracker has. It is set after these rounds were sent.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
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
    """The last round of a run that a tracker has (-1: none), and the last status."""

    round: int = -1
    status: str = ""


class Tracker(Protocol):
    """A tracker of experiments. Key and attempt identify a run."""

    def mark(self, run: Run) -> Mark:
        """What the tracker has of a run."""

    def write(self, run: Run, new: Sequence[TrackedRound]) -> None:
        """Writes rounds in ascending order, all after the mark."""

    def tell(self, run: Run, mark: Mark) -> None:
        """Writes the run's status and the mark. Closes a run that is not under way."""

    def close(self) -> None:
        """Closes all runs."""


class Delivery:
    """Brings a tracker up to date at each call. It reads each mark from the tracker once.

    rounds: the number of rounds sent so far. runs: the numbers of their runs.
    """

    def __init__(self, engine: Engine, tracker: Tracker) -> None:
        self._engine, self._tracker = engine, tracker
        self._marks: dict[tuple[str, int], Mark] = {}
        self.rounds = 0
        self.runs: set[int] = set()

    def __call__(self, runs: Sequence[Run]) -> None:
        """Sends what is new of these runs, which have their current status; runs without a round are left out."""
        for run in runs:
            if run.last_round is not None:
                self._send(run, run.last_round)

    def _send(self, run: Run, last: int) -> None:
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
    """Delivers what is new every `every` seconds, until no run has been under way for `patience` seconds.

    look: reads the runs. While the server is away, the runs count as before.
    """
    until = time.monotonic() + patience
    runs: Sequence[Run] = ()
    while True:
        with suppress(UserError):  # there are no such runs yet, or the server is away
            runs = look()
        with suppress(Unreachable):
            deliver(runs)
        now = time.monotonic()
        if any(run.status in UNDER_WAY for run in runs):
            until = now + patience
        elif now >= until:
            return
        time.sleep(every)


@contextmanager
def friendly(tracker: str, errors: tuple[type[Exception], ...], hint: str) -> Iterator[None]:
    """Turns errors of a tracker's library into UserErrors with their first line."""
    try:
        yield
    except errors as error:
        first = str(error).strip().splitlines()[0][:250].removesuffix(".")
        raise UserError(f"{tracker}: {first}.", f"What was delivered stays; the same command goes on. {hint}") from None


def read_mark(path: Path) -> Mark:
    """Reads a file of `write_mark`; without a file there are no rounds."""
    try:
        return Mark(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Mark()
    except (ValueError, TypeError):
        raise UserError(f"{path} is damaged.", "Remove it: then all rounds of its run are sent again.") from None


def write_mark(path: Path, mark: Mark) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(asdict(mark)) + "\n")
