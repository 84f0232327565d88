"""FedPHP (methods.md 1.10): the MMD term, the numbers of the specification, twins in plain PyTorch, limits, and with ALA."""

import numpy as np
import pytest
import torch
from support.cases import engines
from support.twins import buffers, close, near, rows, setup, vector
from torch.func import grad, vmap
from torch.nn import functional as F

from pflbench import methods
from pflbench.contract.small import train
from pflbench.contract.toy import q2, rounds
from pflbench.methods.fedphp import FedPHP, mmd
from pflbench.spec import MethodSpec

kernels = pytest.mark.parametrize("kernel", ["fixed", "adaptive"])
H = torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
H_P = torch.tensor([[0.0, 1.0], [2.0, 1.0]], dtype=torch.float64)


def by_rows(own, other, kernel):
    """MMD from its definition, one row after another; the bandwidth counts as a constant."""
    points = torch.cat([own, other])
    with torch.no_grad():
        total = sum((points - p).pow(2).sum() for p in points)
        bw = (total / (len(points) * (len(points) - 1)) + 1e-8) / 4
    widths = (20, 30, 40, 100) if kernel == "fixed" else [bw * 2**k for k in range(5)]

    def summed(a, b):
        return sum(torch.exp(-(b - x).pow(2).sum(1) / w).sum() for x in a for w in widths)

    return (summed(own, own) + summed(other, other) - 2 * summed(own, other)) / len(own) ** 2


@pytest.mark.parametrize("of", [mmd, by_rows])
@pytest.mark.parametrize(("kernel", "expected"), [("fixed", 0.2784885463), ("adaptive", 2.9367479118)])
def test_mmd_numbers(kernel, expected, of):
    assert of(H, H_P, kernel).item() == pytest.approx(expected, abs=1e-9)


@kernels
@pytest.mark.parametrize("size", [7, 1])
def test_mmd_and_its_gradient_row_by_row(kernel, size):
    draw = np.random.default_rng(3)
    own, other = torch.from_numpy(3 * draw.normal(size=(2, 4, size, 5)))
    other[1, : size // 2] = own[1, : size // 2]  # equal points, where the root of d^2 has no derivative
    of_many = vmap(lambda a, b: grad(lambda x: mmd(x, b, kernel))(a))(own, other)
    for mine, theirs, slope in zip(own, other, of_many, strict=True):
        close(mmd(mine, theirs, kernel), by_rows(mine, theirs, kernel))
        expected = torch.autograd.grad(by_rows(mine.requires_grad_(), theirs, kernel), mine)[0]
        close(torch.autograd.grad(mmd(mine, theirs, kernel), mine)[0], expected)
        close(slope, expected)
    assert torch.isfinite(mmd(H[:1], H[:1], kernel))


@kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_identical_features_have_no_mmd(kernel, dtype, offset):
    """Nor a gradient; even far from 0, where xx + yy - 2xy would lose all digits or fall below 0."""
    x = (torch.randn(10, 64, generator=torch.Generator().manual_seed(1), dtype=dtype) + offset).requires_grad_()
    value = mmd(x, x.detach().clone(), kernel)
    value.backward()
    assert abs(value.item()) < 1e-6
    assert x.grad.abs().max() < 1e-6
    alike = torch.full((3, 4), 7.0, dtype=dtype)
    assert mmd(alike, alike, kernel).item() == 0


@engines
def test_q2_paper(engine):
    seen = rounds(FedPHP(lam=0), q2(engine), 4)
    expected = [(0.1, 0), (0.1523125, 0.034875), (0.194078125, 0.06271875), (0.2229533594, 0.0819689062)]
    for t, ((_, after), p_1) in enumerate(zip(seen, expected, strict=True), start=1):
        near(after.p[0], p_1)
        assert after.z.tolist() == [t, t]
    near(seen[-1][1].w, [0.257925, 0.17195])
    assert torch.equal(FedPHP().deployed(seen[-1][1]), seen[-1][1].p)


@engines
def test_q2_moving_average(engine):
    method, fed = FedPHP(variant="fedala2022", lam=0), q2(engine)
    Theta, theta, c, q = np.zeros(2), np.zeros((2, 2)), np.array([[1.0, 0], [0, 2]]), np.array([0.75, 0.25])
    seen = rounds(method, fed, 4)
    for R, (received, after) in enumerate(seen):
        hat = (1 - 0.9 * R / 4) * Theta + 0.9 * R / 4 * theta
        near(method.deployed(received), hat)
        theta = hat - 0.1 * (hat - c)
        Theta = q @ theta
        near(after.w, Theta)
    last = method.receive(fed.at(5), seen[-1][1], fed.cohort(5))
    near(method.deployed(last), 0.1 * Theta + 0.9 * theta)


@engines
@pytest.mark.parametrize(
    ("model", "variant", "kernel"),
    [
        ("mlp", "paper", "fixed"),
        ("mlp", "paper", "adaptive"),
        ("batchnorm", "paper", "fixed"),
        ("mlp", "fedala2022", "fixed"),
        ("batchnorm", "fedala2022", "adaptive"),
    ],
)
def test_twin(model, variant, kernel, engine):
    fed, twin = setup(model, engine)
    private, mu, lam = [twin.fresh() for _ in twin.clients], 0.8, 0.4
    taken_part = [0] * fed.size
    state = train(FedPHP(variant=variant, kernel=kernel, mu=mu, lam=lam), fed, 3)

    def receive(t, S):
        for c in S.tolist():
            weight = mu * (t - 1) / fed.protocol.rounds if variant == "fedala2022" else 0.0
            with torch.no_grad():
                for own, new in zip(twin.clients[c].parameters(), twin.server.parameters(), strict=True):
                    own.copy_((1 - weight) * new + weight * own)

    for t in (1, 2, 3):
        S, plan = fed.cohort(t), fed.at(t).batches(fed.cohort(t))
        receive(t, S)
        for i, c in enumerate(S.tolist()):
            module, frozen = twin.clients[c].train(), (private[c] if variant == "paper" else twin.server).train()
            optimiser = torch.optim.SGD(module.parameters(), lr=fed.protocol.lr)
            for index in plan.batches(i):
                x, y = twin.data(index)
                own = module.features(x)
                logits = module.get_submodule(module.head)(own)
                distance = by_rows(own, frozen.features(x).detach(), kernel)
                optimiser.zero_grad()
                ((1 - lam) * F.cross_entropy(logits, y) + lam * distance).backward()
                optimiser.step()
            mu_t = min(max(mu * taken_part[c] / int(0.75 * fed.protocol.rounds), 0), mu)
            with torch.no_grad():
                for p, w in zip(private[c].parameters(), module.parameters(), strict=True):
                    p.copy_(mu_t * p + (1 - mu_t) * w)
            taken_part[c] += 1
        twin.average(S)
    assert state.z.tolist() == taken_part
    close(state.w, vector(twin.server))
    close(fed.buffers_of("model"), buffers(twin.clients))
    if variant == "fedala2022":
        receive(4, fed.cohort(4))
    close(FedPHP(variant=variant).deployed(state), rows(private if variant == "paper" else twin.clients))


@engines
@pytest.mark.parametrize("variant", ["paper", "fedala2022"])
def test_q2_with_ala(variant, engine):
    """One weight step on index 1 in round 2: R is Theta or the moving average, L is theta_i; the rest as without ALA."""
    options = {"variant": variant, "lam": 0, "s": 100, "max_init_epochs": 1}
    fed, method = q2(engine), methods.make(MethodSpec(name="fedphp+ala", hyperparameters=options))
    (_, _), (received, after) = rounds(method, fed, 2)
    L, c, Theta = np.array([[0.1, 0], [0, 0.2]]), np.array([[1.0, 0], [0, 2]]), np.array([0.075, 0.05])
    weight = 0.9 / 4 if variant == "fedala2022" else 0.0
    R = (1 - weight) * Theta + weight * L
    W = np.clip(1 - (R - c)[:, 1] * (R - L)[:, 1], 0, 1)
    hat = np.stack([R[:, 0], L[:, 1] + (R - L)[:, 1] * W], axis=1)
    trained = hat - 0.1 * (hat - c)
    close(received.base.start, torch.from_numpy(hat))
    close(after.local, torch.from_numpy(trained))
    close(received.ala.W[:, 0], torch.from_numpy(W))
    if variant == "paper":
        close(method.deployed(received), torch.from_numpy(L))
        close(method.deployed(after), torch.from_numpy(0.225 * L + 0.775 * trained))
    else:
        close(method.deployed(received), torch.from_numpy(hat))
