"""FedPAC: the numbers of methods.md 1.31 and its limiting cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.cases import engines
from support.f2 import f2, losses_at_e1
from support.twins import close, near

from pflbench import methods
from pflbench.contract.small import federation, train
from pflbench.contract.toy import EXECUTORS, rounds
from pflbench.errors import UserError
from pflbench.methods import fedpac
from pflbench.methods.fedpac import FedPAC, head_weights
from pflbench.methods.fedrep import FedRep


@pytest.fixture
def combined(monkeypatch):
    """What the server was told in each round, and the weights that it found: a list of (H, V, a)."""
    seen = []

    def kept(H, V, min_weight):
        seen.append((H, V, head_weights(H, V, min_weight)))
        return seen[-1][2]

    monkeypatch.setattr(fedpac, "head_weights", kept)
    return seen


@pytest.mark.parametrize("name", EXECUTORS)
def test_fedpac(name, combined):
    method = FedPAC()
    e1 = torch.tensor(losses_at_e1(method, f2(name, method), 3), dtype=torch.float64)
    near(e1, [(0.5411905142, 0.8308985442), (0.5002201641, 0.6897974452), (0.471742951, 0.5926054428)])
    (H, V, a), (_, _, second_a), *_ = combined
    near(V, [0.356, 0.5219907407])
    near(H[0].view(3, 3), [[0.95, -0.1, -0.025], [0.15, 0.55, -0.4], [0, 0, 0]])
    near(a, [[0.8903116936, 0.1096883064], [0.160832248, 0.839167752]])
    near(second_a, [[0.890399674, 0.109600326], [0.1604706249, 0.8395293751]])
    (_, first), (_, second) = rounds(method, f2(name, method), 2)
    near(first.base, [1.0033173692, 0.5499305276, -0.5279046063, 1.0061440867, 0.2651870006, -0.7686125409])
    near(second.base, [0.9871932006, 0.5846611563, -0.546425664, 1.0028858222, 0.2758708532, -0.7778318353])
    near(first.prototypes[1], [0.1409512474, 1.4346896268, -1.0277468615])
    assert first.known.all()


def drawn(clients, scale):
    """Statistics of clients: H [c, 3], V [c]."""
    draw = np.random.default_rng(1)
    return torch.from_numpy(scale * draw.normal(size=(clients, 3))), torch.from_numpy(draw.uniform(0.1, 1, size=clients))


def matrices(H, V):
    """M of each client."""
    return [(own - H) @ (own - H).T + V.diag() for own in H]


@pytest.mark.parametrize("scale", [0.1, 1, 10])
def test_the_heads_of_two_clients(scale):
    H, V = drawn(2, scale)
    found = head_weights(H, V, 0)
    for a, M in zip(found, matrices(H, V), strict=True):
        first = ((M[1, 1] - M[0, 1]) / (M[0, 0] + M[1, 1] - 2 * M[0, 1])).clamp(0, 1)
        close(a, torch.stack([first, 1 - first]))


def test_the_heads_of_many_clients():
    """a is the best if the gradient Ma is the same for all weights that are not 0, and no less for the others."""
    H, V = drawn(12, 0.3)
    found = head_weights(H, V, 0)
    assert found.min() == 0
    close(found.sum(1), torch.ones_like(V))
    for a, M in zip(found, matrices(H, V), strict=True):
        gradient = M @ a
        close(gradient[a > 0], gradient.min().expand(int((a > 0).sum())))


def exactly(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def test_small_weights_are_left_out():
    """With equal statistics a ~ 1 / V."""
    H, V = torch.zeros(3, 2, dtype=torch.float64), exactly(1, 2, 2000)
    close(head_weights(H, V, 0), ((1 / V) / (1 / V).sum()).expand(3, 3))
    close(head_weights(H, V, 0.001), exactly(2 / 3, 1 / 3, 0).expand(3, 3))
    close(head_weights(H, V, 0.9), exactly(1, 0, 0).expand(3, 3))


def test_clients_of_one_sample_have_no_variance():
    """Each takes its own head; of those with equal statistics each takes the same of both."""
    H, V = exactly([0, 0], [1, 0], [0, 1]), exactly(0, 0, 0.5)
    close(head_weights(H, V, 0.001)[:2], torch.eye(3, dtype=H.dtype)[:2])
    close(head_weights(H[[0, 0]], V[:2], 0.001), exactly([0.5, 0.5], [0.5, 0.5]))
    close(head_weights(H[:1], V[:1], 0.001), exactly([1]))


@engines
@pytest.mark.parametrize("model", ["mlp", "batchnorm"])
def test_without_prototypes_and_combination_it_is_fedrep(model, engine, monkeypatch):
    monkeypatch.setattr(fedpac, "head_weights", lambda H, *_: torch.eye(len(H), dtype=H.dtype))
    how = {"engine": engine, "local_epochs": 2, "join_ratio": 0.75}
    method = FedPAC(lam=0, head_epochs=3)
    found = train(method, federation(model, around=method.model, **how))
    expected = train(FedRep(tau=3), federation(model, **how))
    close(found.base, expected.w, 0)
    close(found.theta[:, : expected.theta.shape[1]], expected.theta, 0)


def updated(method, fed, *cohorts):
    """The state after each round with the given cohort."""
    state, seen = method.init(fed), []
    for t, members in enumerate(cohorts, start=1):
        S = torch.tensor(members)
        state = method.update(fed.at(t), method.receive(fed.at(t), state, S), S)
        seen.append(state)
    return seen


@pytest.mark.parametrize("name", EXECUTORS)
def test_classes_that_the_cohort_lacks(name):
    """On F2 client 1 has classes 0 and 1, client 2 has 1 and 2. Its own mean of a class: of the inputs, by the received base."""
    method = FedPAC()
    fed = f2(name, method)
    first, second = updated(method, fed, [0], [1])
    assert first.known.tolist() == [True, True, False]
    assert second.known.tolist() == [False, True, True]
    assert not second.prototypes[0].any()
    targets = second.theta[1, fed.flat.columns(["targets"])].view(3, 3)
    near(targets[1], first.prototypes[1], 0)
    near(targets[2], first.base.view(3, 2) @ torch.tensor([0.25, -1.25], dtype=torch.float64), 1e-12)


def test_prototypes_of_pfllib():
    """The mean over the clients that have a class, whatever their samples are."""
    together, uniform = FedPAC(), FedPAC(prototypes="uniform")
    fed = f2("loop", together)
    (own,), (other,), (both,), (even,) = (
        updated(method, fed, S) for method, S in [(together, [0]), (together, [1]), (together, [0, 1]), (uniform, [0, 1])]
    )
    near(
        both.prototypes, torch.stack([own.prototypes[0], (2 * own.prototypes[1] + other.prototypes[1]) / 3, other.prototypes[2]])
    )
    near(even.prototypes[1], (own.prototypes[1] + other.prototypes[1]) / 2)
    assert methods.spec("fedpac", {}, "pfllib2025").hyperparameters["prototypes"] == "uniform"


def test_the_rate_of_the_heads():
    for rate, expected in ((0.0, True), ("lr", False)):
        method = FedPAC(head_lr=rate)
        fed = f2("loop", method)
        (state,) = updated(method, fed, [0, 1])
        moved = (state.theta - fed.initial())[:, fed.flat.head].abs().max()
        assert (moved < 1e-12) == expected  # the server's combination of equal heads rounds
    (given,), (default,) = (updated(FedPAC(head_lr=rate), f2("loop", FedPAC()), [0, 1]) for rate in (0.1, "lr"))
    close(given.theta, default.theta, 0)


def test_a_model_that_is_a_head_alone_is_refused():
    fed = federation("logreg", around=FedPAC().model)
    with pytest.raises(UserError, match="a head alone"):
        FedPAC().init(fed)
