"""pFedMe (methods.md 1.7): the numbers of the specification, a twin in plain PyTorch, limits, options, and with ALA."""

import pytest
import torch
from support.cases import engines
from support.twins import ROUNDS, buffers, close, near, rows, setup, vector
from torch.nn import functional as F

from pflbench import methods
from pflbench.contract.small import train
from pflbench.contract.toy import q2, rounds
from pflbench.errors import UserError
from pflbench.methods.pfedme import PFedMe
from pflbench.spec import MethodSpec, TrainSpec

Q2 = {"lam": 2, "K": 2, "eta_p": 0.1, "c2": 0}


@engines
@pytest.mark.parametrize("reset", ["round", "batch"])
def test_numbers(engine, reset):
    """One batch per round, so it does not matter when theta starts anew."""
    (_, first), (received, second) = rounds(PFedMe(**Q2, theta_reset=reset), q2(engine), 2)
    near(first.personal, [[0.17, 0], [0, 0.34]])
    near(first.w, [0.0255, 0.017])
    near(received.personal, [[0.17, 0], [0, 0.34]])
    near(second.personal, [[0.191165, 0.01411], [0.021165, 0.35411]])
    near(second.w, [0.050133, 0.033422])


@engines
def test_the_options_on_q2(engine):
    ((_, first),) = rounds(PFedMe(**Q2, evaluate="w"), q2(engine), 1)
    near(first.personal, [[0.034, 0], [0, 0.068]])
    near(first.w, [0.0255, 0.017])
    ((_, first),) = rounds(PFedMe(**Q2, beta=0.5), q2(engine), 1)
    near(first.w, [0.01275, 0.0085])
    near(first.personal, [[0.17, 0], [0, 0.34]])
    ((_, first),) = rounds(PFedMe(**Q2, aggregation="uniform"), q2(engine), 1)
    near(first.w, [0.034 / 2, 0.068 / 2])


@engines
def test_the_small_l2_term_on_q2(engine):
    """Two steps from zero: theta_1 = 0.1 c, then theta_2 = theta_1 - 0.1 * (theta_1 - c + 2 theta_1 + 0.5 theta_1)."""
    ((_, first),) = rounds(PFedMe(**{**Q2, "c2": 0.5}), q2(engine), 1)
    near(first.personal, [[0.1 - 0.1 * (0.1 - 1 + 0.25), 0], [0, 0.2 - 0.1 * (0.2 - 2 + 0.5)]])


@engines
@pytest.mark.parametrize("evaluate", ["theta", "w"])
@pytest.mark.parametrize("reset", ["round", "batch"])
@pytest.mark.parametrize("model", ["mlp", "batchnorm"])
def test_twin(model, reset, evaluate, engine):
    """The regularised objective is written as a loss, and both models step with torch.optim.SGD."""
    fed, twin = setup(model, engine)
    lam, K, eta_p, c2, beta = 3.0, 3, 0.05, 0.02, 0.7
    personal = [twin.fresh() for _ in twin.clients]
    state = train(PFedMe(lam=lam, K=K, eta_p=eta_p, c2=c2, beta=beta, theta_reset=reset, evaluate=evaluate), fed, ROUNDS)
    for now, S in twin.rounds(ROUNDS):
        plan = now.batches(S)
        before, uploads = vector(twin.server), []
        for i, c in enumerate(S.tolist()):
            w, theta = twin.fresh(), twin.clients[c]  # BatchNorm's buffers are those of the model that meets the data
            twin.load(w, twin.server)
            twin.load(theta, twin.server)
            inner = torch.optim.SGD(theta.parameters(), lr=eta_p, weight_decay=c2)
            outer = torch.optim.SGD(w.parameters(), lr=fed.protocol.lr)
            theta.train()
            for index in plan.batches(i):
                x, y = twin.data(index)
                if reset == "batch":
                    twin.load(theta, w)
                for _ in range(K):
                    inner.zero_grad()
                    pairs = zip(theta.parameters(), w.parameters(), strict=True)
                    distance = sum((p - q.detach()).pow(2).sum() for p, q in pairs)
                    (F.cross_entropy(theta(x), y) + lam / 2 * distance).backward()
                    inner.step()
                outer.zero_grad()
                pairs = zip(w.parameters(), theta.parameters(), strict=True)
                (lam / 2 * sum((p - q.detach()).pow(2).sum() for p, q in pairs)).backward()
                outer.step()
            twin.load(personal[c], theta if evaluate == "theta" else w)
            uploads.append(w)
        twin.average(S, uploads)
        mean = vector(twin.server)
        torch.nn.utils.vector_to_parameters((1 - beta) * before + beta * mean, twin.server.parameters())
    close(state.personal, rows(personal))
    close(state.w, vector(twin.server))
    close(fed.buffers_of("model"), buffers(twin.clients))


@engines
def test_many_inner_steps_reach_the_proximal_point(engine):
    """argmin |theta - c|^2 / 2 + lambda / 2 |theta - w|^2 = (c + lambda w) / (1 + lambda); w follows the envelope's gradient."""
    method = PFedMe(lam=3, K=60, eta_p=0.1, c2=0)
    (_, first), (_, second) = rounds(method, q2(engine), 2)
    c = torch.tensor([[1.0, 0], [0, 2]]).double()
    near(first.personal, c / 4)
    near(first.w, torch.tensor([0.75, 0.25]).double() @ (0.1 * 3 * c / 4))
    near(second.personal, (c + 3 * first.w) / 4)


@pytest.mark.parametrize(("lr", "lam", "said"), [(0.005, 15, 0), (0.1, 10, 0), (0.1, 15, 1), (0.1, 19.9, 1), (0.1, 0, 1)])
def test_over_relaxation_is_warned_of(lr, lam, said):
    assert len(list(PFedMe(lam=lam).check(TrainSpec(rounds=1, lr=lr)))) == said


@pytest.mark.parametrize("name", ["pfedme", "pfedme+ala"])
def test_a_step_of_two_or_more_is_refused(name):
    method = methods.make(MethodSpec(name=name, hyperparameters={"lam": 20}))
    with pytest.raises(UserError, match=r"lr \* lam = 2 "):
        list(method.check(TrainSpec(rounds=1, lr=0.1)))
