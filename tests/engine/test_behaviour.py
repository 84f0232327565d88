"""Behaviour of clients (methods.md 2.14): closed forms, limiting cases, and numbers by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.cases import rest_slow

from pflbench import methods
from pflbench.contract.small import EXECUTORS, in_a_pack, tensors, train
from pflbench.contract.suite import federation, make
from pflbench.engine import behaviour, rng
from pflbench.engine import federation as federation_module
from pflbench.engine.behaviour import ClientClock, compressed, upload_bytes
from pflbench.engine.federation import PARAMS_DOWN, PARAMS_UP
from pflbench.methods import METHODS
from pflbench.run.round import CommunicationRound
from pflbench.spec import TrainSpec

COMPRESSING = [name for name in METHODS if not methods.load(name).upload_refused]
BUSY: dict[str, Any] = {"dropout": 0.4, "upload": "topk:0.1", "join_ratio_low": 0.4, "n": (13, 8, 21, 14, 6)}


def protocol(**fields: Any) -> TrainSpec:
    return TrainSpec(rounds=1, lr=0.1, **fields)


def apart(a: Any, b: Any) -> float:
    """The largest difference of two states."""
    return max(
        float((value.double() - tensors(b)[name].double()).abs().max()) for name, value in tensors(a).items() if value.numel()
    )


def test_join_ratios_are_uniform() -> None:
    """int(rho * 20) of rho from [0.3, 0.8) is 6, ..., 15, each as often; 16 and 5 never."""
    fed = federation("fedavg", n=(2,) * 20, join_ratio=0.8, join_ratio_low=0.3)
    sizes = [len(fed.cohort(t)) for t in range(1, 2001)]
    counts = np.bincount(sizes, minlength=21)
    assert counts[6:16].min() > 150
    assert counts[6:16].sum() == 2000
    assert np.mean(sizes) == pytest.approx(10.5, abs=0.25)
    assert {len(federation("fedavg", n=(2,) * 3, join_ratio=0.34, join_ratio_low=0.01).cohort(t)) for t in range(50)} == {1}


def test_failures_are_the_clients_own() -> None:
    found = np.stack([rng.failures(3, t, 10, 0.3) for t in range(3000)])
    assert found.mean(axis=0) == pytest.approx(np.full(10, 0.3), abs=0.03)
    more = np.stack([rng.failures(3, t, 10, 0.5) for t in range(3000)])
    assert (more >= found).all(), "who fails more easily fails in the same rounds as well"
    fed = federation("fedavg", n=(2,) * 10, join_ratio=0.5, dropout=0.3)
    for t in range(1, 20):
        this = CommunicationRound(make("fedavg"), fed, t)
        failed = rng.failures(fed.seed, t, 10, 0.3)
        assert this.survivors.tolist() == [client for client in this.S.tolist() if not failed[client]]


def test_speeds_are_log_uniform() -> None:
    logs = np.log10(rng.speeds(0, 20_000, 100))
    assert logs.min() > -2
    assert logs.max() <= 0
    assert np.histogram(logs, bins=10, range=(-2, 0))[0] == pytest.approx(np.full(10, 2000), rel=0.1)


def test_int8_is_off_by_at_most_half_a_step() -> None:
    d = (
        torch.randn(50, 1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        * torch.logspace(-8, 4, 50)[:, None]
    )
    d[3] = 0
    sent = compressed(protocol(upload="int8"), d)
    largest = d.abs().amax(dim=1)
    assert ((sent - d).abs().amax(dim=1) <= largest / 254 * (1 + 1e-9)).all()
    assert sent.abs().amax(dim=1) == pytest.approx(largest.numpy(), rel=1e-12)
    assert max(len(row.unique()) for row in sent) <= 255
    assert upload_bytes(protocol(upload="int8"), 1000, 4) == 1004


def test_topk_keeps_the_largest() -> None:
    sent = compressed(protocol(upload="topk:0.4"), torch.tensor([[1.0, -5, 2, 0, 4], [0, 0, 0, 0, -1]]))
    assert sent.tolist() == [[0, -5, 0, 0, 4], [0, 0, 0, 0, -1]]
    assert [upload_bytes(protocol(upload=f"topk:{share}"), 1000, 4) for share in (1, 0.01, 1e-6)] == [8000, 80, 8]
    assert upload_bytes(protocol(upload="topk:0.01"), 0, 4) == 0


@pytest.mark.parametrize(("upload", "what"), [("topk:0.05", "all"), ("int8", "all"), ("topk:0.05", "half")])
def test_what_is_not_sent_is_kept(upload: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every client: the sum of its changes is the sum of what was sent and what it still has. int8 keeps nothing."""
    fed = federation("fedavg", n=(13, 8, 21, 14), upload=upload, **({} if what == "all" else {"join_ratio": 0.5, "dropout": 0.3}))
    true, sent = torch.zeros(2, fed.size, fed.flat.size, dtype=torch.float64)
    collect = federation_module.Federation.collect

    def collected(self: Any, rows: Any, S: Any, *, since: Any = None, **more: Any) -> Any:
        got = collect(self, rows, S, since=since, **more)
        true.index_add_(0, S, rows - since)
        sent.index_add_(0, S, got - since)
        return got

    monkeypatch.setattr(federation_module.Federation, "collect", collected)
    train(make("fedavg"), fed, 6)
    left = fed.buffers.get("left out of upload 0", torch.zeros_like(true))
    assert (sent + left - true).abs().max() < (1e-12 if upload != "int8" else 0.01)
    assert bool(left.any()) == (upload != "int8")
    assert sent.any()


def test_control_variates_become_the_gradients_of_a_model_that_stands_still() -> None:
    """One batch a round at a rate of 1e-9: every gradient stays what it is, and is sent in ten rounds, a tenth in each."""
    whole, few = (federation("scaffold", n=(10, 10), lr=1e-9, upload=form) for form in ("full", "topk:0.1"))
    gradients = train(make("scaffold"), whole, 1).c_i
    assert float(gradients.abs().max()) > 0.1
    for rounds in (11, 30):
        assert float((train(make("scaffold"), few, rounds).c_i - gradients).abs().max()) < 1e-6
        few.buffers.clear()


def test_a_model_that_goes_on_from_its_own_arrives_once() -> None:
    """A client of PartialFed keeps all layers, 1 away from the server's, at a rate of 1e-9: in eleven rounds they are there."""
    fed, method = federation("partialfed", n=(10,), lr=1e-9, upload="topk:0.1"), make("partialfed")
    first = method.init(fed.at(0))
    keeps = first.strategy.a + torch.tensor([0.0, 1e3])
    state = replace(first, theta=first.theta + 1, strategy=replace(first.strategy, a=keeps))
    for _ in range(3):
        state = train(method, fed, 11, state)
        assert float((state.w - state.theta).abs().max()) < 1e-6


@pytest.mark.parametrize("name", rest_slow(COMPRESSING, "fedavg", "scaffold", "fedpac", "feddyn"))
def test_all_entries_are_the_whole_upload(name: str) -> None:
    few: dict[str, Any] = {"n": (12, 5, 9), "join_ratio": 0.7}
    whole, all_entries = (train(make(name), federation(name, **few, upload=form), 3) for form in ("full", "topk:1"))
    assert apart(whole, all_entries) < 1e-11
    assert apart(whole, train(make(name), federation(name, **few, upload="int8"), 3)) < 0.1


@pytest.mark.parametrize("name", [name for name in COMPRESSING if name not in ("scaffold", "local", "fedproto")])
def test_what_is_sent_is_the_change_of_what_was_received(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without training there is none: in a first round at a rate of 1e-9, from models that are far from 0."""
    seen = []
    monkeypatch.setattr(
        federation_module, "compressed", lambda train, change: seen.append(change) or behaviour.compressed(train, change)
    )
    train(make(name), federation(name, n=(12, 5, 9), lr=1e-9, upload="int8"), 1)
    assert seen
    assert max(float(change.abs().max()) for change in seen) < 1e-3


@pytest.mark.parametrize("upload", ["int8", "topk:0.1"])
def test_bytes_are_those_sent_and_parameters_those_meant(upload: str) -> None:
    fed = federation("scaffold", n=(12, 5, 9), join_ratio=0.7, upload=upload)
    this = CommunicationRound(make("scaffold"), fed, 1)
    this.update(this.receive(make("scaffold").init(fed)))
    P, joined = fed.flat.size, np.isin(np.arange(3), this.S)
    each = 2 * (P + 8 if upload == "int8" else int(0.1 * P) * 12)
    assert this.bytes_up.tolist() == (joined * each).tolist()
    assert this.traffic[:, PARAMS_UP].tolist() == (joined * 2 * P).tolist()
    assert this.bytes_down.tolist() == (joined * 2 * P * 8).tolist()


def test_failed_clients_have_not_trained() -> None:
    """FedAvg and Ditto: the mean of those that are left; the failed client's own model is the one that it had."""
    fed = federation("ditto", n=(13, 8, 21, 14, 6), dropout=0.4)
    whole = federation("ditto", n=(13, 8, 21, 14, 6))
    method = make("ditto")
    state, lost = method.init(fed.at(0)), 0
    for t in range(1, 5):
        this = CommunicationRound(method, fed, t)
        received = this.receive(state)
        state = this.update(received)
        failed = rng.failures(fed.seed, t, 5, 0.4)
        left = torch.from_numpy(np.flatnonzero(~failed))
        trained = method.train(whole.at(t), received, torch.arange(5))[left]
        expected = (fed.n[left] / fed.n[left].sum()) @ trained if len(left) else received.w
        assert torch.allclose(state.w, expected, rtol=0, atol=1e-12)
        assert [torch.equal(state.v[i], received.v[i]) for i in range(5)] == failed.tolist()
        assert this.traffic[:, PARAMS_DOWN].tolist() == [fed.flat.size] * 5
        assert this.traffic[:, PARAMS_UP].tolist() == (fed.flat.size * ~failed).tolist()
        lost += int(failed.sum())
    assert lost


@pytest.mark.parametrize("name", rest_slow(METHODS, "fedavg", "fedala", "fedfomo"))
def test_a_round_without_survivors_changes_nothing(name: str) -> None:
    fed = federation(name, n=(12, 5, 9), dropout=1 - 1e-12)
    this = CommunicationRound(make(name), fed, 1)
    received = this.receive(make(name).init(fed.at(0)))
    assert this.update(received) is received
    assert not this.traffic[:, PARAMS_UP].any()


@pytest.mark.parametrize("name", rest_slow(COMPRESSING, "fedavg", "fedala", "ditto"))
def test_executors_agree(name: str) -> None:
    found = {engine: federation(name, engine=engine, **BUSY) for engine in EXECUTORS}
    states = {engine: train(make(name), fed, 3) for engine, fed in found.items()}
    assert all(apart(states["loop"], state) < 1e-9 for state in states.values())
    packed = in_a_pack(
        [federation(name, engine="batched", seed=seed, **BUSY) for seed in (0, 1)], lambda fed: train(make(name), fed, 3)
    )
    assert apart(states["loop"], packed[0]) < 1e-9


@pytest.mark.parametrize(
    ("beyond_transfer", "upload", "left"),
    [(None, "int8", [0, 1]), (3.1, "full", [0, 1]), (2.9, "full", [0]), (0.9, "full", [])],
)
def test_seconds_by_hand(beyond_transfer: float | None, upload: str, left: list[int]) -> None:
    """P parameters of 8 bytes; training takes the clients 1 s and 3 s; a deadline, if there is one, after that of transfer."""
    how: dict[str, Any] = {"n": (12, 9), "bandwidth": 1000, "latency": 0.25, "upload": upload}
    P = federation("fedavg").flat.size
    of_transfer = 0.5 + (8 * P + (P + 8 if upload == "int8" else 8 * P)) / 1000
    deadline = None if beyond_transfer is None else of_transfer + beyond_transfer
    fed = federation("fedavg", **how, deadline=deadline)
    fed.clock = ClientClock(np.array([1.0, 3.0]), bandwidth=1000, latency=0.25)
    this = CommunicationRound(make("fedavg"), fed, 1)
    this.update(this.receive(make("fedavg").init(fed)))
    assert this.survivors.tolist() == left
    assert this.seconds_simulated == pytest.approx(of_transfer + 3 if len(left) == 2 else deadline, rel=1e-12)
    assert this.traffic[:, PARAMS_DOWN].tolist() == [P, P]


def test_defaults_are_no_part_of_a_key() -> None:
    plain = protocol().model_dump(mode="json")
    assert protocol(dropout=0, upload="full", slowest=1, latency=0, join_ratio_low=1).model_dump(mode="json") == plain
    assert protocol(upload="topk:0.010").upload == "topk:0.01"
    assert protocol(join_ratio_low=0.5).evaluate == "participants"
    assert protocol(join_ratio_low=0.5, evaluate="all").tests_outsiders
