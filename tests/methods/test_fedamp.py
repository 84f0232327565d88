"""FedAMP and HeurFedAMP (methods.md 1.9): the specification's numbers, twins in plain PyTorch, limits, ALA."""

import math

import numpy as np
import pytest
import torch
from support.cases import engines
from support.twins import buffers, close, clouds, near, rows, setup, vector
from torch.nn import functional as F

from pflbench import methods
from pflbench.contract.small import federation, train
from pflbench.contract.toy import q2, rounds
from pflbench.errors import UserError
from pflbench.methods.fedamp import AMPState, FedAMP
from pflbench.methods.heurfedamp import HeurFedAMP
from pflbench.spec import MethodSpec, TrainSpec

both = pytest.mark.parametrize("cls", [FedAMP, HeurFedAMP])
UNIT = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)


def holding(w):
    """The state in which clients have uploaded w and received nothing since."""
    return AMPState(w=w, u=torch.zeros_like(w), start=w)


# -- the numbers of the specification -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alpha_k", "sigma", "xi_12"), [(1, 1, 0.1353352832), (1000, 0.1, 2.0611536e-5), (1, 0.5, 0.0366312778)])
def test_attention(alpha_k, sigma, xi_12):
    near(FedAMP(alpha_k=alpha_k, sigma=sigma).attention(UNIT, 1), [[0, xi_12], [xi_12, 0]], 1e-10)


@engines
def test_a_round(engine):
    """A = 0.8646647168, u_1, and one step from w_1 on |w - (1, 1)|^2 / 2."""
    fed, method = q2(engine, centres=((1, 1), (1, 1))).at(2), FedAMP(alpha_k=1, sigma=1)
    S = fed.cohort(2)
    received = method.receive(fed, holding(UNIT), S)
    near(received.u, [[0.8646647168, 0.1353352832], [0.1353352832, 0.8646647168]])
    close(method.deployed(received), UNIT)
    after = method.update(fed, received, S)
    near(after.w[0], [0.9864664717, 0.1135335283])


@pytest.mark.parametrize(
    ("sigma", "xi_ii", "xi_12", "xi_13"),
    [(1, 1 / 3, 0.2201589671, 0.4465076996), (1, "1/N", 0.2201589671, 0.4465076996), (10, 0.5, 4.2430248e-4, 0.4995756975)],
)
def test_heuristic_attention(sigma, xi_ii, xi_12, xi_13):
    method, w = HeurFedAMP(sigma=sigma, xi_ii=xi_ii), torch.cat([UNIT, torch.ones(1, 2)])
    near(method.attention(w, 1)[0], [0, xi_12, xi_13], 1e-10)
    if sigma == 1:
        near(clouds(method, w)[0], [0.7798410329, 0.6666666667])


def test_the_clouds_are_a_gradient_step_on_the_attention_term():
    """U = W - alpha_k / 2 * grad of sum_{i<j} A(|w_i - w_j|^2), by automatic differentiation; for the 2 see `attention`."""
    w = torch.randn(5, 7, generator=torch.Generator().manual_seed(2), dtype=torch.float64).requires_grad_()
    i, j = torch.triu_indices(5, 5, 1)
    (1 - torch.exp(-(w[i] - w[j]).square().sum(1) / 4)).sum().backward()
    close(clouds(FedAMP(alpha_k=3, sigma=4), w.detach()), (w - 3 / 2 * w.grad).detach())


# -- twins ----------------------------------------------------------------------------------------------------------------


def attention_by_hand(method, vectors, i):
    """xi_ij for all j, as printed, with Python's numbers; xi_ii last of all."""
    others = [j for j in range(len(vectors)) if j != i]
    if isinstance(method, FedAMP):
        squares = {j: float(((vectors[i] - vectors[j]) ** 2).sum()) for j in others}
        xi = {j: method.alpha_k * math.exp(-squares[j] / method.sigma) / method.sigma for j in others}
        if method.xi_clip and sum(xi.values()) > 1:
            xi = {j: value / sum(xi.values()) for j, value in xi.items()}
    else:
        e = {j: math.exp(method.sigma * float(F.cosine_similarity(vectors[i], vectors[j], dim=0, eps=0))) for j in others}
        own = 1 / len(vectors) if method.xi_ii == "1/N" else method.xi_ii
        xi = {j: (1 - own) * e[j] / sum(e.values()) for j in others}
    return [xi.get(j, 1 - sum(xi.values())) for j in range(len(vectors))]


@engines
@pytest.mark.parametrize("model", ["mlp", "batchnorm"])
@pytest.mark.parametrize(
    "method",
    [
        FedAMP(alpha_k=0.5, lam=0.6, sigma=2.0),
        FedAMP(alpha_k=0.5, lam=0.6, sigma=2.0, start="cloud"),
        FedAMP(alpha_k=4.0, lam=3.0, sigma=2.0, start="cloud", xi_clip=True),
        FedAMP(alpha_k=0.5, lam=0.6, sigma=2.0, self_term="prev_cloud"),
        HeurFedAMP(alpha_k=0.5, lam=0.6),
        HeurFedAMP(alpha_k=0.5, lam=0.6, sigma=2.0, xi_ii=0.7, start="cloud"),
    ],
    ids=["fedamp", "cloud", "clip", "prev_cloud", "heurfedamp", "xi_ii"],
)
def test_twin(method, model, engine):
    fed, twin = setup(model, engine)
    state = train(method, fed, 3)
    w = [vector(m) for m in twin.clients]
    u, reach = [v.clone() for v in w], 0.0
    for t in (1, 2, 3):
        S, plan = fed.cohort(t).tolist(), fed.at(t).batches(fed.cohort(t))
        uploaded = [w[c] for c in S]
        for k, c in enumerate(S):
            if t > 1:
                xi = attention_by_hand(method, uploaded, k)
                own = u[c] if getattr(method, "self_term", "own") == "prev_cloud" else w[c]
                u[c] = xi[k] * own + sum(xi[j] * uploaded[j] for j in range(len(S)) if j != k)
                reach = max(reach, (u[c] - w[c]).norm().item())
        for k, c in enumerate(S):
            module, cloud = twin.clients[c], twin.fresh()
            torch.nn.utils.vector_to_parameters(u[c].clone(), cloud.parameters())
            if method.start == "cloud":
                twin.load(module, cloud)
            twin.sgd(module, plan, k, cloud, method.lam / method.alpha_k)
            w[c] = vector(module)
    assert reach > 0.05, "the clouds differ from the clients' own models"
    close(state.w, torch.stack(w))
    close(state.w, rows(twin.clients))
    close(fed.buffers_of("model"), buffers(twin.clients))


# -- limits ---------------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_identical_models_stay_where_they_are(cls, dtype):
    """xi_ij = alpha_k / sigma = 10^4 there: an exact result shows that large weights cancel."""
    w = torch.randn(1, 300, generator=torch.Generator().manual_seed(4), dtype=dtype).expand(6, -1).clone()
    assert torch.equal(clouds(cls(), w), w)
    if cls is FedAMP:
        assert FedAMP().attention(w, 1)[0, 1] == 1000 / 0.1
    pair = torch.cat([w[:2], w[:1] + 5])
    torch.testing.assert_close(clouds(cls(), pair)[0], clouds(cls(), pair)[1], rtol=0, atol=0)


# -- options --------------------------------------------------------------------------------------------------------------


@engines
def test_alpha_k_decays(engine):
    """1, 1, 1/2, 1/2, ...: in round 3 xi_12 = e^-2 / 2, and HeurFedAMP's pull to u_1 = (1/2, 1/2) is twice that of round 2."""
    amp, heuristic = ({"alpha_k": 1, "alpha_decay": 0.5, "alpha_every": 2, **more} for more in ({"sigma": 1}, {"start": "own"}))
    assert [FedAMP(**amp).step_size(t) for t in (1, 2, 3, 4, 5)] == [1, 1, 0.5, 0.5, 0.25]
    for t, alpha in ((2, 1), (3, 0.5)):
        fed = q2(engine, centres=((1, 1), (1, 1))).at(t)
        S, xi = fed.cohort(t), alpha * math.exp(-2)
        near(FedAMP(**amp).receive(fed, holding(UNIT), S).u, [[1 - xi, xi], [xi, 1 - xi]], 1e-12)
        method = HeurFedAMP(**heuristic)
        received = method.receive(fed, holding(UNIT), S)
        close(received.u, torch.full((2, 2), 0.5).double())
        # w_1 = (1, 0) - 0.1 * ((0, -1) + (1/2, -1/2) / alpha)
        near(method.update(fed, received, S).w[0], [1 - 0.05 / alpha, 0.1 + 0.05 / alpha], 1e-12)


def test_a_pull_beyond_the_cloud_is_refused_or_warned_of():
    """A step leaves 1 - lr lam / alpha_k of the distance: at -1 and below it never ends."""

    def said(rounds, **how):
        return list(HeurFedAMP(**how).check(TrainSpec(rounds=rounds, lr=0.1)))

    assert said(2000) == said(2000, alpha_k=0.1) == []
    assert said(2000, alpha_k=0.08) == ["lr * lam / alpha_k = 1.25 is above 1 in round 2000: steps go beyond the cloud model"]
    assert said(60, alpha_k=1, alpha_decay=0.1) == []
    with pytest.raises(UserError, match="lr \\* lam / alpha_k = 10 in round 61 cannot converge"):
        said(61, alpha_k=1, alpha_decay=0.1)
    # Rates and alpha_k that fall together pull no more than in the first round.
    falling = TrainSpec(rounds=25, lr=0.1, lr_schedule="step", lr_step_every=5, lr_gamma=0.1)
    assert list(HeurFedAMP(alpha_k=1, alpha_decay=0.1, alpha_every=10).check(falling)) == []
    with pytest.raises(UserError, match="lr \\* lam / alpha_k = 10 in round 5 cannot converge"):
        list(HeurFedAMP(alpha_k=0.01).check(falling))


@pytest.mark.parametrize("options", [{}, {"self_term": "prev_cloud"}])
def test_weights_that_are_no_convex_combination_are_noted(options):
    fed, pair = federation().at(2), torch.tensor([[0.0], [0.5], [50.0], [100.0]], dtype=torch.float64)
    FedAMP(**options).receive(fed, holding(pair), fed.cohort(2))
    (text,) = fed.ledger.notes.values()
    assert text.startswith("from round 2 on clouds are no convex combinations")
    assert f"xi_ii is {1 - 1e4 * math.exp(-2.5):.3g}." in text
    assert fed.ledger.artifacts["attention_zero_rows"] == 0.5
    assert fed.ledger.artifacts["attention_self_min"] == pytest.approx(1 - 1e4 * math.exp(-2.5))
    for convex in (FedAMP(xi_clip=True), FedAMP(sigma=1e-6), HeurFedAMP(), HeurFedAMP(xi_ii=0)):
        fed = federation().at(2)
        convex.receive(fed, holding(pair), fed.cohort(2))
        assert fed.ledger.notes == {}


@pytest.mark.parametrize("name", ["fedamp", "heurfedamp"])
def test_a_join_ratio_below_one_must_be_asked_for(name):
    part = TrainSpec(rounds=1, lr=0.1, join_ratio=0.5)
    for full in (name, f"{name}+ala"):
        with pytest.raises(UserError, match=r"cross-silo method.*the join ratio is 0\.5"):
            list(methods.make(MethodSpec(name=full)).check(part))
        assert list(methods.make(MethodSpec(name=full, hyperparameters={"partial": True})).check(part)) == []
        assert list(methods.make(MethodSpec(name=full)).check(TrainSpec(rounds=1, lr=0.1))) == []


def test_the_previous_cloud_is_warned_of():
    how = TrainSpec(rounds=3, lr=0.1)
    (said,) = methods.make(methods.spec("fedamp", {}, "fedala2022")).check(how)
    assert "cannot be what made the paper's 88.70" in said
    for others in (methods.spec("fedamp", {}), methods.spec("fedamp+ala", {}, "fedala2022")):
        assert list(methods.make(others).check(how)) == []


@both
def test_what_is_observed(cls):
    fed = federation(join_ratio=0.75)
    method = cls(sigma=2.0)
    state = train(method, fed, 2)
    now, S = fed.at(3), fed.cohort(3)
    method.receive(now, state, S)
    assert set(now.ledger.artifacts) == {"attention_self_min", "attention_zero_rows"}
    now.observing = True
    method.receive(now, state, S)
    seen = now.ledger.artifacts
    xi = torch.from_numpy(seen["attention"])
    outside = [i for i in range(fed.size) if i not in S.tolist()]
    assert xi.shape == (4, 4)
    assert xi[outside].isnan().all()
    assert xi[:, outside].isnan().all()
    mine = xi[S][:, S]
    near(mine, [attention_by_hand(method, state.w[S], k) for k in range(len(S))], 1e-9)
    near(mine.sum(1), [1] * len(S), 1e-9)
    assert seen["attention_self_min"] == mine.diagonal().min()
    assert seen["attention_zero_rows"] == 0


# -- with ALA -------------------------------------------------------------------------------------------------------------


@engines
def test_q2_with_ala(engine):
    """One weight step on index 1 in round 2: R is u_i, L is w_i; training starts from ALA's result, its centre stays u_i."""
    options = {"alpha_k": 1, "sigma": 1, "s": 100, "max_init_epochs": 1}
    method = methods.make(MethodSpec(name="fedamp+ala", hyperparameters=options))
    (_, first), (received, after) = rounds(method, q2(engine), 2)
    c, L = np.array([[1.0, 0], [0, 2]]), np.array([[0.1, 0], [0, 0.2]])
    close(first.base.w, torch.from_numpy(L))
    xi = math.exp(-(0.1**2 + 0.2**2))
    R = np.array([(1 - xi) * L[0] + xi * L[1], (1 - xi) * L[1] + xi * L[0]])
    W = np.clip(1 - (R - c)[:, 1] * (R - L)[:, 1], 0, 1)
    hat = np.stack([R[:, 0], L[:, 1] + (R - L)[:, 1] * W], axis=1)
    close(received.base.u, torch.from_numpy(R))
    close(received.base.start, torch.from_numpy(hat))
    close(method.deployed(received), torch.from_numpy(L))
    close(after.base.w, torch.from_numpy(hat - 0.1 * (hat - c + (hat - R))))
