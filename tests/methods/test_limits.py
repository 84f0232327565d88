"""Limiting cases in which a method must turn into another one, presets, and the options of FedALA."""

import numpy as np
import pytest
import torch
from support.cases import engines, rest_slow
from support.spies import on_call
from support.twins import close

from pflbench import methods
from pflbench.contract.small import federation, train
from pflbench.contract.toy import rounds
from pflbench.engine.federation import Federation
from pflbench.engine.flat import Flat
from pflbench.errors import UserError
from pflbench.methods.apfl import APFL
from pflbench.methods.ditto import Ditto
from pflbench.methods.elastic import Elastic
from pflbench.methods.fedala import FedALA
from pflbench.methods.fedamp import FedAMP
from pflbench.methods.fedavg import FedAvg
from pflbench.methods.fedavgft import FedAvgFT
from pflbench.methods.fedbn import FedBN
from pflbench.methods.feddeper import FedDeper
from pflbench.methods.fedfomo import FedFomo
from pflbench.methods.fedper import FedPer
from pflbench.methods.fedphp import FedPHP
from pflbench.methods.fedprox import FedProx
from pflbench.methods.finetuned import FedAvgC, FedProxC
from pflbench.methods.heurfedamp import HeurFedAMP
from pflbench.methods.lgfedavg import LGFedAvg
from pflbench.methods.local import Local
from pflbench.methods.moon import MOON
from pflbench.methods.partialfed import PartialFed
from pflbench.methods.perfedavg import PerFedAvg
from pflbench.methods.pfedme import PFedMe
from pflbench.methods.scaffold import SCAFFOLD

ALIKE = {"n": (15, 15, 15)}
ONE_BATCH = {"n": (5, 5, 5)}
TOO_SMALL_TO_VALIDATE = {"n": (4, 3, 2, 1)}
# A method and a field of its state; the method that it is then, and the field; settings of both, and of the other one alone.
LIMITS = {
    "FedProx without its term": (FedProx(mu=0), "w", FedAvg(), "w", {}, {}),
    "FedProx with one batch a round": (FedProx(mu=0.5), "w", FedAvg(), "w", ONE_BATCH, {}),
    "FedALA that does not learn": (FedALA(eta=0, p=2), "theta", FedAvg(), "w", {}, {}),
    "FedAvg-C without fine-tuning": (FedAvgC(finetune_epochs=0), "theta", FedAvg(), "w", {}, {}),
    "FedProx-C without fine-tuning": (FedProxC(finetune_epochs=0, mu=0.5), "theta", FedProx(mu=0.5), "w", {}, {}),
    "FedProx-C without its term": (FedProxC(finetune_epochs=3, mu=0), "w", FedAvgC(finetune_epochs=3), "w", {}, {}),
    "Per-FedAvg that does not move": (PerFedAvg(beta=0), "w", Local(), "initial", {}, {}),
    # Then w - theta = eta_p g(w): SGD with the rate eta lambda eta_p, on the same batches.
    "pFedMe with one inner step from w": (
        PFedMe(K=1, c2=0, theta_reset="batch", lam=5, eta_p=0.8), "w", FedAvg(), "w", {"lr": 0.05}, {"lr": 0.2},
    ),
    "FedAMP without its penalty": (FedAMP(lam=0), "w", Local(), "theta", {}, {}),
    "HeurFedAMP without its penalty": (HeurFedAMP(lam=0, start="own"), "w", Local(), "theta", {}, {}),
    "HeurFedAMP that takes all alike": (HeurFedAMP(sigma=0, lam=0), "u", FedAvg(), "w", ALIKE, {}),
    "FedPHP without its term": (FedPHP(lam=0), "w", FedAvg(), "w", {}, {}),
    "FedPHP without its past": (FedPHP(lam=0, variant="fedala2022", mu=0), "start", FedAvg(), "w", {}, {}),
    "FedFomo without validation": (FedFomo(val_ratio=0), "theta", Local(), "theta", {}, {}),
    "FedFomo with tiny clients": (FedFomo(), "theta", Local(), "theta", TOO_SMALL_TO_VALIDATE, {}),
    # Equal logits and hard="argmax" load every unit.
    "PartialFed that loads everything": (
        PartialFed(f_s=0, hard="argmax", reaggregate="round"), "w", FedAvg(), "w", {"join_ratio": 0.5}, {},
    ),
    "Elastic without a holdout": (Elastic(holdout=0), "theta", FedAvg(), "w", {}, {}),
    "Elastic that does not move": (Elastic(eta_s=0), "theta", Local(), "initial", {}, {}),
    "FedDeper without its penalty": (FedDeper(rho=0, aggregation="weighted"), "x", FedAvg(), "w", {"join_ratio": 0.5}, {}),
    "FedDeper of equal clients": (FedDeper(rho=0), "x", FedAvg(), "w", ALIKE, {}),
    "APFL with alpha = 0": (APFL(alpha=0, adaptive=False), "mixed", FedAvg(), "w", {}, {}),
    "APFL with alpha = 1": (APFL(alpha=1, adaptive=False), "v", Local(), "theta", {}, {}),
    "APFL's global model": (APFL(), "w", FedAvg(), "w", {}, {}),
    "SCAFFOLD of one client": (SCAFFOLD(), "x", FedAvg(), "w", {"n": (17,)}, {}),
    "MOON without its term": (MOON(mu=0), "w", FedAvg(), "w", {}, {}),
}  # fmt: skip
# The same bits.
EXACT = {
    "FedPer that shares all": (FedPer(personal_blocks=0), "theta", FedAvg(), "w", {}, {}),
    "FedPer that shares nothing": (FedPer(personal_blocks=2), "theta", Local(), "theta", {}, {}),
    "LG-FedAvg that shares all": (LGFedAvg(shared_blocks=2), "theta", FedAvg(), "w", {}, {}),
    "LG-FedAvg that shares nothing": (LGFedAvg(shared_blocks=0), "theta", Local(), "theta", {}, {}),
    "FedAvg-FT": (FedAvgFT(), "w", FedAvg(), "w", {}, {}),
    "FedAvg-FT without fine-tuning": (FedAvgFT(finetune_epochs=0), "theta", FedAvg(), "w", {}, {}),
    "FedAvg-FT as FedAvg-C": (
        FedAvgFT(finetune_epochs=3), "theta", FedAvgC(finetune_epochs=3, finetune_affects_upload=False), "theta", {}, {},
    ),
    "FedBN without BatchNorm": (FedBN(), "theta", FedAvg(), "w", {}, {}),
}  # fmt: skip


@engines
@pytest.mark.parametrize("case", [*LIMITS, *EXACT])
def test_a_limiting_case(engine, case):
    method, field, other, of_other, settings, more = {**LIMITS, **EXACT}[case]
    found = getattr(train(method, federation(engine=engine, **settings)), field)
    fed = federation(engine=engine, **{**settings, **more})
    expected = fed.initial() if of_other == "initial" else getattr(train(other, fed), of_other)
    close(found, expected.expand_as(found), 0 if case in EXACT else 1e-12)


PRESETS = {
    ("pfedme", "fedala2022"): {"evaluate": "w"},
    ("fedphp", "fedala2022"): {"variant": "fedala2022"},
    ("fedphp+ala", "fedala2022"): {"variant": "fedala2022", "drop_last": True},
    ("fedamp", "fedala2022"): {"self_term": "prev_cloud"},
    ("heurfedamp", "fedala2022"): {},
    ("fedamp", "heurfedamp2021"): {},
    ("heurfedamp", "heurfedamp2021"): {"alpha_k": 1e4, "alpha_decay": 0.1, "sigma": 25.0},
    ("per-fedavg", "fedala2022"): {},
}


@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_a_preset(name, preset):
    """methods.md 0.6, 1.9."""
    defaults = methods.spec(name, {}).hyperparameters
    assert methods.spec(name, {}, preset).hyperparameters == {**defaults, **PRESETS[name, preset]}


@engines
def test_ditto_without_its_term_is_local_training_beside_fedavg(engine):
    state = train(Ditto(lam=0, personal_epochs=1), federation(engine=engine))
    close(state.w, train(FedAvg(), federation(engine=engine)).w, 0)
    # Same data, same number of steps, other batches: the branches draw their own order.
    assert (state.v - train(Local(), federation(engine=engine)).theta).abs().max() > 1e-6
    tied = train(Ditto(lam=9.9, personal_epochs=1), federation(engine=engine))
    assert (tied.v - tied.w).norm() < (state.v - state.w).norm() / 2


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


def init_epochs(method, fed):
    ((_, state),) = rounds(method, fed, 1)
    now = fed.at(2)
    method.receive(now, state, now.cohort(2))
    return now.ledger.artifacts["ala_init_epochs"]


@engines
def test_the_initial_stage_ends_at_convergence_or_at_its_cap(engine):
    fed = federation(engine=engine)
    assert init_epochs(FedALA(threshold=1e9), fed).tolist() == [11] * fed.size
    assert init_epochs(FedALA(threshold=0, max_init_epochs=17), fed).tolist() == [17] * fed.size
    assert init_epochs(FedALA(threshold=1e9, min_epochs=14), fed).tolist() == [14] * fed.size


@pytest.mark.parametrize("epochs", [1, 6])
def test_after_the_initial_stage_min_epochs_are_walked(epochs, monkeypatch):
    fed, method = federation(), FedALA(min_epochs=epochs, threshold=1e9)
    state = train(method, fed, 1)
    calls = []
    on_call(monkeypatch, Federation, "scan", lambda fed, step, loop, **_: calls.append(len(loop.clients)))
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


@pytest.mark.parametrize(
    ("options", "words"),
    [({"p": 3}, "p = 3, but of this model 2 blocks"), ({"min_epochs": 7, "max_init_epochs": 5}, "more than max_init_epochs = 5")],
)
def test_impossible_options_are_refused(options, words):
    with pytest.raises(UserError, match=words):
        FedALA(**options).init(federation())


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
