"""A method's rounds outside the database, one at a time and phase by phase."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from pflbench.engine.federation import Federation
from pflbench.methods.base import Method
from pflbench.partition import Partition
from pflbench.run import evaluation
from pflbench.run.setting import Setting

RECEPTION, EVALUATION, UPDATE = PHASES = ("reception", "evaluation", "update")
"""Of a round, in order: download and local initialisation, test, local training and aggregation."""

UNTIMED = 2  # rounds before those that are measured: in the second, ALA has its initial stage

Within = Callable[[str], AbstractContextManager[None]]
"""What surrounds a phase, by its name."""


class Course:
    """A method on its way through the rounds, as in a run."""

    def __init__(self, method: Method, fed: Federation) -> None:
        self.fed, self.method, self.t = fed, method, 0
        self.state = self.method.init(fed.at(0))

    def round(self, within: Within) -> None:
        """The next round, each phase of it within `within(phase)`."""
        self.t += 1
        fed, method = self.fed.at(self.t), self.method
        S, before = fed.cohort(self.t), self.state
        with within(RECEPTION):
            self.state = method.receive(fed, before, S)
        with within(EVALUATION):
            evaluation.evaluate(method, fed, before, self.state, S)
        del before
        with within(UPDATE):
            fed.reset_buffers(S, method.shared_slots)
            self.state = method.update(fed, self.state, S)
            fed.average_buffers(S, method.shared_slots)

    def timed_round(self, clock: Callable[[], float] | None = None) -> dict[str, float]:
        """The next round: seconds of each phase, on the clock of its device or another one."""
        seconds: dict[str, float] = {}
        now = clock or self.fed.executor.clock

        @contextmanager
        def timed(phase: str) -> Iterator[None]:
            begun = now()
            yield
            seconds[phase] = now() - begun

        self.round(timed)
        return seconds


def cut(setting: Setting, share: float, least: int) -> Setting:
    """The setting with that share of every client's samples, at least `least` of each side where it has so many."""
    whole = setting.partition
    sides = ([part[: max(least, int(share * len(part)))] for part in side] for side in (whole.train, whole.test))
    return replace(setting, partition=Partition(*map(tuple, sides)))
