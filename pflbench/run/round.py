"""The round (methods.md 0.2): reception, evaluation and update. Runs, measurements and tests of methods all use it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflbench.engine import rng
from pflbench.engine.behaviour import upload_bytes
from pflbench.engine.evaluation import Scores
from pflbench.engine.federation import PARAMS_DOWN, PARAMS_UP, SCALARS_DOWN, SCALARS_UP, Federation
from pflbench.engine.flat import put
from pflbench.errors import Diverged, UserError
from pflbench.methods.base import Method

RECEPTION, EVALUATION, UPDATE = PHASES = ("reception", "evaluation", "update")
"""In order: download and local initialisation; test; local training and aggregation."""

HEADLINE = ""  # among the series
VALIDATION = "validation"  # the headline's models on validation samples, among the results of a test
CENTRAL = "central"


class CommunicationRound:
    """Round t of a method. Call its phases in order, each at most once; the state goes in and comes out.

    S: the cohort. reception, training: the federation in this round, each with a ledger of its own, since the arrays of reception
    belong to E1. seconds, flops: by phase, on the executor's clock and by its count (None: not counted).
    """

    def __init__(self, method: Method, fed: Federation, t: int) -> None:
        self.method, self.t, self.S = method, t, fed.cohort(t)
        self.reception, self.training = fed.at(t, receiving=True), fed.at(t)
        self.seconds: dict[str, float] = {}
        self.flops: dict[str, float | None] = {}

    def receive(self, state: Any) -> Any:
        """Server -> clients: download and local initialisation."""
        with self._measured(RECEPTION):
            received = self.method.receive(self.reception, state, self.S)
        while self.reception.ledger.deferred:  # each holds models, which must not stay until the round ends
            self.reception.ledger.deferred.pop()()
        return received

    def evaluate(
        self, before: Any, received: Any, central: NDArray[Any] | None = None
    ) -> tuple[dict[str, Scores], dict[str, tuple[float, float]]]:
        """E1, from the states before and after reception (`evaluate` below), and the test on central samples, if any."""
        with self._measured(EVALUATION):
            scores = evaluate(self.method, self.reception, before, received, self.S)
            return scores, evaluate_central(self.method, self.reception, received, central)

    def update(self, state: Any) -> Any:
        """Local training, upload and aggregation, between the protocol's two steps for BatchNorm buffers (methods.md 4.3).

        Of clients that fail, or are late, it is as if they had not trained (2.14).
        """
        fed, models = self.training, self.method.shared_models
        fed.executor.begin_round(self.t)
        with self._measured(UPDATE):
            S = self.survivors
            if len(S):
                fed.reset_buffers(S, models)
                state = self.method.update(fed, state, S)
                fed.average_buffers(S, models)
            return state

    def evaluate_trained(self, received: Any, updated: Any) -> Scores:
        """The cohort's models right after local training, before they receive anything, on their own test data (methods.md 2.10).

        received, updated: the state before and after `update`. A client's personal models, if the round has trained them; else
        the local models before aggregation.
        """
        models, which, fed = self.method.deployed(updated), self.method.tested_model, self.training
        if fed.ledger.trained is not None and (models.dim() == 1 or models is self.method.deployed(received)):
            models, which = put(fed.everyone(fed.initial()), self.survivors, fed.ledger.trained), "model"
        return fed.evaluate(models, self.survivors, which)

    @cached_property
    def survivors(self) -> Tensor:
        """The clients of S whose training reaches the server; known after reception."""
        fed, protocol = self.training, self.training.protocol
        if not protocol.dropout and protocol.deadline is None:
            return self.S
        lost = rng.failures(fed.seed, self.t, fed.size, protocol.dropout) | self._late
        return self.S[torch.from_numpy(~lost).to(fed.device)[self.S]]

    @cached_property
    def _late(self) -> NDArray[np.bool_]:
        """[N]: whose round would end after the deadline, by what is known after reception.

        An upload is taken to be as large as what the client received, at most one model.
        """
        fed, protocol, word = self.training, self.training.protocol, self.training.dtype.itemsize
        if fed.clock is None or protocol.deadline is None:
            return np.zeros(fed.size, dtype=np.bool_)
        parameters, scalars = self.reception.ledger.traffic[:, [PARAMS_DOWN, SCALARS_DOWN]].T
        up = [upload_bytes(protocol, width, word) for width in parameters.clip(max=fed.flat.size).tolist()]
        return fed.clock.seconds(word * (parameters + scalars), np.array(up) + word * scalars) > protocol.deadline

    @property
    def seconds_simulated(self) -> float | None:
        """The time of the slowest client of S, of a late one the deadline; None without a clock."""
        fed = self.training
        if fed.clock is None:
            return None
        seconds = fed.clock.seconds(self.bytes_down, self.bytes_up)
        seconds[self._late] = fed.protocol.deadline or 0.0
        return float(seconds[self.S.cpu().numpy()].max())

    @property
    def bytes_up(self) -> NDArray[np.int64]:
        """What each client sent so far, [N]."""
        return self._bytes(PARAMS_UP, SCALARS_UP) - self.training.ledger.spared

    @property
    def bytes_down(self) -> NDArray[np.int64]:
        """What each client received so far, [N]."""
        return self._bytes(PARAMS_DOWN, SCALARS_DOWN)

    def _bytes(self, *counters: int) -> NDArray[np.int64]:
        return np.asarray(self.training.dtype.itemsize * self.traffic[:, counters].sum(axis=1))

    @property
    def traffic(self) -> NDArray[np.int64]:
        """What each client sent and received so far, [N, 4], in the order of COUNTERS."""
        return self.reception.ledger.traffic + self.training.ledger.traffic

    def take_over(self, seconds: float, flops: float | None, traffic: Sequence[Sequence[int]]) -> None:
        """Takes over the cost of a reception from a checkpoint."""
        self.seconds[RECEPTION], self.flops[RECEPTION] = seconds, flops
        self.reception.ledger.traffic[:] = traffic

    @contextmanager
    def _measured(self, phase: str) -> Iterator[None]:
        executor = self.training.executor
        executor.begin_phase()
        begun, before = executor.clock(), executor.flops
        yield
        self.seconds[phase] = executor.clock() - begun
        counted = executor.flops
        self.flops[phase] = None if counted is None or before is None else counted - before


def rounds(
    method: Method, fed: Federation, untested: Container[int] = ()
) -> Iterator[tuple[CommunicationRound, dict[str, Scores], Any]]:
    """Whole rounds without a database: yields each round, its E1 (none if t is in `untested`) and the state after it."""
    state = method.init(fed.at(0))
    for t in count(1):
        this = CommunicationRound(method, fed, t)
        this.reception.test_follows = t not in untested
        before, state = state, this.receive(state)
        scores = this.evaluate(before, state)[0] if this.reception.test_follows else {}
        del before  # a state is large
        state = this.update(state)
        yield this, scores, state


# -- E1: the models that clients would use now, each tested on its own test data (methods.md 0.2, 2.1) --------------------


def evaluate(method: Method, fed: Federation, before: Any, received: Any, S: Tensor) -> dict[str, Scores]:
    """Scores of the models of `method.deployed`, under HEADLINE, and of each of the method's series; with validation samples the
    headline's on them, under VALIDATION.

    before, received: the state before and after `method.receive(fed, before, S)`. Neither they nor `fed` are changed. If the
    method's test is random, the scores are sums over the protocol's `eval_repeats` readings.
    """
    found: dict[str, list[Scores]] = defaultdict(list)
    for where, state, clients in _readings(method, fed, before, received, S):
        if len(fed.validation_indices):
            found[VALIDATION].append(where.validating().evaluate(method.deployed(state), clients, method.tested_model))
        for name, (models, which) in {HEADLINE: (method.deployed(state), method.tested_model), **method.series(state)}.items():
            found[name].append(where.evaluate(models, clients, which))
    return {name: Scores.joined(scores) for name, scores in found.items()}


def logits(method: Method, fed: Federation, before: Any, received: Any, S: Tensor) -> dict[int, np.ndarray]:
    """By client the logits of its test samples [n_i, K], in the first reading of the test under HEADLINE of `evaluate`."""
    found: dict[int, np.ndarray] = {}
    for where, state, clients in _tested(method, fed, before, received, S):
        found |= where.logits(method.deployed(state), clients, method.tested_model)
    return found


def _readings(method: Method, fed: Federation, before: Any, received: Any, S: Tensor) -> Iterator[tuple[Federation, Any, Tensor]]:
    """As `_tested`, once for each reading: further ones receive anew in scratch copies, with other random numbers."""
    yield from _tested(method, fed, before, received, S)
    for reading in range(1, fed.protocol.eval_repeats if method.random_test else 1):
        scratch = fed.scratch_copy()
        scratch.seed = rng.derived_seed(fed.seed, "reading", reading)
        again = method.receive(scratch, before, S)
        yield from _tested(method, scratch, before, again, S)


def _tested(method: Method, fed: Federation, before: Any, received: Any, S: Tensor) -> Iterator[tuple[Federation, Any, Tensor]]:
    """Yields federation, state and the clients to test with it. Clients outside the cohort receive in a scratch copy.

    So all clients are tested at the same moment, and the test changes nothing. A client without training data never receives.
    """
    if fed.protocol.evaluate == "participants":
        yield fed, received, S
        return
    everyone = torch.arange(fed.size, device=fed.device)
    candidates = fed.all_trainable()
    others = candidates[~torch.isin(candidates, S)]
    yield fed, received, everyone[~torch.isin(everyone, others)]
    if len(others):
        scratch = fed.scratch_copy()
        # If reception depends on the cohort, all clients receive; the cohort's own results are not used.
        yield scratch, method.receive(scratch, before, candidates if method.depends_on_cohort else others), others


def evaluate_central(method: Method, fed: Federation, state: Any, samples: np.ndarray | None) -> dict[str, tuple[float, float]]:
    """The series CENTRAL: accuracy and mean loss of the global model on the dataset's official test part (methods.md 1.16).

    Raises Diverged for a loss that is not finite.
    """
    if samples is None:
        return {}
    found = global_model(method, state)
    assert found is not None, "the method was asked before the run"
    model, which = found
    accuracy, loss = fed.evaluate_central(model, samples, which)
    if not math.isfinite(loss):
        raise Diverged(f"the global model has a non-finite loss on the central test set before training in round {fed.t}")
    return {CENTRAL: (accuracy, loss)}


def global_model(method: Method, state: Any) -> tuple[Tensor, str] | None:
    """The model [P] that all clients use, else that of the series "global", with the name of its buffers; None without one."""
    models, which = method.deployed(state), method.tested_model
    if models.dim() != 1:
        models, which = method.series(state).get("global", (models, which))
    return (models, which) if models.dim() == 1 else None


def require_global_model(name: str, method: Method, state: Any) -> None:
    """Raises UserError for a method without a global model in its state."""
    if global_model(method, state) is None:
        raise UserError(
            f"{name} has no single global model that --central-test could test.",
            f"Leave out --central-test, or -m {name}.",
        )
