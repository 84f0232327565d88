"""APFL, SCAFFOLD, MOON and FedDyn: the numbers of methods.md 1.24, 1.25, 1.27, 1.34, invariants and limiting cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.cases import engines
from support.f2 import f2, losses_at_e1
from support.twins import close, module_of, near

from pflbench.contract.small import federation, train
from pflbench.contract.toy import EXECUTORS, q2, rounds
from pflbench.methods.apfl import APFL
from pflbench.methods.fedavg import FedAvg
from pflbench.methods.feddyn import FedDyn
from pflbench.methods.moon import MOON, contrast
from pflbench.methods.scaffold import SCAFFOLD

on_both = pytest.mark.parametrize("name", EXECUTORS)


def with_cohorts(method, fed, *cohorts):
    """The state after each round with the given cohort."""
    state, seen = method.init(fed), []
    for t, members in enumerate(cohorts, start=1):
        S = torch.tensor(members)
        state = method.receive(fed.at(t), state, S)
        state = method.update(fed.at(t), state, S)
        seen.append(state)
    return seen


COHORTS = ([0], [0, 1], [1])


@on_both
def test_apfl(name):
    (_, first), (received, second), (last, _) = rounds(APFL(), q2(name, epochs=2), 3)
    near(first.w, [0.1425, 0.095])
    near(first.v, [[0.096155005, 0], [0, 0.19231001]])
    near(first.alpha, [[0.499], [0.499]])
    near(received.mixed, [[0.1193738475, 0.047595], [0.0713925, 0.143557695]])
    near(second.v, [[0.1804059468, -0.0044541739], [-0.00666974, 0.3736153986]])
    near(second.alpha, [[0.494372891], [0.5170843851]])
    near(last.mixed, [[0.2196016816, 0.0847405585], [0.1211071916, 0.2762280286]])
    _, (_, second) = rounds(APFL(alpha_decay=0), q2(name, epochs=2), 2)
    near(second.alpha, [[0.4963783594], [0.51911375]])


@on_both
def test_apfl_as_in_pfllib(name):
    (_, first), (_, second) = rounds(APFL(variant="pfllib", alpha=1.0), q2(name, epochs=2), 2)
    near(first.v, [[0.19, 0], [0, 0.38]])
    near(first.alpha, [[0.996004], [0.996004]])
    near(second.v, [[0.3438342363, 0.0001315274], [0, 0.6878]])
    near(second.alpha, [[0.9982907425], [1]])


@on_both
def test_scaffold(name):
    (_, first), (_, second), (_, third) = rounds(SCAFFOLD(), q2(name, epochs=2), 3)
    near(first.x, [0.095, 0.19])
    near(first.c, [-0.475, -0.95])
    near(first.c_i, [[-0.95, 0], [0, -1.9]])
    near(second.x, [0.17195, 0.3439])
    near(second.c, [-0.38475, -0.7695])
    near(second.c_i, [[-0.8835, 0.228], [0.114, -1.767]])
    near(third.x, [0.2342795, 0.468559])
    for method, x in (
        (SCAFFOLD(aggregation="weighted"), ([0.1425, 0.095], [0.2128, 0.2622])),
        (SCAFFOLD(eta_g=0.5), ([0.0475, 0.095], [0.0904875, 0.180975])),
    ):
        for (_, state), expected in zip(rounds(method, q2(name, epochs=2), 2), x, strict=True):
            near(state.x, expected)
    _, (_, second) = rounds(SCAFFOLD(option=1), q2(name, epochs=2), 2)
    near(second.x, [0.17195, 0.3439])
    near(second.c, [-0.405, -0.81])


@on_both
def test_scaffold_with_part_of_the_clients(name):
    states = with_cohorts(SCAFFOLD(), q2(name, epochs=2), *COHORTS)
    for state, x, c in zip(
        states,
        ([0.19, 0], [0.2489, 0.19], [0.2963715, 0.3534]),
        ([-0.475, 0], [-0.2945, -0.95], [-0.26592875, -0.8835]),
        strict=True,
    ):
        near(state.x, x)
        near(state.c, c)


@on_both
def test_moon(name):
    z = torch.tensor([[1.0, 0]]), torch.tensor([[1.0, 1]]), torch.tensor([[0.0, 1]])
    near(contrast(*(one.double() for one in z), tau=0.5), 0.2176217216)
    e1 = losses_at_e1(MOON(), f2(name), 3)
    near(torch.tensor(e1[1:], dtype=torch.float64), [(0.4832275348, 0.6900629148), (0.4367142724, 0.581000253)])
    (_, first), (_, second), (_, third) = rounds(MOON(), f2(name), 3)
    near(second.w[:6], [1.0081285765, 0.5975741586, -0.5540939717, 1.0110986386, 0.2790915238, -0.7856666812])
    near(third.w[:6], [1.0161871799, 0.6364810127, -0.5801606806, 1.0212150431, 0.2928043465, -0.8036073755])
    x = torch.tensor([[-1, 1], [0.5, -1], [0, -1.5]]).double()
    features = [x @ row[:6].view(3, 2).T for row in (second.theta[1], first.w, first.theta[1])]
    near(contrast(*features, tau=0.5), 0.6949188614)


def test_a_zero_feature_has_no_contrast():
    z = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    value = contrast(z, torch.ones(2, 3).double(), -torch.ones(2, 3).double(), 0.5)
    value.backward()
    near(value.detach(), np.log(2))
    assert (z.grad == 0).all()


@on_both
def test_feddyn(name):
    method = FedDyn(alpha=0.1)
    (_, first), (_, second), (_, third) = rounds(method, q2(name, epochs=2), 3)
    near(first.w, [0.189, 0.378])
    near(-0.1 * first.drift, [[-0.0189, 0], [0, -0.0378]])
    near(-0.1 * first.mean_drift, [-0.00945, -0.0189])
    near(first.w + second.drift - first.drift, [[0.3387069, 0.306558], [0.153279, 0.6774138]])
    near(second.w, [0.3974859, 0.7949718])
    near(-0.1 * second.drift[0], [-0.03387069, 0.0071442])
    near(third.w, [0.5820027463, 1.1640054926])
    states = with_cohorts(method, q2(name, epochs=2), *COHORTS)
    for state, w in zip(states, ([0.2835, 0], [0.4562649, 0.378], [0.4620652864, 1.0161207]), strict=True):
        near(state.w, w)


def test_feddyn_scaled_by_samples():
    """As its authors' program: alpha_i = alpha * (mean n) / n_i, in plain Python for one step of each client."""
    lr, alpha, centres, n = 0.1, 0.1, np.array([[1.0, 0], [0, 2]]), np.array([30, 10])
    w, drift = np.zeros(2), np.zeros((2, 2))
    for _ in range(3):
        thetas = []
        for i in range(2):
            alpha_i, theta = alpha * n.mean() / n[i], w.copy()
            for _ in range(2):
                theta = theta - lr * ((theta - centres[i]) + alpha_i * drift[i] + alpha_i * (theta - w))
            thetas.append(theta)
        drift += np.array(thetas) - w
        w = np.mean(thetas, axis=0) + drift.mean(axis=0)
    *_, (_, state) = rounds(FedDyn(alpha=alpha, scale=True), q2(epochs=2), 3)
    near(state.w, w, 1e-12)


@engines
@pytest.mark.parametrize("join_ratio", [1.0, 0.5])
def test_the_servers_controls_are_the_mean_of_the_clients(engine, join_ratio):
    scaffold = train(SCAFFOLD(), federation(engine=engine, join_ratio=join_ratio), 4)
    close(scaffold.c, scaffold.c_i.mean(0))
    dyn = train(FedDyn(alpha=0.1), federation(engine=engine, join_ratio=join_ratio), 4)
    close(dyn.mean_drift, dyn.drift.mean(0))


@engines
def test_the_gradient_over_all_samples(engine):
    """SCAFFOLD's option 1, beside one backward pass over all of a client's samples."""
    fed = federation(engine=engine)
    x = fed.initial()
    state = train(SCAFFOLD(option=1), fed, 1)
    for i, index in enumerate(fed.train_indices):
        inputs, labels = fed.executor.samples.batch(torch.from_numpy(index))
        module = module_of(fed, x)
        loss = torch.nn.functional.cross_entropy(module(inputs), labels)
        g = torch.autograd.grad(loss, list(module.parameters()))
        close(state.c_i[i], torch.cat([one.reshape(-1) for one in g]))


@engines
def test_round_1(engine):
    def first(method, **settings):
        return train(method, federation(engine=engine, **settings), 1)

    plain = first(FedAvg())
    close(first(MOON(mu=5)).w, plain.w, 0)
    alike = {"n": (15, 15, 15)}
    close(first(SCAFFOLD(), **alike).x, first(FedAvg(), **alike).w)
    dyn = first(FedDyn())
    close(dyn.w, federation().initial() + 2 * dyn.drift.mean(0))
