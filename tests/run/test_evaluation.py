"""E1 where the join ratio is below 1 (methods.md 0.2, 2.2): one moment for all. The contract suite has the rest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from sqlalchemy import Engine
from support.runs import rows, run, spec
from support.spies import on_call
from torch import Tensor

from pflbench.contract.small import federation, train
from pflbench.engine.federation import Federation
from pflbench.methods.ala import ALA
from pflbench.methods.base import Method
from pflbench.methods.fedphp import FedPHP
from pflbench.run.round import HEADLINE, evaluate

SMALL: dict[str, Any] = {"join_ratio": 0.5, "evaluate": "all", "n": (12, 5, 9, 7)}


def moment(method: Method, fed: Federation) -> tuple[Any, Any, Any]:
    """The state after round 2's update, that after round 3's reception, and E1's scores."""
    state = train(method, fed, 1)
    state = method.update(fed.at(2), state, fed.cohort(2))
    now, S = fed.at(3), fed.cohort(3)
    received = method.receive(now, state, S)
    return state, received, evaluate(method, now, state, received, S)[HEADLINE]


def test_fedphp_s_moving_average_is_that_of_the_round() -> None:
    """hat-theta_i = (1 - mu_R) Theta + mu_R theta_i with R = 2 and T = 4, for everyone."""
    fed, method = federation(**SMALL), FedPHP(variant="fedala2022", mu=0.8)
    state, received, scores = moment(method, fed)
    expected = fed.evaluate((1 - 0.4) * state.w + 0.4 * state.start, torch.arange(fed.size))
    assert scores.loss == pytest.approx(expected.loss)
    assert fed.evaluate(received.start, torch.arange(fed.size)).loss != pytest.approx(expected.loss)


@dataclass(frozen=True)
class Met:
    theta: Tensor
    seen: Tensor


class Meeting(Method):
    """Clients are tested with the mean of those that they meet."""

    depends_on_cohort = True

    def init(self, fed: Federation) -> Met:
        theta = torch.arange(1.0, fed.size + 1, dtype=fed.dtype)[:, None] * fed.initial()
        return Met(theta, theta)

    def receive(self, fed: Federation, s: Met, S: Tensor) -> Met:
        return replace(s, seen=s.seen.index_copy(0, S, s.theta[S].mean(0).expand(len(S), -1)))

    def update(self, fed: Federation, s: Met, S: Tensor) -> Met:
        return s

    def deployed(self, s: Met) -> Tensor:
        return s.seen


def test_where_clients_meet_those_outside_the_cohort_meet_everyone() -> None:
    fed, method = federation(**SMALL), Meeting()
    state, now, S = method.init(fed), fed.at(1), fed.cohort(1)
    scores = evaluate(method, now, state, method.receive(now, state, S), S)[HEADLINE]
    tested = state.theta.mean(0).expand(fed.size, -1).index_copy(0, S, state.theta[S].mean(0).expand(len(S), -1))
    assert scores.loss == pytest.approx(fed.evaluate(tested, torch.arange(fed.size)).loss)


def test_a_client_that_cannot_train_is_tested_as_it_is() -> None:
    fed, method = federation(**{**SMALL, "n": (12, 0, 9, 7)}, tests=(3, 2, 0, 4)), FedPHP(variant="fedala2022")
    _, _, scores = moment(method, fed)
    assert scores.clients.tolist() == [0, 1, 3], "and one without test data is left out"
    assert scores.total.tolist() == [3, 2, 4]
    assert scores.loss[1] == pytest.approx(fed.evaluate(fed.initial(), torch.tensor([1])).loss[0])


# -- runs -------------------------------------------------------------------------------------------------------------


def test_a_run_s_training_and_cost_are_those_without_it(store: Engine) -> None:
    """Only what is tested is another; the issue's case, FedALA where ALA does nothing, is FedAvg."""
    few: dict[str, Any] = {"rounds": 2, "join_ratio": 0.5}
    apart, everyone, fedavg = (
        run(spec(name, set=options, evaluate=who, **few), store)[-1].run_id
        for name, options, who in (
            ("fedala", {"eta": "0"}, "participants"),
            ("fedala", {"eta": "0"}, "all"),
            ("fedavg", {}, "all"),
        )
    )
    cost = "SELECT round, train_loss, participants, params_up, params_down, bytes_up, bytes_down FROM round WHERE run_id = {}"
    assert rows(store, cost.format(apart)) == rows(store, cost.format(everyone))
    artifacts = "SELECT round, name, data FROM artifact WHERE run_id = {} ORDER BY 1, 2"
    assert rows(store, artifacts.format(apart)) == rows(store, artifacts.format(everyone))
    clients = "SELECT round, client, correct, total FROM client_round WHERE run_id = {} ORDER BY 1, 2"
    assert rows(store, clients.format(everyone)) == rows(store, clients.format(fedavg))
    assert set(rows(store, clients.format(apart))) < set(rows(store, clients.format(everyone)))
    loss = "SELECT round, loss FROM client_round WHERE run_id = {} ORDER BY round, client"
    assert rows(store, loss.format(everyone)) == [pytest.approx(r, abs=1e-9) for r in rows(store, loss.format(fedavg))]


def test_its_time_is_that_of_evaluation(store: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by a second for every client that is initialised: 2 of 5 in the cohort, the other 3 beside it."""
    now = [0.0]

    def initialise(ala: ALA, fed: Federation, a: Any, S: Tensor, *_: Any) -> None:
        now[0] += len(S)

    on_call(monkeypatch, ALA, "initialise", initialise)
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    run(spec("fedala", rounds=3, join_ratio=0.5, evaluate="all", eval_every=2), store)
    seconds = rows(store, "SELECT round, seconds_receive, seconds_update, seconds_evaluate FROM round ORDER BY round")
    assert [r[1:3] for r in seconds[1:]] == [(2, 0)] * 3
    assert [r[3] for r in seconds] == [3, None, 3, 3], "and there is none in a round without evaluation"


@pytest.mark.parametrize(
    ("name", "hyperparameters"),
    [("fedbabu", {}), ("fedavg-ft", {}), ("fedavg-c", {"finetune_affects_upload": "false"}), ("per-fedavg", {})],
)
def test_what_only_a_test_needs_costs_nothing_in_other_rounds(store: Engine, name: str, hyperparameters: dict[str, str]) -> None:
    """Fine-tuning that is never uploaded. The results of the rounds that are tested stay the same."""
    often, seldom = (
        run(spec(name, set=hyperparameters, rounds=5, join_ratio=0.5, eval_every=every), store)[-1].run_id for every in (1, 3)
    )
    clients = "SELECT round, client, correct, loss FROM client_round WHERE run_id = {} AND round IN (0, 3, 5) ORDER BY 1, 2"
    assert rows(store, clients.format(seldom)) == rows(store, clients.format(often))
    flops = "SELECT flops FROM round WHERE run_id = {} ORDER BY round"
    (_, *each), (_, *fewer) = ([value for (value,) in rows(store, flops.format(one))] for one in (often, seldom))
    # Row t has the cost of the reception before round t, which the test of row t - 1 follows.
    assert [a == b for a, b in zip(each, fewer, strict=True)] == [True, False, False, True, False]
    assert all(b < a for a, b in zip(each, fewer, strict=True) if a != b)
