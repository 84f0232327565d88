"""Limiting cases in which a method must turn into another one, and the options of FedALA."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from support.cases import rest_slow

from pflbench import methods
from pflbench.contract.small import EXECUTORS, federation, train
from pflbench.engine.federation import Federation
from pflbench.engine.flat import Flat
from pflbench.errors import UserError
from pflbench.methods import METHODS
from pflbench.methods.ditto import Ditto
from pflbench.methods.fedala import FedALA
from pflbench.methods.fedavg import FedAvg
from pflbench.methods.fedprox import FedProx
from pflbench.methods.local import Local

engines = pytest.mark.parametrize("engine", EXECUTORS[:2])


def close(a, b, tolerance=1e-12):
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


@engines
def test_fedprox_without_its_term_is_fedavg(engine):
    close(train(FedProx(mu=0), federation(engine=engine)).w, train(FedAvg(), federation(engine=engine)).w, 0)


@engines
def test_fedprox_with_one_batch_per_round_is_fedavg(engine):
    one = {"n": (5, 5, 5), "engine": engine}
    close(train(FedProx(mu=0.5), federation(**one)).w, train(FedAvg(), federation(**one)).w, 0)


@engines
def test_ditto_without_its_term_is_local_training_beside_fedavg(engine):
    state = train(Ditto(lam=0, personal_epochs=1), federation(engine=engine))
    close(state.w, train(FedAvg(), federation(engine=engine)).w, 0)
    # Same data, same number of steps, other batches: the branches draw their own order.
    assert (state.v - train(Local(), federation(engine=engine)).theta).abs().max() > 1e-6
    tied = train(Ditto(lam=9.9, personal_epochs=1), federation(engine=engine))
    assert (tied.v - tied.w).norm() < (state.v - state.w).norm() / 2


@engines
def test_fedala_that_does_not_learn_its_weights_is_fedavg(engine):
    still = train(FedALA(eta=0, p=2), federation(engine=engine))
    close(still.w, train(FedAvg(), federation(engine=engine)).w)
    close(still.theta, still.w.expand_as(still.theta))


@engines
def test_fedala_before_its_start_round_is_fedavg(engine):
    late = train(FedALA(start_round=4), federation(engine=engine), 2)
    close(late.w, train(FedAvg(), federation(engine=engine), 2).w, 0)
    assert not late.ala.started.any()
    assert train(FedALA(start_round=4), federation(engine=engine), 3).ala.started.all()


def test_lower_blocks_are_overwritten_and_weights_stay_within_bounds():
    fed, method = federation(), FedALA(eta=50.0)
    before = method.update(fed.at(3), train(method, fed, 2), fed.cohort(3))
    state = method.receive(fed.at(4), before, fed.cohort(4))
    up = fed.flat.blocks[0].start
    close(state.theta[:, :up], state.w[:up].expand(fed.size, -1), 0)
    assert state.ala.W.min() >= 0
    assert state.ala.W.max() <= 1
    assert 0 < (state.ala.W < 1).double().mean() < 1
    mixed = before.theta + (before.w - before.theta) * torch.nn.functional.pad(state.ala.W, (up, 0), value=1.0)
    close(state.theta, mixed)


def test_without_adaptation_the_weights_stay_as_the_initial_stage_left_them():
    fed, method = federation(), FedALA(adapt=False)
    second = train(method, fed, 1)
    fourth = train(method, fed, 2, second, start=2)
    assert torch.equal(second.ala.W, fourth.ala.W)
    assert not torch.equal(train(FedALA(), federation(), 1).ala.W, train(FedALA(), federation(), 3).ala.W)


def init_epochs(method, fed, t=2):
    state = train(method, fed, t - 2) if t > 2 else method.receive(fed.at(1), method.init(fed), fed.cohort(1))
    state = method.update(fed.at(t - 1), state, fed.cohort(t - 1))
    now = fed.at(t)
    method.receive(now, state, now.cohort(t))
    return now.ledger.artifacts["ala_init_epochs"]


@engines
def test_the_initial_stage_ends_at_convergence_or_at_its_cap(engine):
    fed = federation(engine=engine)
    assert init_epochs(FedALA(threshold=1e9), fed).tolist() == [11] * fed.size
    assert init_epochs(FedALA(threshold=0, max_init_epochs=17), fed).tolist() == [17] * fed.size
    assert init_epochs(FedALA(threshold=1e9, min_epochs=14), fed).tolist() == [14] * fed.size


def counting(monkeypatch) -> list[int]:
    calls: list[int] = []
    original = Federation.scan

    def spy(self, step, loop, **arguments):
        calls.append(len(loop.clients))
        return original(self, step, loop, **arguments)

    monkeypatch.setattr(Federation, "scan", spy)
    return calls


@pytest.mark.parametrize("epochs", [1, 6])
def test_after_the_initial_stage_min_epochs_are_walked(epochs, monkeypatch):
    fed, method = federation(), FedALA(min_epochs=epochs, threshold=1e9)
    state = train(method, fed, 1)
    calls = counting(monkeypatch)
    train(method, fed, 1, state, start=2)
    assert calls == [fed.size] * epochs


@pytest.mark.parametrize("contiguous", [False, True])
def test_the_subset(contiguous):
    fed = federation(n=(40, 3, 1)).at(3)
    S = fed.cohort(3)
    for percent, sizes in ((80, [32, 2, 1]), (5, [2, 1, 1]), (100, [40, 3, 1])):
        chosen = fed.subset(S, percent, contiguous)
        assert [len(c) for c in chosen] == sizes
        for mine, all_of_them in zip(chosen, fed.train_indices, strict=True):
            assert len(set(mine)) == len(mine)
            assert set(mine) <= set(all_of_them)
            if contiguous:
                assert (np.diff(mine) == 1).all()
        assert not np.array_equal(chosen[0], fed.at(4).subset(S, percent, contiguous)[0]) or (percent == 100 and contiguous)


def test_a_contiguous_subset_of_80_percent_always_holds_the_middle():
    fed, starts = federation(n=(40,)), set()
    for t in range(1, 60):
        chosen = fed.at(t).subset(fed.cohort(t), 80, contiguous=True)[0]
        starts.add(int(chosen[0]))
        assert set(range(8, 32)) <= set(chosen.tolist())
    assert starts == set(range(9)), "the start is uniform over 0..n - m, both ends included"


@engines
@pytest.mark.parametrize("model", rest_slow(["mlp", "batchnorm", "cnn", "fasttext"], "mlp", "cnn"))
def test_running_the_frozen_layers_once_changes_nothing(model, engine, monkeypatch):
    """p = 1 walks on the features; the same with the whole model, as for larger p, must give the same weights."""
    quick = train(FedALA(), federation(model, engine, n=(13, 8, 11, 14)), 2)
    monkeypatch.setattr(Flat, "has_features", False)
    whole = train(FedALA(), federation(model, engine, n=(13, 8, 11, 14)), 2)
    close(quick.ala.W, whole.ala.W, 1e-10)
    close(quick.theta, whole.theta, 1e-10)


def test_ala_all_also_overwrites_those_outside_the_cohort():
    """The reference's way: every client runs ALA in every round."""
    fed, method = federation(join_ratio=0.5), FedALA(ala_all=True)
    state = train(method, fed, 2)
    later = fed.at(4)
    S = later.cohort(4)
    updated = method.update(fed.at(3), state, fed.at(3).cohort(3))
    received = method.receive(later, updated, S)
    outside = [i for i in range(fed.size) if i not in S.tolist()]
    assert not torch.equal(received.theta[outside], updated.theta[outside])
    assert received.ala.started.all()


def test_a_client_that_has_never_trained_can_wait_with_ala():
    fed = federation(join_ratio=0.25)
    first = int(fed.cohort(1))
    t = next(t for t in range(2, 50) if int(fed.cohort(t)) != first)
    newcomer = int(fed.cohort(t))
    mixing, waiting = (train(FedALA(skip_untrained=skip), fed, t - 1) for skip in (False, True))
    assert mixing.ala.started[newcomer]
    assert not waiting.ala.started[newcomer]
    close(waiting.theta[newcomer], waiting.w, 0)
    assert (mixing.theta[newcomer] - mixing.w).abs().max() > 0


def test_a_range_beyond_the_model_is_refused():
    fed = federation()
    with pytest.raises(UserError, match="p = 3, but of this model 2 blocks"):
        FedALA(p=3).init(fed)


def test_more_epochs_than_the_cap_allows_are_refused():
    with pytest.raises(UserError, match="min_epochs = 7 is more than max_init_epochs = 5"):
        FedALA(min_epochs=7, max_init_epochs=5).init(federation())


@pytest.mark.parametrize("name", METHODS)
def test_a_default_written_out_gives_the_same_run(name):
    """Else the same run would have two keys, be trained twice and be counted as two."""
    for h in methods.hyperparameters(name):
        assert methods.spec(name, {h.name: str(h.default)}).model_dump_json() == methods.spec(name, {}).model_dump_json()


def test_the_paper_s_hyperparameters():
    values = {
        FedProx: {"mu": 0.001},
        Ditto: {"lam": 0.1, "personal_epochs": 2},
        FedALA: {"eta": 1.0, "s": 80, "p": 1, "threshold": 0.01, "max_init_epochs": 100},
    }
    for cls, expected in values.items():
        assert {k: v for k, v in dataclasses.asdict(cls()).items() if k in expected} == expected
