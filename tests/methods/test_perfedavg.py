"""Per-FedAvg (methods.md 1.5): the numbers of the specification, twins in plain PyTorch, options, edge cases, and with ALA."""

import copy

import numpy as np
import pytest
import torch
from support.cases import engines
from support.twins import buffers, close, near, rows, setup, vector
from torch.nn import functional as F

from pflbench import methods
from pflbench.contract.small import federation, train
from pflbench.contract.toy import Quadratic, by_hand, q2, rounds
from pflbench.methods.perfedavg import PerFedAvg, first_order, hessian_free
from pflbench.run.options import RunOptions
from pflbench.run.plan import preset_notes
from pflbench.spec import MethodSpec

variants = pytest.mark.parametrize("hessian", ["fo", "hf"])


@engines
def test_q2_first_order(engine):
    method, fed = PerFedAvg(passes=1), q2(engine)
    (received, first), (again, _) = rounds(method, fed, 2)
    near(method.deployed(received), [[0.1, 0], [0, 0.2]])
    near(method.train(fed.at(1), received, fed.cohort(1)), [[0.09, 0], [0, 0.18]])
    near(first.w, [0.0675, 0.045])
    near(method.deployed(again), [[0.16075, 0.0405], [0.06075, 0.2405]])
    near(method.train(fed.at(2), again, fed.cohort(2)), [[0.151425, 0.04095], [0.061425, 0.22095]])


@engines
def test_q2_hessian_free(engine):
    method, fed = PerFedAvg(hessian="hf", passes=1), q2(engine)
    ((received, _),) = rounds(method, fed, 1)
    near(method.train(fed.at(1), received, fed.cohort(1)), [[0.081, 0], [0, 0.162]])


@engines
@pytest.mark.parametrize(("hessian", "expected"), [("fo", [0.16, 0.24]), ("hf", [0.128, 0.144])])
def test_a_curved_quadratic(engine, hessian, expected):
    """f = sum a_k / 2 (w_k - 1)^2, a = (2, 4), from w = 0."""
    a = torch.tensor([2.0, 4.0]).double()

    def loss(output, _):
        return (a * output.square()).sum(-1).mean() / 2

    fed = by_hand(Quadratic(), np.ones((30, 2)), (30,), engine, loss=loss)
    method = PerFedAvg(hessian=hessian, passes=1)
    near(method.train(fed.at(1), method.init(fed), fed.cohort(1)), [expected])


def test_hessian_free_is_the_gradient_through_the_adaptation_step():
    """With one batch three times it is the derivative of f(w - alpha * grad f(w)), taken here by autograd."""
    draw = torch.Generator().manual_seed(4)
    X, y = torch.randn(30, 7, generator=draw).double(), torch.randint(3, (30,), generator=draw)
    W = torch.randn(2, 21, generator=draw).double()

    def f(w):
        return F.cross_entropy(X @ w.view(7, 3), y)

    def grad(w, part=0):
        return torch.stack([torch.func.grad(f)(row) for row in w])

    alpha, beta = 0.5, 0.3
    exact = torch.stack([w - beta * torch.func.grad(lambda v: f(v - alpha * torch.func.grad(f)(v)))(w) for w in W])
    hf = hessian_free(grad, w=W, alpha=alpha, beta=beta, delta=1e-4)["w"]
    fo = first_order(grad, w=W, alpha=alpha, beta=beta)["w"]
    torch.testing.assert_close(hf, exact, rtol=0, atol=1e-9)
    assert (fo - exact).abs().max() > 1e-3


def gradient(module, data):
    """Of the cross-entropy, in training mode: BatchNorm's buffers change."""
    x, y = data
    return torch.autograd.grad(F.cross_entropy(module.train()(x), y), list(module.parameters()))


@torch.no_grad()
def move(module, gradients, rate):
    for p, g in zip(module.parameters(), gradients, strict=True):
        p -= rate * g


def meta_step(module, batches, alpha, beta, delta):
    """One meta-step in place, on a module whose parameters are moved to and fro; D, D' or D, D', D''."""
    origin = copy.deepcopy(module.state_dict())

    def restore():
        with torch.no_grad():
            for name, p in module.named_parameters():
                p.copy_(origin[name])

    move(module, gradient(module, batches[0]), alpha)
    u = gradient(module, batches[1])
    restore()
    total = list(u)
    if len(batches) == 3:
        move(module, u, -delta)
        up = gradient(module, batches[2])
        restore()
        move(module, u, delta)
        down = gradient(module, batches[2])
        restore()
        total = [a - alpha * (b - c) / (2 * delta) for a, b, c in zip(u, up, down, strict=True)]
    move(module, total, beta)


@engines
@variants
@pytest.mark.parametrize("model", ["mlp", "batchnorm"])
@pytest.mark.parametrize("adapt_on", ["train", "test2022"])
def test_twin(model, hessian, adapt_on, engine):
    fed, twin = setup(model, engine, n=(33, 8, 21, 14))
    alpha, beta, delta, B = 0.15, 0.08, 0.01, fed.protocol.batch_size
    method = PerFedAvg(hessian=hessian, alpha=alpha, beta=beta, delta=delta, passes=1, adapt_on=adapt_on)
    state, parts = train(method, fed, 2), 2 if hessian == "fo" else 3
    adapted = [twin.fresh() for _ in twin.clients]

    def adapt(t):
        for c in fed.cohort(t).tolist():
            one = torch.tensor([c])
            if adapt_on == "train":
                order, rates = fed.at(t).batches(one, 1, purpose="batches/adapted").order[0], [alpha]
            else:
                tests = [fed.test_indices[c]]
                plan = fed.at(t).batches(one, 1, purpose="batches/adapted", samples=tests, drop_last="never")
                order, rates = plan.order[0], [alpha, beta]
            adapted[c].load_state_dict(twin.clients[c].state_dict())
            twin.load(adapted[c], twin.server)
            for k, rate in enumerate(rates):
                if k * B < len(order):  # a client with a single test batch makes one step
                    move(adapted[c], gradient(adapted[c], twin.data(order[k * B : (k + 1) * B])), rate)

    for t in (1, 2):
        adapt(t)
        S = fed.cohort(t)
        plan = fed.at(t).batches(S, 2, parts=parts)
        for i, c in enumerate(S.tolist()):
            twin.load(twin.clients[c], twin.server)
            for chunk in plan.batches(i):
                assert len(chunk) == min(parts * B, twin.n[c])
                pieces = [twin.data(piece) for piece in np.array_split(chunk, parts)]
                meta_step(twin.clients[c], pieces, alpha, beta, delta)
        twin.average(S)
    adapt(3)
    close(state.w, vector(twin.server))
    close(method.deployed(state), rows(adapted))
    if model == "batchnorm":
        close(fed.buffers["model"], buffers(twin.clients))
        close(fed.buffers["adapted"], buffers(adapted))


def meta_steps(fed, method):
    """Meta-steps of each client in a round, counted by BatchNorm's buffer; FO makes 2 passes forward in each."""
    counter = next(e for e in fed.flat.buffers if e.name.endswith("num_batches_tracked")).start
    method.update(fed.at(1), method.init(fed), fed.all_trainable())
    return (fed.buffers["model"][:, counter] / (2 if method.hessian == "fo" else 4)).tolist()


@engines
@pytest.mark.parametrize(
    ("options", "expected", "dropping"),
    [
        ({}, [2 * 4, 2 * 1, 2 * 1, 0, 0], [2 * 4, 2 * 1, 0, 0, 0]),
        ({"passes": 1}, [4, 1, 1, 0, 0], [4, 1, 0, 0, 0]),
        ({"hessian": "hf"}, [2 * 2, 2 * 1, 2 * 1, 0, 0], [2 * 2, 0, 0, 0, 0]),
    ],
)
def test_meta_steps_of_large_and_small_clients(options, expected, dropping, engine):
    """Chunks of 2B (HF: 3B) = 10 (15); incomplete ones are dropped, unless a client has nothing else (drop_last=auto)."""
    method, n = PerFedAvg(**options), (44, 13, 7, 3, 1)
    assert meta_steps(federation("batchnorm", engine, n=n), method) == expected
    assert meta_steps(federation("batchnorm", engine, n=n, drop_last="always"), method) == dropping
    assert meta_steps(federation("batchnorm", engine, n=n, local_epochs=2), method) == [2 * k for k in expected]


@engines
def test_a_client_of_two_samples_makes_a_meta_step(engine):
    """Without BatchNorm one sample on each side is enough; a client of one makes none and uploads what it received."""
    fed = federation("mlp", engine, n=(2, 1, 20))
    method = PerFedAvg()
    w_S = method.train(fed.at(1), method.init(fed), fed.cohort(1))
    moved = (w_S - fed.initial()).abs().amax(1) > 0
    assert moved.tolist() == [True, False, True]


def test_adapting_on_test_data_must_be_asked_for_by_name_and_is_marked():
    assert not methods.spec("per-fedavg", {}).test_labels
    assert preset_notes(RunOptions(methods=("per-fedavg",), preset="fedala2022")) == [
        "--preset fedala2022 leaves per-fedavg as it is: adapt_on=test2022 adapts on test labels. Ask for it: "
        "--set per-fedavg.adapt_on=test2022"
    ]
    for ala, text in (
        (False, "per-fedavg.adapt_on=test2022"),
        (True, "per-fedavg.adapt_on = test2022"),
        (True, "per-fedavg+ala.adapt_on=test2022"),
    ):
        assert preset_notes(RunOptions(methods=("per-fedavg",), ala=ala, preset="fedala2022", settings=(text,))) == []
    for name in ("per-fedavg", "per-fedavg+ala"):
        asked = methods.spec(name, {"adapt_on": "test2022"})
        assert asked.test_labels
        assert any("no test" in text for text in methods.make(asked).check(federation().protocol))
        assert not list(methods.make(methods.spec(name, {})).check(federation().protocol))


@engines
def test_clients_with_little_or_no_test_data_adapt_as_far_as_it_goes(engine):
    fed = federation("mlp", engine, n=(12, 12, 12), tests=(0, 4, 9))
    method = PerFedAvg(adapt_on="test2022", beta=0)  # the second step, with beta, does nothing
    one = method.receive(fed, method.init(fed), fed.cohort(1)).adapted
    two = PerFedAvg(adapt_on="test2022", beta=0.1).receive(fed, method.init(fed), fed.cohort(1)).adapted
    assert torch.equal(one[0], fed.initial())
    assert torch.equal(one[1], two[1])
    assert not torch.equal(one[1], fed.initial())
    assert not torch.equal(one[2], two[2])


@engines
def test_q2_with_ala(engine):
    """R = Theta, L = what was uploaded last; one weight step on index 1; meta-training and adaptation begin from the result."""
    options = {"passes": 1, "s": 100, "max_init_epochs": 1}
    fed, method = q2(engine), methods.make(MethodSpec(name="per-fedavg+ala", hyperparameters=options))
    _, (received, after) = rounds(method, fed, 2)
    Theta, L, c = np.array([0.0675, 0.045]), np.array([[0.09, 0], [0, 0.18]]), np.array([[1.0, 0], [0, 2]])
    W = np.clip(1 - (Theta - c)[:, 1] * (Theta - L)[:, 1], 0, 1)
    hat = np.stack([np.full(2, Theta[0]), L[:, 1] + (Theta - L)[:, 1] * W], axis=1)
    near(received.ala.W[:, 0], W)
    near(received.base.start, hat)
    near(method.deployed(received), hat - 0.1 * (hat - c))
    near(after.local, hat - 0.09 * (hat - c))
    assert (np.abs(hat - Theta).max(1) > 5e-5).all()
