"""PartialFed (methods.md 1.13): the numbers of the specification, a twin in plain PyTorch, limits, options, and with ALA."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from support.cases import engines
from support.twins import buffers, close, near, rows, setup, vector
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from pflbench import methods, models
from pflbench.contract.small import EXECUTORS, federation, train
from pflbench.contract.toy import q2
from pflbench.engine import rng
from pflbench.engine.flat import Flat
from pflbench.methods.partialfed import PartialFed, gumbel, loads, step, unit_sizes
from pflbench.spec import MethodSpec

NOISE = torch.tensor([[0.3, -0.2], [1.0, -0.5]], dtype=torch.float64)


@pytest.fixture(params=EXECUTORS[:2])
def one_step(request):
    """A step of Theta = (1,2), local = (0,0.5), f = |w - (0.2,0.5)|^2 / 2, a = 0, tau = 5: the carry, the gradient's point."""

    def run(learn, received=(1.0, 2.0)):
        seen = []

        def spied(grad, **arguments):
            return step(lambda w: seen.append(w.clone()) or grad(w), **arguments)

        fed, zeros = q2(request.param, centres=((0.2, 0.5),), n=(30,)).at(1), torch.zeros(1, 2, 2).double()
        theta = torch.tensor([[0.0, 0.5]]).double()
        carry = fed.train_by(
            partial(spied, sizes=[1, 1]),
            theta,
            fed.cohort(1),
            carry={"theta": theta, "a": zeros, "m": zeros, "v": zeros, "k": torch.zeros(1, 1, 1).double()},
            given={
                "received": torch.tensor(received).double(),
                "tau": torch.full((1, 1, 1), 5.0).double(),
                "lr": 0.1,
                "rate": 0.01,
                "decay": 0.0005,
                "sample": True,
                "reload": True,
            },
            per_step={"noise": NOISE[None, None], "learn": torch.tensor([[[[learn]]]])},
        )
        return carry, seen[0].reshape(-1)

    return run


def test_numbers_of_a_batch_for_the_strategy(one_step):
    carry, mixed = one_step(True)
    near(mixed, [0.5249791875, 1.3616637752])
    near((mixed - torch.tensor([0, 0.5])) / torch.tensor([1, 1.5]), [0.5249791875, 0.5744425168])  # z_load
    slope = torch.tensor([0.0162084046, 0.0631922597], dtype=torch.float64)
    near(carry["m"][0] / 0.1, torch.stack([slope, -slope], -1).tolist())
    near(carry["v"][0] / 0.001, torch.stack([slope**2, slope**2], -1).tolist())
    first = 0.01 * slope / (slope + 1e-8)  # Adam's first step has the size of its rate, but for epsilon
    torch.testing.assert_close(carry["a"][0], torch.stack([-first, first], -1), rtol=0, atol=1e-12)
    assert carry["k"].item() == 1
    near(carry["theta"][0], [0, 0.5])


def test_numbers_of_a_batch_for_the_model(one_step):
    carry, mixed = one_step(False)
    near(loads(NOISE), [1, 1])
    assert mixed.tolist() == [1, 2]
    near(carry["theta"][0], [1 - 0.1 * 0.8, 2 - 0.1 * 1.5])
    assert all(not carry[name].any() for name in ("a", "m", "v", "k"))


def test_temperature():
    for t, tau in ((1, 5), (2, 4.825), (11, 3.5014113708), (51, 0.8420457176), (130, 5 * 0.965**129), (131, 0.05), (2000, 0.05)):
        assert PartialFed().temperature(t) == pytest.approx(tau, abs=1e-9)
    assert PartialFed().temperature(130) > 0.05


@pytest.mark.parametrize(
    ("model", "shape", "modules", "tensors"),
    [("cnn", (3, 32, 32), 4, 8), ("fasttext", (20,), 3, 5), ("resnet18", (3, 64, 64), 41, 62)],
)
def test_units(model, shape, modules, tensors):
    flat = Flat(models.build(model, shape, 10, 30 if model == "fasttext" else None))
    for unit, count in (("module", modules), ("tensor", tensors)):
        sizes = unit_sizes(flat, unit)
        assert len(sizes) == count
        assert sum(sizes) == flat.size
    assert unit_sizes(flat, "module")[-1] == flat.head.stop - flat.head.start


def schedule(method, fed, t=1, position=None):
    S = fed.cohort(t)
    position = torch.zeros(fed.size, dtype=torch.int64) if position is None else position
    learn, after = method._schedule(fed.at(t), fed.at(t).batches(S), position[S])
    return [row.long().tolist() for row in learn], after


def test_batches_in_cycles():
    learn, position = schedule(PartialFed(), federation(n=(115, 40)))
    assert learn[0] == ([0] * 8 + [1] * 2) * 2 + [0] * 3
    assert position[0] == 0, "it restarts in each round"
    assert schedule(PartialFed(f_m=1, f_s=2), federation(n=(25,)))[0] == [[0, 1, 1, 0, 1]]


def test_an_epoch_too_short_for_a_cycle_goes_on_in_the_next_round():
    fed, position = federation(n=(15, 40, 45)), None
    seen = [], [], []
    for t in (1, 2, 3, 4):
        learn, position = schedule(PartialFed(), fed, t, position)
        for mine, row, batches in zip(seen, learn, (3, 8, 9), strict=True):
            mine += row[:batches]
    assert seen[0] == [0] * 8 + [1] * 2 + [0] * 2
    assert seen[1] == ([0] * 8 + [1] * 2) * 3 + [0] * 2
    assert seen[2] == ([0] * 8 + [1]) * 4, "nine batches reach the strategy in every round"
    assert position.tolist() == [12 % 10, 32 % 10, 0]


def constants(module):
    return [p.detach() for p in module.parameters()]


OPTIONS = [
    {},
    {"reaggregate": "round", "f_m": 3, "f_s": 2, "split": "block"},
    {"unit": "tensor", "hard": "argmax", "start": "received", "warmup_rounds": 1},
]


@engines
@pytest.mark.parametrize("options", OPTIONS, ids=["default", "round-block", "tensor-argmax-received"])
@pytest.mark.parametrize("model", ["mlp", "batchnorm"])
def test_twin(model, options, engine):
    """Autograd through the soft mixture and torch.optim.Adam; batches and random numbers are the federation's."""
    fed, twin = setup(model, engine, rounds=6)
    options = {"f_m": 2, "f_s": 1, "tau": 1.5, "tau_decay": 0.6, "tau_min": 0.5, "strategy_lr": 0.2, **options}
    method = PartialFed(**options)
    state = train(method, fed, 4)
    names = [n for n, _ in twin.server.named_parameters()]
    owners = [n if method.unit == "tensor" else n.split(".")[0] for n in names]
    units = list(dict.fromkeys(owners))
    logits = [nn.Parameter(torch.zeros(len(units), 2).double()) for _ in twin.clients]
    optimisers = [torch.optim.Adam([a], lr=0.2, weight_decay=5e-4) for a in logits]
    batches_seen = [0] * fed.size

    def take_over(module, taken):
        with torch.no_grad():
            for own, new, owner in zip(module.parameters(), twin.server.parameters(), owners, strict=True):
                if taken[units.index(owner)]:
                    own.copy_(new)

    for t in (1, 2, 3, 4):
        S = fed.cohort(t)
        plan = fed.at(t).batches(S)
        for i, c in enumerate(S.tolist()):
            module, a = twin.clients[c].train(), logits[c]
            batches, per_epoch = list(plan.batches(i)), len(plan.sizes[i]) // 2
            U = rng.stream(fed.seed, "gumbel", t, c).random((1 + len(batches), len(units), 2))
            G = torch.from_numpy(-np.log(-np.log(U)))
            tau = max(1.5 * 0.6 ** (t - 1), 0.5)

            def chosen(noise, a=a):
                score = a.detach() + (noise if method.hard == "sample" else 0)
                return (score[:, 0] >= score[:, 1]).tolist()

            if method.start == "received" or t <= method.warmup_rounds:
                take_over(module, [True] * len(units))
            if t <= method.warmup_rounds:
                twin.sgd(module, plan, i)
                continue
            if method.reaggregate == "round":
                take_over(module, chosen(G[0]))
            if per_epoch > method.f_m:
                batches_seen[c] = 0
            sgd = torch.optim.SGD(module.parameters(), lr=fed.protocol.lr)
            for j, index in enumerate(batches):
                x, y = twin.data(index)
                if method.split == "cycle":
                    for_strategy = batches_seen[c] % 3 == 2
                else:
                    for_strategy = j % per_epoch >= max(per_epoch * 3 // 5, 1)
                batches_seen[c] += 1
                if for_strategy:
                    z = F.softmax((a + G[1 + j]) / tau, dim=1)
                    both = zip(constants(twin.server), constants(module), owners, strict=True)
                    mixed = [own + z[units.index(owner), 0] * (new - own) for new, own, owner in both]
                    mixture = dict(zip(names, mixed, strict=True))
                    optimisers[c].zero_grad()
                    F.cross_entropy(functional_call(module, mixture, (x,)), y).backward()
                    optimisers[c].step()
                else:
                    if method.reaggregate == "batch":
                        take_over(module, chosen(G[1 + j]))
                    sgd.zero_grad()
                    F.cross_entropy(module(x), y).backward()
                    sgd.step()
            if per_epoch > method.f_m:
                batches_seen[c] = 0
        twin.average(S)
    torch.testing.assert_close(state.strategy.a, torch.stack(list(logits)).detach(), rtol=0, atol=1e-10)
    torch.testing.assert_close(state.theta, rows(twin.clients), rtol=0, atol=1e-10)
    torch.testing.assert_close(state.w, vector(twin.server), rtol=0, atol=1e-10)
    assert state.strategy.a.abs().amax(dim=(1, 2)).min() > (0.1 if method.split == "cycle" else -1), "strategies were learned"
    if model == "batchnorm":
        expected = buffers(twin.clients)
        torch.testing.assert_close(fed.buffers["model"], expected, rtol=0, atol=1e-10)


def decided(state, load):
    """The state with logits that always load, or never."""
    a = torch.tensor([100.0, -100.0] if load else [-100.0, 100.0], dtype=state.strategy.a.dtype)
    return replace(state, strategy=replace(state.strategy, a=a.expand_as(state.strategy.a).clone()))


def test_gumbel_noise_is_that_of_client_and_round():
    fed = federation(join_ratio=0.5)
    S = fed.cohort(1)
    everyone = gumbel(fed.at(1), torch.arange(fed.size), 9, 2)
    assert torch.equal(gumbel(fed.at(1), S, 5, 2), everyone[S, :5])
    assert not torch.equal(gumbel(fed.at(2), S, 5, 2), everyone[S, :5])
    many = gumbel(fed.at(1), S, 20000, 2)
    assert many.mean().item() == pytest.approx(np.euler_gamma, abs=0.03)
    assert many.var().item() == pytest.approx(np.pi**2 / 6, rel=0.03)


def test_strategies_are_observed_as_probabilities():
    fed = federation(join_ratio=0.5).at(1)
    fed.observing = True
    method, S = PartialFed(f_m=1, f_s=1), fed.cohort(1)
    state = method.update(fed, method.init(fed), S)
    seen = fed.ledger.artifacts["strategies"]
    assert seen.shape == (fed.size, 2, 2)
    assert seen.sum(-1) == pytest.approx(1.0)
    outside = [i for i in range(fed.size) if i not in S.tolist()]
    assert (seen[outside] == 0.5).all()
    assert (seen[S] != 0.5).all()
    close(torch.from_numpy(seen), torch.softmax(state.strategy.a, -1))


@engines
@pytest.mark.parametrize("keep", [True, False])
def test_q2_with_ala(keep, engine):
    """ALA's result is the working model at the round's start; E1 has theta_i. Where all is loaded anyway it has no effect."""
    options = {"s": 100, "max_init_epochs": 1, "f_s": 0, "reaggregate": "round"}
    fed, method = q2(engine), methods.make(MethodSpec(name="partialfed+ala", hyperparameters=options))
    state = method.init(fed)
    state = replace(state, base=decided(state.base, load=not keep))
    state = method.update(fed.at(1), method.receive(fed.at(1), state, fed.cohort(1)), fed.cohort(1))
    received = method.receive(fed.at(2), state, fed.cohort(2))
    after = method.update(fed.at(2), received, fed.cohort(2))
    L, c, Theta = np.array([[0.1, 0], [0, 0.2]]), np.array([[1.0, 0], [0, 2]]), np.array([0.075, 0.05])
    W = np.clip(1 - (Theta - c)[:, 1] * (Theta - L)[:, 1], 0, 1)
    hat = np.stack([[Theta[0]] * 2, L[:, 1] + (Theta - L)[:, 1] * W], axis=1)
    close(method.deployed(received), torch.from_numpy(L))
    close(received.base.start, torch.from_numpy(hat))
    begin = hat if keep else np.tile(Theta, (2, 1))
    close(after.base.theta, torch.from_numpy(begin - 0.1 * (begin - c)))
