"""FedDeper (methods.md 1.17): the numbers of the specification, a twin in plain PyTorch, limits and options."""

import numpy as np
import pytest
import torch
from support.cases import engines
from support.twins import buffers, close, near, rows, setup, vector
from torch.nn import functional as F

from pflbench.contract.small import train
from pflbench.contract.toy import q2, rounds
from pflbench.methods.feddeper import FedDeper


@engines
def test_numbers(engine):
    (_, first), (_, second) = rounds(FedDeper(rho=0.1, lam=0.5), q2(engine, epochs=2), 2)
    near(first.v, [[0.18, 0], [0, 0.36]])
    near(first.x, [0.085, 0.17])
    near(second.v, [[0.2801, 0.085], [0.0425, 0.5602]])
    near(second.x, [0.1547, 0.3094])


def test_a_penalty_that_outweighs_the_gradient_is_noted():
    """A rate so small that the gradient stays what it is: y - x = eta g (J - 2 / rho (1 - e^(-rho J))), uphill if that is > 0."""
    steps = 20
    for rho, uphill in ((0.05, False), (0.06, False), (0.1, True)):
        fed = q2(epochs=steps, lr=1e-5).at(1)
        S, method = fed.cohort(1), FedDeper(rho=rho)
        done = method.update(fed, method.receive(fed, method.init(fed), S), S)
        descended = float(done.x @ torch.tensor([0.5, 1.0]).double()) > 0
        assert descended == (not uphill) == (steps < 2 / rho * (1 - np.exp(-rho * steps)))
        texts = list(fed.ledger.notes.values())
        assert len(texts) == (rho * steps > 1)
        assert all(f"rho x steps = {rho * steps:.3g} is above 1 in round 1, where a client makes 20 steps" in t for t in texts)


@engines
@pytest.mark.parametrize(("model", "aggregation"), [("mlp", "weighted"), ("batchnorm", "uniform")])
def test_twin(model, engine, aggregation):
    """Line 7 as SGD on the surrogate f(y) + rho / (2 eta) |v + y - 2x|^2 of equation 5, by autograd."""
    fed, twin = setup(model, engine)
    rho, lam, eta = 0.2, 0.7, fed.protocol.lr
    state = train(FedDeper(rho=rho, lam=lam, aggregation=aggregation), fed)
    personal = [twin.fresh() for _ in twin.clients]
    for now, S in twin.rounds(3):
        for i, c in enumerate(S.tolist()):
            y, v = twin.clients[c].train(), personal[c].train()
            twin.load(y, twin.server)
            optimisers = [torch.optim.SGD(m.parameters(), lr=eta) for m in (y, v)]
            for index in now.batches(S).batches(i):
                inputs, labels = twin.data(index)
                for optimiser in optimisers:
                    optimiser.zero_grad()
                triples = zip(v.parameters(), y.parameters(), twin.server.parameters(), strict=True)
                distance = sum((p.detach() + q - 2 * x.detach()).pow(2).sum() for p, q, x in triples)
                (F.cross_entropy(y(inputs), labels) + rho / (2 * eta) * distance).backward()
                F.cross_entropy(v(inputs), labels).backward()
                for optimiser in optimisers:
                    optimiser.step()
            with torch.no_grad():
                for p, q in zip(v.parameters(), y.parameters(), strict=True):
                    p.copy_((1 - lam) * p + lam * q)
        if aggregation == "uniform":
            twin.n = [1] * fed.size
        twin.average(S)
    close(state.x, vector(twin.server))
    close(state.v, rows(personal))
    if model == "batchnorm":
        for which, modules in (("model", twin.clients), ("personal", personal)):
            close(fed.buffers[which], buffers(modules))
        assert (fed.buffers["model"] - fed.buffers["personal"]).abs().max() > 1e-3
