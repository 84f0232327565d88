"""What must hold of every run, whatever its method and its federation: looked at while it goes on, and of what it has stored."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from sqlalchemy import Engine
from support.made import Case
from support.runs import rows

from pflbench.engine.federation import COUNTERS, Federation
from pflbench.methods.ala import AlaState
from pflbench.run import training as loop
from pflbench.run.checkpoint import tensors
from pflbench.run.round import CommunicationRound
from pflbench.store import arrays, rounds, runs

# Of arrays that methods observe: those whose rows sum to one, those with entries in [0, 1]. Clients that one says nothing of are
# NaN there.
SUM_TO_ONE = {"attention", "fomo_weights", "strategies"}
SHARES = {"ala_weights", "attention_zero_rows", "fomo_weights", "strategies"}
ROUNDING = 1e-5


@dataclass
class Seen:
    """What a run does while it goes on: the cohorts by round, the parameters of a model, and how many of them travel or are the
    user's model.
    """

    cohort: dict[int, list[int]] = field(default_factory=dict)
    size: int = 0
    shared: int = 0
    net: int = 0


@contextmanager
def watched(case: Case) -> Iterator[Seen]:
    """Sees to it that rounds change nothing of those who have no part in them, and that means are means."""
    seen, mean = Seen(), Federation.mean

    class Watched(CommunicationRound):
        def receive(self, state: Any) -> Any:
            fed, cohort = self.reception, self.S.tolist()
            seen.cohort[self.t], seen.size, seen.net = cohort, fed.flat.size, fed.flat.head.stop
            seen.shared = len(torch.arange(fed.flat.size)[self.method.shared(fed)])
            receiving = receivers(case, cohort)
            # A row of what clients start from may still be that of the round before.
            with others_untouched(fed, state, {*receiving, *seen.cohort.get(self.t - 1, ())}) as result:
                result.append(super().receive(state))
            return result[0]

        def update(self, state: Any) -> Any:
            with others_untouched(self.training, state, set(self.S.tolist()), self.method.shared_models) as result:
                result.append(super().update(state))
            return result[0]

    def among(fed: Federation, of: torch.Tensor, S: torch.Tensor, aggregation: str = "weighted") -> torch.Tensor:
        found, shares = mean(fed, of, S, aggregation), fed.shares(S)
        assert (shares >= 0).all()
        assert float(shares.sum()) == pytest.approx(1, abs=ROUNDING)
        slack = ROUNDING * (1 + of.abs().amax(0))
        assert ((found >= of.amin(0) - slack) & (found <= of.amax(0) + slack)).all(), "a mean lies among what it is of"
        return found

    with patch.object(loop, "CommunicationRound", Watched), patch.object(Federation, "mean", among):
        yield seen


def receivers(case: Case, cohort: list[int]) -> list[int]:
    """Whom a reception may change: with ala_all everyone who has data."""
    if case.spec.method.hyperparameters.get("ala_all"):
        return [i for i, own in enumerate(case.partition.train) if len(own)]
    return cohort


@contextmanager
def others_untouched(fed: Federation, before: Any, clients: set[int], shared_models: Sequence[str] = ()) -> Iterator[list[Any]]:
    """Of a phase, whose new state is put into the list: clients that are not in it keep their rows and buffers, bit for bit."""
    outside = [i for i in range(fed.size) if i not in clients]
    averaged = fed.protocol.bn_buffers == "average"  # then those of shared models are the server's
    buffers = {
        which: value[outside].clone() for which, value in fed.buffers.items() if which not in shared_models or not averaged
    }
    old = {name: value[outside].clone() for name, value in tensors(before).items() if _by_client(value, fed)}
    result: list[Any] = []
    yield result
    for name, value in tensors(result[0]).items():
        if _by_client(value, fed):
            assert _bits(value[outside]) == _bits(old[name]), f"{name} of a client that takes no part"
    for which, value in buffers.items():
        assert _bits(fed.buffers[which][outside]) == _bits(value), f"buffers of '{which}' of a client that takes no part"
    for part in (result[0], *vars(result[0]).values()):
        if isinstance(part, AlaState):
            assert ((part.W >= 0) & (part.W <= 1)).all(), "ALA's W leaves [0, 1]"


def _by_client(value: torch.Tensor, fed: Federation) -> bool:
    return value.dim() > 0 and len(value) == fed.size


def _bits(value: torch.Tensor) -> bytes:
    return value.contiguous().numpy().tobytes()


def check_numbers(store: Engine) -> None:
    """Every number is finite. SQLite keeps no NaN: it would be NULL, where a loss or an accuracy must be."""
    for table in ("round", "client_round", "series"):
        for row in rows(store, f"SELECT * FROM {table}"):
            assert all(math.isfinite(value) for value in row if isinstance(value, int | float)), (table, row)
    assert not rows(store, "SELECT * FROM client_round WHERE loss IS NULL OR correct NOT BETWEEN 0 AND total")
    assert not rows(store, "SELECT * FROM series WHERE accuracy IS NULL OR test_loss IS NULL")
    assert not rows(store, "SELECT * FROM round WHERE accuracy IS NOT NULL AND test_loss IS NULL")


def every_array(store: Engine, run_id: int, name: str) -> dict[int, np.ndarray]:
    """By round."""
    return arrays.read(store, run_id, name, arrays.rounds(store, [run_id], [name])[run_id, name])


def check_arrays(case: Case, store: Engine, run_id: int) -> None:
    """What methods observe has no infinite number; weights are what they are called."""
    clipped = case.spec.method.hyperparameters.get("xi_clip", True)
    for _, kind in arrays.rounds(store, [run_id]):
        for array in every_array(store, run_id, kind).values():
            known = array[~np.isnan(array)]
            assert np.isfinite(known).all(), kind
            if kind in SUM_TO_ONE:
                whole = np.nansum(array, axis=-1)[~np.isnan(array).all(axis=-1)]
                assert whole == pytest.approx(np.ones_like(whole), abs=ROUNDING), kind
            if kind in SHARES or (kind == "attention" and clipped):
                assert ((known >= -ROUNDING) & (known <= 1 + ROUNDING)).all(), kind


def sent(case: Case, seen: Seen, t: int) -> tuple[int, int]:
    """Parameters that each who receives in round t downloads, and that each of the cohort uploads (methods.md 1.18)."""
    name, P = case.spec.method.name.removesuffix("+ala"), seen.size
    N = sum(len(own) > 0 for own in case.partition.train)  # an empty client has no part in anything
    if name == "fedfomo":
        there = len({client for earlier in range(1, t) for client in seen.cohort[earlier]})
        most = case.spec.method.hyperparameters["M"]
        return P * (there if most == "all" else min(int(str(most)), there)), P
    own = {"local": (0, 0), "elastic": (P, 2 * P), "apple": (N * P, P), "scaffold": (2 * P, 2 * P)}
    own["fedpac"] = seen.net, seen.net
    return own.get(name, (seen.shared, seen.shared))


def check_rounds(case: Case, seen: Seen, store: Engine, run_id: int) -> None:
    """Of every round who was tested and what that gives together, what was sent and by whom; best and last of the run."""
    train, tests = case.spec.train, [len(own) for own in case.partition.test]
    with_data = sum(len(own) > 0 for own in case.partition.train)
    found = rounds.newest_rows(store, run_id, train.rounds + 1)
    assert [row["round"] for row in found] == [*range(train.rounds + 1)]
    traffic = every_array(store, run_id, "traffic")
    for row in found:
        t = row["round"]
        assert len(seen.cohort[t + 1]) == min(int(train.join_ratio * len(tests)), with_data)
        tested = [i for i in (range(len(tests)) if train.evaluate == "all" else seen.cohort[t + 1]) if tests[i]]
        evaluated = (t % train.eval_every == 0 or t == train.rounds) and bool(tested)
        assert (row["accuracy"] is not None) == evaluated
        if evaluated:
            check_tests(row, rounds.clients(store, run_id, t), {i: tests[i] for i in tested})
        if t > 0:
            check_traffic(case, row, traffic[t], seen.cohort[t], sent(case, seen, t))
    best = max((row["accuracy"] for row in found if row["accuracy"] is not None), default=None)
    run, history = runs.find(store, run_id), rounds.history(store, run_id)
    assert (run.status, run.last_round, run.best) == ("finished", train.rounds, best)
    assert best is None or np.nanmax(history.accuracy) == best


def check_tests(row: dict[str, Any], clients: rounds.Clients, tests: dict[int, int]) -> None:
    """tests: how many test samples each has who is tested."""
    assert dict(zip(clients.client.tolist(), clients.total.tolist(), strict=True)) == tests
    share = [correct / total for correct, total in zip(clients.correct.tolist(), clients.total.tolist(), strict=True)]
    assert row["accuracy"] == int(clients.correct.sum()) / sum(tests.values())
    assert row["test_loss"] == pytest.approx(math.fsum(clients.loss) / sum(tests.values()))
    assert row["accuracy_mean"] == pytest.approx(math.fsum(share) / len(share))
    assert row["accuracy_std"] == pytest.approx(np.std(share), abs=1e-12)


def check_traffic(case: Case, row: dict[str, Any], traffic: np.ndarray, cohort: list[int], each: tuple[int, int]) -> None:
    """traffic: of each client, in the order of COUNTERS. each: as `sent`."""
    word = 8 if case.spec.train.dtype == "float64" else 4
    expected = np.zeros((len(traffic), 2), dtype=np.int64)
    expected[receivers(case, cohort), 1], expected[cohort, 0] = each
    assert traffic[:, :2].tolist() == expected.tolist()
    beside = traffic if case.spec.method.name != "feddbe" else traffic[:, :2]  # before round 1 all its clients send a mean
    assert not beside[[i for i in range(len(traffic)) if i not in {*cohort, *receivers(case, cohort)}]].any()
    assert [row[name] for name in COUNTERS] == traffic.sum(axis=0).tolist()
    assert row["participants"] == len(cohort)
    assert row["bytes_up"] == word * (row["params_up"] + row["scalars_up"])
    assert row["bytes_down"] == word * (row["params_down"] + row["scalars_down"])
