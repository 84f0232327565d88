"""GPFL: the numbers of methods.md 1.29, its limiting case and its conditions."""

from __future__ import annotations

import pytest
import torch
from support.cases import engines
from support.f2 import TwoLayers, f2, fill, losses_at_e1
from support.twins import close, module_of, near
from torch.nn import functional as F

from pflbench.contract.small import federation, train
from pflbench.contract.toy import EXECUTORS, rounds
from pflbench.methods.gpfl import GPFL, GuidedNet, guided


class OnF2(GPFL):
    """Begins with the extra parts of the specification's example."""

    def model(self, backbone):
        net = GuidedNet(backbone)
        fill(0, net.gce.value)
        fill(9, *net.cov.gamma[0].parameters())
        fill(21, *net.cov.beta[0].parameters())
        return net


@pytest.mark.parametrize("name", EXECUTORS)
def test_gpfl(name):
    e1 = torch.tensor(losses_at_e1(OnF2(), f2(name, OnF2()), 3), dtype=torch.float64)
    near(e1, [(1.2131617136, 0.7514620585), (0.9581780201, 0.8584788599), (0.6337746553, 0.7251505845)])
    fed = f2(name, OnF2())
    (_, first), (_, second) = rounds(OnF2(), fed, 2)
    near(first.w[:6], [1, 0.5, -0.5152269234, 1.0006488437, 0.2545727262, -0.7707131371])
    near(second.w[:6], [0.9874863246, 0.5205620357, -0.5148793876, 0.9942512211, 0.2591699987, -0.792546534])
    near(first.w[6:9], [-0.4754539121, 0.1987540439, -0.2197796274])
    near(second.w[6:9], [-0.4315468922, 0.2069811508, -0.2623220621])
    personal, generic = fed.flat.columns(["personal"]), fed.flat.columns(["generic"])
    near(first.theta[0, personal], [-0.0862027338, 0.2010558951, -0.2291000031])
    near(first.theta[1, personal], [0.4615192436, 0.0791757639, -0.3193260686])
    near(first.theta[0, generic], [0.135927218, 0.0939921397, -0.2894710818])


def test_the_terms_at_the_first_step():
    method = OnF2()
    fed = f2("loop", method)
    state = method.receive(fed.at(1), method.init(fed), torch.arange(2))
    expected = [(1.2131617136, 1.0045974412, 3.4056154884), (0.7514620585, 1.2811809945, 3.8524680996)]
    for row, indices, terms in zip(state.theta, fed.train_indices, expected, strict=True):
        x, y = fed.executor.samples.batch(torch.from_numpy(indices))
        own = module_of(fed, row).outputs(x)
        found = [F.cross_entropy(own.logits, y), F.cross_entropy(own.cosines, y)]
        near(torch.stack([*found, guided(lambda *_: 0.0, y, own, lam=1.0)]).detach(), terms)


def test_a_shut_valve_changes_no_features_after_a_relu():
    net = GuidedNet(TwoLayers()).double()
    for branch in (net.cov.gamma, net.cov.beta):
        for parameter in branch[2].parameters():
            parameter.data.zero_()
    z = torch.rand(4, 3, dtype=torch.float64)
    assert torch.equal(net.cov(z, torch.randn(3, dtype=torch.float64)), z)


def test_a_batch_at_its_anchors_has_no_gradient_from_the_distance():
    generic = torch.ones(2, 3, requires_grad=True)
    own = GuidedNet(TwoLayers()).double().outputs(torch.ones(2, 2, dtype=torch.float64))
    own = own._replace(generic=generic, anchors=torch.ones(3, 3))
    guided(lambda *_: 0.0, torch.tensor([0, 1]), own, lam=1.0).backward()
    assert torch.equal(generic.grad, torch.zeros(2, 3))


@pytest.mark.parametrize("conditions", ["own", "received"])
def test_conditions(conditions):
    """A client's own embeddings give them once it has trained, before that those received; in round 1 they are 0."""
    method = GPFL(conditions=conditions)
    fed = federation(n=(12, 4, 9, 7), join_ratio=0.5, around=method.model)
    everyone, personal, generic = torch.arange(4), fed.flat.columns(["personal"]), fed.flat.columns(["generic"])
    first = method.receive(fed.at(1), method.init(fed), everyone)
    assert bool(first.theta[:, personal.start :].any()) == (conditions == "received")
    now, S = fed.at(1), fed.cohort(1)
    updated = method.update(now, method.receive(now, method.init(fed), S), S)
    found = method.receive(fed.at(2), updated, everyone)
    gce = fed.flat.columns(["gce"])
    received, own = (rows[:, gce].view(4, 4, -1) for rows in (found.theta, updated.theta))
    for i in range(4):
        mine = own[i] if i in S and conditions == "own" else received[i]
        counts = fed.class_counts(everyone)[i]
        close(found.theta[i, personal], counts @ mine / counts.sum())
        close(found.theta[i, generic], mine.mean(0))


@engines
def test_only_heads_and_conditions_stay_with_their_clients(engine):
    method = GPFL()
    fed = federation(engine=engine, around=method.model)
    state = train(method, fed)
    head, extra = fed.flat.head, fed.flat.columns(["gce", "cov", "anchors"])
    for row in state.theta[1:]:
        assert torch.equal(row[: head.start], state.theta[0, : head.start])
        assert torch.equal(row[extra], state.theta[0, extra])
        assert not torch.equal(row[head], state.theta[0, head])
