"""APPLE (methods.md 1.12): the numbers of the specification, a twin in plain PyTorch, limits, options and edge cases."""

import numpy as np
import pytest
import torch
from support.cases import engines
from support.twins import buffers, close, near, rows, setup
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from pflbench.contract.small import federation, train
from pflbench.contract.toy import q2
from pflbench.errors import UserError
from pflbench.methods.apple import APPLE, APPLEState
from pflbench.spec import TrainSpec


@engines
@pytest.mark.parametrize(
    ("batches", "core", "p", "personal"),
    [
        (1, [0.94375, 0.05625], [0.7125, 0.2875], [0.672421875, 0.327578125]),
        (2, [0.8958399414, 0.1041600586], [0.6828487793, 0.3209335937], [0.6117232104, 0.3920591626]),
    ],
)
def test_numbers(engine, batches, core, p, personal):
    fed = q2(engine, centres=((0, 1), (0, 0)), epochs=batches).at(1)
    cores = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double()
    before = APPLEState(cores=cores, p=fed.everyone(torch.tensor([0.75, 0.25]).double()), personal=cores.clone())
    after = APPLE(eta_2=0.05, mu=0.1, L=1, scale_lr=False).update(fed, before, fed.cohort(1))
    near(after.cores[0], core)
    near(after.p[0], p)
    near(after.personal[0], personal)
    near(before.cores, [[1, 0], [0, 1]])


@pytest.mark.parametrize(
    ("scheduler", "L", "expected"),
    [
        ("cos", 0.2, {0: 1, 100: 0.8535533906, 200: 0.5, 300: 0.1464466094, 400: 0, 1999: 0}),
        ("exp", 0.2, {0: 1, 200: 0.001**0.5, 399: 0.001 ** (399 / 400), 400: 0}),
        ("cos", 0, {0: 0, 1: 0}),
        ("exp", 0, {0: 0, 1: 0}),
        ("cos", 1, {0: 1, 1000: 0.5}),
    ],
)
def test_lambda(scheduler, L, expected):
    fed = federation(rounds=2000)
    for r, value in expected.items():
        assert APPLE(scheduler=scheduler, L=L).lambda_(fed.at(r + 1)) == pytest.approx(value, abs=1e-9)


@engines
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("batchnorm", {}),
        ("mlp", {"p_grad": "mean", "eta_2": 0.5}),
        ("batchnorm", {"momentum": 0.9, "scale_lr": False}),
        ("mlp", {"p_init": "uniform", "scheduler": "exp"}),
    ],
)
def test_twin(model, engine, options):
    fed, twin = setup(model, engine, lr=0.05)
    method = APPLE(**{"eta_2": 0.02, "mu": 0.7, "L": 1, **options})
    state = train(method, fed)
    N, n = fed.size, torch.tensor(twin.n, dtype=torch.float64)
    cores, p_0 = [twin.fresh() for _ in range(N)], n / n.sum()
    start = torch.full((N,), 1 / N, dtype=torch.float64) if method.p_init == "uniform" else p_0
    p = [nn.Parameter(start.clone()) for _ in range(N)]
    personal = [twin.fresh() for _ in range(N)]  # their modules also hold BatchNorm's buffers
    eta_1 = fed.protocol.lr * (N if method.scale_lr else 1)
    for now, S in twin.rounds(3):
        r, R_L = now.t - 1, fed.protocol.rounds
        lam = 0.001 ** (r / R_L) if method.scheduler == "exp" else (np.cos(np.pi * r / R_L) + 1) / 2
        downloaded = [[q.detach().clone() for q in core.parameters()] for core in cores]
        for i, c in enumerate(S.tolist()):
            own, module = cores[c], personal[c].train()
            optimisers = (
                torch.optim.SGD(own.parameters(), lr=eta_1, momentum=method.momentum),
                torch.optim.SGD([p[c]], lr=method.eta_2),
            )

            def mixture(own=own, c=c, downloaded=downloaded):
                models = [list(own.parameters()) if j == c else downloaded[j] for j in range(N)]
                return models, [sum(p[c][j] * models[j][k] for j in range(N)) for k in range(len(models[0]))]

            for index in now.batches(S).batches(i):
                x, y = twin.data(index)
                models, mixed = mixture()
                names = dict(zip(dict(module.named_parameters()), mixed, strict=True))
                loss = F.cross_entropy(functional_call(module, names, (x,)), y)
                penalty = lam * method.mu / 2 * (p[c] - p_0).pow(2).sum()
                for optimiser in optimisers:
                    optimiser.zero_grad()
                if method.p_grad == "mean":
                    G = torch.autograd.grad(loss, mixed, retain_graph=True)
                    slope = torch.stack(
                        [torch.stack([(g * w).mean() for g, w in zip(G, of, strict=True)]).mean() for of in models]
                    )
                    loss.backward()
                    p[c].grad = slope.detach() + lam * method.mu * (p[c] - p_0).detach()
                else:
                    (loss + penalty).backward()
                for optimiser in optimisers:
                    optimiser.step()
            with torch.no_grad():
                for q, value in zip(module.parameters(), mixture()[1], strict=True):
                    q.copy_(value)
    close(state.p, torch.stack([q.detach() for q in p]))
    close(state.cores, rows(cores))
    close(state.personal, rows(personal))
    assert (state.p - start).abs().max() > 1e-3
    assert torch.pdist(state.cores).min() > 1e-3
    close(fed.buffers_of("model"), buffers(personal))


@engines
@pytest.mark.parametrize("p_init", ["size", "uniform"])
def test_an_empty_client_has_no_part_in_any_model(engine, p_init):
    fed, method = federation(engine=engine, n=(14, 0, 6, 1)), APPLE(p_init=p_init)
    begin = method.init(fed).p[0]
    near(begin, [14 / 21, 0, 6 / 21, 1 / 21] if p_init == "size" else [1 / 3, 0, 1 / 3, 1 / 3])
    p = train(method, fed).p
    assert not p[:, 1].any()
    assert (p[[0, 2, 3]][:, [0, 2, 3]] != begin[[0, 2, 3]]).all()


def test_observations():
    fed, method = federation().at(1), APPLE()
    S = fed.cohort(1)
    state = method.update(fed, method.init(fed), S)
    close(torch.from_numpy(fed.ledger.artifacts["relationships_max"]), state.p.abs().amax(1))
    assert "relationships" not in fed.ledger.artifacts
    fed.observing = True
    method.update(fed, method.init(fed), S)
    close(torch.from_numpy(fed.ledger.artifacts["relationships"]), state.p)


def test_partial_participation_is_refused():
    with pytest.raises(UserError, match=r"cross-silo.*join ratio is 0\.5"):
        list(APPLE().check(TrainSpec(rounds=1, lr=0.1, join_ratio=0.5)))
    assert list(APPLE().check(TrainSpec(rounds=1, lr=0.1))) == []


def test_m_is_the_number_of_clients():
    fed = federation()
    assert torch.equal(APPLE(M=fed.size).init(fed).p, APPLE().init(fed).p)
    with pytest.raises(UserError, match=r"M = 3, but .* all 4"):
        APPLE(M=3).init(fed)


@pytest.mark.parametrize(("lr", "scale_lr", "said"), [(0.25, True, True), (0.24, True, False), (0.25, False, False)])
def test_a_rate_that_the_number_of_clients_makes_large_is_said(lr, scale_lr, said):
    """Four clients: N * lr is 1 or a little less."""
    fed, method = federation(lr=lr).at(1), APPLE(scale_lr=scale_lr)
    method.receive(fed, method.init(fed), fed.cohort(1))
    assert ("N * lr = 1:" in fed.ledger.notes.get("large rate", "")) == said
