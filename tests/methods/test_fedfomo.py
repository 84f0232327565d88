"""FedFomo (methods.md 1.11): the specification's numbers, a twin in plain PyTorch, who downloads what, limits and edge cases."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.cases import engines
from support.spies import on_call
from support.twins import Twin, buffers, close, near, rows, vector
from torch.nn import functional as F
from torch.nn.utils import vector_to_parameters

from pflbench.contract.small import federation, train
from pflbench.contract.toy import q2
from pflbench.engine.federation import Federation
from pflbench.errors import Diverged
from pflbench.methods.fedfomo import FedFomo, fomo_weights


def is_own(c, N):
    return torch.eye(N, dtype=torch.bool)[:c]


# -- the numbers of the specification -------------------------------------------------------------------------------------


def three(monkeypatch, losses, engine="loop"):
    """Three clients in round 2: o_1 = (0,0), uploaded models (2,0), (0,1), (0,-0.5), and losses L_1 by model."""
    fed = q2(engine, centres=((1, 0), (0, 2), (1, 1)), n=(10, 10, 10)).at(2)
    theta = torch.tensor([[2, 0], [0, 1], [0, -0.5]], dtype=torch.float64)

    def of(self, models, S, samples, shared_by=None):
        rows = models if shared_by is None else models.repeat_interleave(shared_by, dim=0)
        return torch.tensor([losses[tuple(row)] for row in rows.tolist()], dtype=torch.float64)

    monkeypatch.setattr(Federation, "losses", of)
    everyone = torch.ones(3, dtype=torch.bool)
    state = replace(FedFomo().init(fed), theta=theta, start=torch.zeros(3, 2).double(), uploaded=everyone)
    return fed, state


def test_an_aggregation(monkeypatch):
    """L(o) = 1, losses (0.4, 1.2, 0.9), distances (2, 1, 0.5): raw (0.3, -0.2, 0.2), weights (0.6, 0, 0.4)."""
    fed, state = three(monkeypatch, {(0, 0): 1, (2, 0): 0.4, (0, 1): 1.2, (0, -0.5): 0.9})
    fed.observing = True
    method = FedFomo(epsilon=1e-300, evaluate="aggregated")
    received = method.receive(fed, state, fed.cohort(2))
    near(received.raw[0], [0.3, -0.2, 0.2])
    near(torch.from_numpy(fed.ledger.artifacts["fomo_weights"])[0], [0.6, 0, 0.4])
    near(method.deployed(received)[0], [1.2, -0.2])
    near(FedFomo().deployed(received)[0], [2, 0])
    with_epsilon = FedFomo().receive(fed, state, fed.cohort(2))
    near(with_epsilon.raw[0], [0.6 / 2.00001, -0.2 / 1.00001, 0.1 / 0.50001])


def test_the_server_adds_up_what_clients_report(monkeypatch):
    fed, state = three(monkeypatch, {(0, 0): 1, (2, 0): 0.4, (0, 1): 1.2, (0, -0.5): 0.9})
    S = torch.tensor([0, 2])
    method = FedFomo(epsilon=1e-300)
    after = method.update(fed, method.receive(fed, state, S), S)
    near(after.P, [[1.3, -0.2, 0.2], [0, 1, 0], [0.3, -0.2, 1.2]])
    again = method.update(fed, method.receive(fed, replace(after, start=state.start, theta=state.theta), S[:1]), S[:1])
    near(again.P, [[1.6, -0.4, 0.4], [0, 1, 0], [0.3, -0.2, 1.2]])


def test_weights():
    near(fomo_weights(torch.tensor([[0.3, -0.2, 0.2]], dtype=torch.float64), is_own(1, 3)), [[0.6, 0, 0.4]])
    raw = torch.tensor([[-1.0, 0, -2], [0, 0, 0]], dtype=torch.float64)
    near(fomo_weights(raw, is_own(2, 3)), [[1, 0, 0], [0, 1, 0]], 0)
    tiny = torch.tensor([[0.0, 1e-300, 3e-300]], dtype=torch.float64)
    near(fomo_weights(tiny, is_own(1, 3)), [[0, 0.25, 0.75]])


# -- a twin ---------------------------------------------------------------------------------------------------------------


class FomoTwin(Twin):
    """Clients with modules of their own; the server keeps vectors."""

    def loss(self, client, model, samples):
        """Mean over batches of the batch's mean, of a model with this client's BatchNorm statistics."""
        module, B = self.clients[client], self.fed.protocol.batch_size
        kept = vector(module)
        vector_to_parameters(model.clone(), module.parameters())
        module.eval()
        values = []
        with torch.no_grad():
            for start in range(0, len(samples), B):
                x, y = self.data(samples[start : start + B])
                values.append(F.cross_entropy(module(x), y).item())
        vector_to_parameters(kept, module.parameters())
        return float(np.mean(values))


@engines
@pytest.mark.parametrize("model", ["mlp", "batchnorm"])
@pytest.mark.parametrize(("M", "join_ratio"), [("all", 1.0), (2, 0.75), (1, 1.0)])
def test_twin(M, join_ratio, model, engine):
    settings = {"n": (33, 8, 28, 14, 3), "join_ratio": join_ratio, "batch_size": 3}
    fed = federation(model, engine, **settings)
    twin = FomoTwin(fed)
    state = train(FedFomo(M=M), fed, 4)
    N, initial = fed.size, fed.initial()
    server, P, o = {}, np.eye(N), [initial for _ in range(N)]
    shares = []
    for t in range(1, 5):
        S = fed.cohort(t).tolist()
        training = [mine[: len(mine) - int(0.2 * len(mine))] for mine in fed.train_indices]
        plan = fed.at(t).batches(fed.cohort(t), samples=[training[c] for c in S])
        now = dict(server)
        for k, c in enumerate(S):
            validation = fed.train_indices[c][len(training[c]) :]
            count = len(now) if M == "all" else min(M, len(now))
            chosen = sorted(sorted(now), key=lambda j, row=P[c].copy(): -row[j])[:count]
            raw = {}
            for j in chosen if len(validation) else []:
                distance = (now[j] - o[c]).norm().item()
                raw[j] = (twin.loss(c, o[c], validation) - twin.loss(c, now[j], validation)) / (distance + 1e-5)
                P[c, j] += raw[j]
            positive = {j: max(value, 0) for j, value in raw.items()}
            if sum(positive.values()) > 0:
                weights = {j: value / sum(positive.values()) for j, value in positive.items()}
                shares.append(max(weights.values()))
                moved = o[c] + sum(w * (now[j] - o[c]) for j, w in weights.items())
                vector_to_parameters(moved, twin.clients[c].parameters())
            o[c] = vector(twin.clients[c])
            twin.sgd(twin.clients[c], plan, k)
            server[c] = vector(twin.clients[c])
    assert shares, "somebody took from others"
    assert M == 1 or min(shares) < 0.99, "and from several"
    close(state.theta, rows(twin.clients))
    torch.testing.assert_close(state.P, torch.from_numpy(P), rtol=0, atol=1e-10)
    close(fed.buffers_of("model"), buffers(twin.clients))


# -- who downloads what ---------------------------------------------------------------------------------------------------


def chosen(method, P, uploaded):
    fed = federation(n=(5,) * len(uploaded))
    state = replace(method.init(fed), P=torch.tensor(P).double(), uploaded=torch.tensor(uploaded))
    S = torch.arange(len(P))
    return [row.nonzero().flatten().tolist() for row in method.candidates(state, S)]


def test_the_models_with_the_largest_affinity_are_downloaded():
    P = [[1.0, 0.0, 0.0, 0.5], [0.2, 1.0, 0.9, 0.9], [-3.0, 2.0, -1.0, -2.0], [0.0, 0.0, 0.0, 1.0]]
    everyone = [True] * 4
    assert chosen(FedFomo(M=2), P, everyone) == [[0, 3], [1, 2], [1, 2], [0, 3]]
    assert chosen(FedFomo(M=1), P, everyone) == [[0], [1], [1], [3]]
    assert chosen(FedFomo(M=3), P, everyone) == [[0, 1, 3], [1, 2, 3], [1, 2, 3], [0, 1, 3]]
    assert chosen(FedFomo(M=2), P, [False, True, False, True]) == [[1, 3]] * 4
    assert chosen(FedFomo(M=3), P, [False, True, False, True]) == [[1, 3]] * 4
    assert chosen(FedFomo(), P, [False] * 4) == [[]] * 4
    assert chosen(FedFomo(M=9), P, everyone) == chosen(FedFomo(), P, everyone) == [[0, 1, 2, 3]] * 4


@engines
@pytest.mark.parametrize(("model", "requests"), [("mlp", 1), ("batchnorm", 4)])
def test_candidates_are_not_copied_for_each_client(model, requests, engine, monkeypatch):
    """All in one request; with BatchNorm, where each client's own buffers make another model of it, one after the other."""
    fed, method = federation(model, engine), FedFomo()
    state = train(method, fed, 1)
    asked = []
    on_call(monkeypatch, fed.executor, "do", asked.append)
    received = method.receive(fed.at(3), state, fed.cohort(3))
    _, *candidates = asked
    assert len(candidates) == requests
    assert all(request.models.untyped_storage().data_ptr() == state.theta.untyped_storage().data_ptr() for request in candidates)
    # Models in parts, and each by itself, are worth the same.
    monkeypatch.setattr("pflbench.methods.fedfomo.PAIRS", fed.size * 3)
    assert torch.equal(method.receive(fed.at(3), state, fed.cohort(3)).raw, received.raw) or engine == "batched"
    monkeypatch.setattr("pflbench.methods.fedfomo.PAIRS", 1)
    close(method.receive(fed.at(3), state, fed.cohort(3)).raw, received.raw)


@engines
@pytest.mark.parametrize("model", ["mlp", "batchnorm"])
def test_losses_of_models_that_clients_share(model, engine):
    fed = federation(model, engine, n=(33, 8, 28, 14, 3), batch_size=5)
    models = torch.stack([fed.initial() * k for k in (0.5, 1.0, 2.0)])
    of, S = [0, 0, 0, 2, 2], torch.tensor([4, 0, 2, 1, 0])
    samples = [fed.train_indices[c][:k] for c, k in zip(S.tolist(), (3, 11, 10, 0, 33), strict=True)]
    apart = torch.cat([fed.losses(models[m, None], S[i, None], samples[i : i + 1]) for i, m in enumerate(of)])
    close(fed.losses(models, S, samples, shared_by=torch.tensor([3, 0, 2])), apart)
    assert (apart > 0).tolist() == [True, True, True, False, True]


# -- limits and edge cases ------------------------------------------------------------------------------------------------


def test_two_roundings_of_one_model_s_loss_are_no_gain(monkeypatch):
    """Divided by epsilon and normalised, the last digit would be a weight of 1."""
    fed, state = three(monkeypatch, {})
    asked = []

    def falling(self, models, S, samples, shared_by=None):
        asked.append(S)
        return torch.full((len(S),), 1 - 1e-15 * len(asked), dtype=torch.float64)

    monkeypatch.setattr(Federation, "losses", falling)
    theta = torch.zeros(3, 2, dtype=torch.float64)
    theta[0] = 7.0
    received = FedFomo().receive(fed, replace(state, theta=theta, start=torch.zeros_like(theta)), torch.arange(1, 3))
    assert (received.raw[1:, 0] > 0).all()
    assert torch.equal(received.raw[1:, 1:], torch.zeros(2, 2).double())


def test_the_split_is_the_end_of_the_stored_order():
    samples = np.arange(100, 137)
    for n, validation in ((0, 0), (1, 0), (4, 0), (5, 1), (9, 1), (10, 2), (37, 7)):
        training, held_out = FedFomo().split(samples[:n])
        assert len(held_out) == validation
        assert np.concatenate([training, held_out]).tolist() == samples[:n].tolist()
    assert [len(part) for part in FedFomo(val_ratio=0.5).split(samples)] == [19, 18]


@engines
def test_a_loss_that_is_no_number_stops_it(engine):
    fed, method = federation(engine=engine).at(2), FedFomo()
    S = fed.cohort(2)
    state = method.init(fed)
    theta = state.theta.clone()
    theta[1] = 1e200  # its logits overflow
    broken = method.receive(fed, replace(state, theta=theta, uploaded=torch.ones(4, dtype=torch.bool)), S)
    with pytest.raises(Diverged, match=r"client 0 has a non-finite value .* in round 2"):
        method.update(fed, broken, S)


def test_weights_are_observed_in_the_chosen_rounds():
    fed = federation(join_ratio=0.75)
    state = train(FedFomo(), fed, 2)
    now, S = fed.at(3), fed.cohort(3)
    FedFomo().receive(now, state, S)
    assert not now.ledger.artifacts
    now.observing = True
    received = FedFomo().receive(now, state, S)
    weights = torch.from_numpy(now.ledger.artifacts["fomo_weights"])
    outside = [i for i in range(fed.size) if i not in S.tolist()]
    assert weights[outside].isnan().all()
    close(weights[S].sum(1), torch.ones(len(S)).double())
    close(weights[S] @ state.theta, received.start[S])
