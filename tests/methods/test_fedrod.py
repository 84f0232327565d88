"""FedRoD: the numbers of methods.md 1.22 and its limiting cases."""

from __future__ import annotations

import pytest
import torch
from support.cases import engines
from support.f2 import f2, losses_at_e1
from support.twins import close, near

from pflbench.contract.small import federation, train
from pflbench.contract.toy import EXECUTORS, rounds
from pflbench.methods.fedavg import FedAvg
from pflbench.methods.fedrod import FedRoD


@pytest.mark.parametrize("name", EXECUTORS)
def test_fedrod(name):
    method = FedRoD()
    e1 = torch.tensor(losses_at_e1(method, f2(name, method), 3), dtype=torch.float64)
    near(e1, [(0.2866316867, 0.7766851226), (0.2480824905, 0.523538827), (0.2178984794, 0.3716935363)])
    (_, first), (_, second) = rounds(method, f2(name, method), 2)
    near(first.w[:6], [0.9943586336, 0.512810478, -0.5227890894, 1.0162781594, 0.2645238887, -0.762982442])
    near(second.w[:6], [0.990848443, 0.523480613, -0.5465666928, 1.0324056941, 0.2796192095, -0.7757429641])
    near(second.theta[0, 18:21], [0.5567788903, -0.3198441435, 0.2080907307])
    fed = f2(name, method)
    generic = method.series(first)["global"][0]
    scores = fed.evaluate(generic, torch.arange(2))
    near(torch.from_numpy(scores.loss / scores.total), (0.4972499719, 0.7715050108))


@engines
def test_without_the_prior_the_generic_model_is_fedavgs(engine):
    method = FedRoD(gamma=0)
    state = train(method, federation(engine=engine, around=method.model))
    close(state.w, train(FedAvg(), federation(engine=engine)).w, 0)


@engines
def test_a_personal_head_of_zeros_adds_nothing(engine):
    method = FedRoD(personal_init="zero")
    fed, plain = federation(engine=engine, around=method.model), federation(engine=engine)
    S = torch.arange(fed.size)
    found = fed.evaluate(method.deployed(method.init(fed)), S)
    expected = plain.evaluate(plain.initial(), S)
    assert (found.correct == expected.correct).all()
    near(torch.from_numpy(found.loss), expected.loss, 1e-12)
