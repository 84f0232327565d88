"""The round (methods.md 0.2): reception, evaluation and update. Runs, measurements and tests of methods all use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflbench.engine.evaluation import Scores
from pflbench.engine.federation import Federation
from pflbench.methods.base import Method
from pflbench.run import testing as evaluation

RECEPTION, EVALUATION, UPDATE = PHASES = ("reception", "evaluation", "update")
"""In order: download and local initialisation; test; local training and aggregation."""

Within = Callable[[str], AbstractContextManager[None]]
"""Gives the context manager around a phase, by its name."""


class CommunicationRound:
    """Round t of a method. Call its phases in order, each at most once; the state goes in and comes out.

    S: the cohort. reception, training: the federation in this round, each with a ledger of its own, since the arrays of reception
    belong to E1. seconds: by phase, on the executor's clock. within: replaces the measurement of seconds.
    """

    def __init__(self, method: Method, fed: Federation, t: int, within: Within | None = None) -> None:
        self.method, self.t, self.S = method, t, fed.cohort(t)
        self.reception, self.training = fed.at(t, receiving=True), fed.at(t)
        self.seconds: dict[str, float] = {}
        self._within = within or self._timed

    def receive(self, state: Any) -> Any:
        """Server -> clients: download and local initialisation."""
        with self._within(RECEPTION):
            return self.method.receive(self.reception, state, self.S)

    def evaluate(
        self, before: Any, received: Any, central: NDArray[Any] | None = None
    ) -> tuple[dict[str, Scores], dict[str, tuple[float, float]]]:
        """E1, from the states before and after reception (`evaluation.evaluate`), and the test on central samples, if any."""
        with self._within(EVALUATION):
            scores = evaluation.evaluate(self.method, self.reception, before, received, self.S)
            return scores, evaluation.evaluate_central(self.method, self.reception, received, central)

    def update(self, state: Any) -> Any:
        """Local training, upload and aggregation, between the protocol's two steps for BatchNorm buffers (methods.md 4.3)."""
        fed, models = self.training, self.method.shared_models
        fed.executor.begin_round(self.t)
        with self._within(UPDATE):
            fed.reset_buffers(self.S, models)
            state = self.method.update(fed, state, self.S)
            fed.average_buffers(self.S, models)
            return state

    @property
    def traffic(self) -> NDArray[np.int64]:
        """What each client sent and received so far, [N, 4], in the order of COUNTERS."""
        return self.reception.ledger.traffic + self.training.ledger.traffic

    def take_over(self, seconds: float, traffic: Sequence[Sequence[int]]) -> None:
        """Takes over the cost of a reception from a checkpoint."""
        self.seconds[RECEPTION] = seconds
        self.reception.ledger.traffic[:] = traffic

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        begun = self.training.executor.clock()
        yield
        self.seconds[phase] = self.training.executor.clock() - begun


def rounds(method: Method, fed: Federation, within: Within | None = None) -> Iterator[tuple[dict[str, float], Any]]:
    """Whole rounds without a database: yields the seconds by phase and the state after each round."""
    state = method.init(fed.at(0))
    for t in count(1):
        this = CommunicationRound(method, fed, t, within)
        before, state = state, this.receive(state)
        this.evaluate(before, state)
        del before  # a state is large
        state = this.update(state)
        yield this.seconds, state
