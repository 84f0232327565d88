"""FedProto and FedDBE: the numbers of methods.md 1.26 and 1.28, and limiting cases."""

from __future__ import annotations

import pytest
import torch
from support.cases import engines
from support.f2 import f2, losses_at_e1
from support.twins import close, near

from pflbench.contract.small import federation, train
from pflbench.contract.toy import EXECUTORS, rounds
from pflbench.methods.fedavg import FedAvg
from pflbench.methods.feddbe import FedDBE
from pflbench.methods.fedproto import FedProto
from pflbench.methods.local import Local

on_both = pytest.mark.parametrize("name", EXECUTORS)


@on_both
def test_fedproto(name):
    method = FedProto()
    fed = f2(name, method)
    (_, first), (received, second) = rounds(method, fed, 2)
    C = first.prototypes[:, :3]
    near(C[0], [1.5947851211, -0.1784037197, -0.0385135906])
    near(C[1], [-0.0403751465, 1.4395025268, -1.0075763566])
    near(C[2], [-0.4131520241, -1.3723212196, 1.0096684979])
    for client, x, distances in (
        (0, [1.0, 0], [0.181114355, 2.2198683246, 1.108549046]),
        (1, [-1.0, 1], [2.5571637617, 0.0356341137, 4.1752372201]),
    ):
        z = received.theta[client, :6].view(3, 2) @ torch.tensor(x).double()
        near((z - C).square().mean(1), distances)
    assert fed.evaluate(method.deployed(received), torch.arange(2)).correct.tolist() == [5, 3]
    near(second.prototypes[1, :3], [0.0316997298, 1.4528143318, -1.0365848983])
    near(second.theta[0, :6], [1.0346029338, 0.5049881542, -0.5537297066, 1.0022297918, 0.2671419817, -0.7574394095])
    for other, k, expected in (
        (FedProto(prototypes="after"), 0, [1.6289654228, -0.2126135287, -0.029106236]),
        (FedProto(weights="samples"), 1, [0.0999402477, 1.4194853248, -1.0064154318]),
    ):
        ((_, state),) = rounds(other, f2(name, other), 1)
        near(state.prototypes[k, :3], expected)


@on_both
def test_feddbe(name):
    method = FedDBE(kappa=1)
    e1 = torch.tensor(losses_at_e1(method, f2(name, method), 3), dtype=torch.float64)
    near(e1, [(0.5411905142, 0.8308985442), (0.4826573387, 0.6819169616), (0.4363346481, 0.5679892672)])
    fed = f2(name, method)
    offset, consensus = fed.flat.columns(["offset"]), fed.flat.columns(["consensus"])
    (received, _), (_, second) = rounds(method, fed, 2)
    near(received.theta[0, consensus], [0.5332180145, 0.119650594, -0.1382375179])
    near(
        second.theta[:, offset],
        [[0.0600662958, -0.0130628223, -0.0102375637], [-0.1121033666, 0.0548863021, 0.0023438531]],
    )
    near(second.w[:6], [0.9658829302, 0.5366255689, -0.5758161197, 0.9784587413, 0.2990785414, -0.7563041072])
    of_clients = [1.1181989742, 0.439476273, -0.4244911744], [-0.4417502516, -0.4133922043, 0.3388519098]
    for client, mean in enumerate(of_clients):
        alone, S = f2(name, method), torch.tensor([client])
        alone.all_trainable = lambda S=S: S
        near(method.receive(alone.at(1), method.init(alone), S).consensus, mean)
    half = FedDBE(kappa=1, momentum=0.5)
    (received, _), _ = rounds(half, f2(name, half), 2)
    near(received.theta[0, consensus], [0.3994215073, 0.091075297, -0.1042750089])
    near(torch.tensor(losses_at_e1(half, f2(name, half), 3)[2]).double(), (0.4303588831, 0.552614209), 1e-7)
    free = FedDBE(kappa=0)
    near(torch.tensor(losses_at_e1(free, f2(name, free), 3)[2]).double(), (0.4280066124, 0.5460293354), 1e-7)


@engines
@pytest.mark.parametrize(("method", "count"), [(FedProto(lam=0), 3), (FedProto(lam=7), 1)], ids=["lam=0", "round 1"])
def test_fedproto_without_prototypes_is_local_training(engine, method, count):
    fed = federation(engine=engine, around=method.model)
    net = fed.flat.columns(["net"])
    close(train(method, fed, count).theta[:, net], train(Local(), federation(engine=engine), count).theta)


@engines
def test_a_class_that_the_cohort_lacks(engine):
    """A class that nobody sent has no prototype, or with keep=true its last one; its distance is never the smallest."""
    for keep in (False, True):
        method = FedProto(keep=keep)
        fed = federation(engine=engine, around=method.model, n=(4, 3), join_ratio=0.5)
        states = [train(method, fed, t) for t in (1, 2, 3, 4)]
        lacking = [
            (before, after)
            for before, after, t in zip(states, states[1:], (2, 3, 4), strict=False)
            if not (fed.class_counts(fed.cohort(t))[0] > 0).all()
        ]
        assert lacking
        for (before, after), t in zip(lacking, (2, 3, 4), strict=False):
            absent = after.prototypes[:, -1] == 0
            kept = before.prototypes[:, -1] > 0
            assert absent.any() or keep
            if keep:
                assert not (absent & kept).any(), t


@engines
def test_a_test_among_ones_own_classes(engine):
    method = FedProto(classes="own")
    fed = federation(engine=engine, around=method.model, n=(3, 2, 2, 9))
    state = train(method, fed)
    known = fed.flat.columns(["known"])
    assert torch.equal(state.theta[:, known] > 0, fed.class_counts(torch.arange(4)) > 0)


@engines
def test_feddbe_without_its_terms_trains_as_fedavg(engine, monkeypatch):
    """kappa = 0, and the offset held at 0 by being no trained column."""
    method = FedDBE(kappa=0)
    fed = federation(engine=engine, around=method.model)
    whole = type(fed).sgd

    def without_offset(fed, rows, S, *, columns, **how):
        return whole(fed, rows, S, columns=slice(0, fed.flat.columns(["mean"]).stop), **how)

    monkeypatch.setattr(type(fed), "sgd", without_offset)
    found = train(method, fed).w
    monkeypatch.undo()
    close(found, train(FedAvg(), federation(engine=engine)).w)


def test_fedproto_sends_prototypes_alone():
    method = FedProto()
    fed = federation(around=method.model, n=(5, 10, 15))
    h, S = fed.flat.module.width, torch.arange(3)
    own = (fed.class_counts(S) > 0).sum(1).numpy()
    state, down = method.init(fed), 0
    for t in (1, 2):
        now = fed.at(t)
        state = method.update(now, method.receive(now, state, S), S)
        assert (now.ledger.traffic[:, :2] == 0).all()
        assert now.ledger.traffic[:, 2].tolist() == (h * own).tolist()
        assert now.ledger.traffic[:, 3].tolist() == [down] * 3
        down = h * int(state.prototypes[:, -1].sum())
    assert down
