"""Evaluation: models of the clients' own and models that several share, their scores and logits, against plain PyTorch."""

import numpy as np
import pytest
import torch
from support.spies import on_call
from support.twins import close, module_of, perturbed
from torch.func import functional_call
from torch.nn import functional as F

from pflbench.contract.small import EXECUTORS, federation, in_a_pack
from pflbench.engine.batches import Plan
from pflbench.engine.loop_executor import Worker
from pflbench.engine.packed.join import joinable, joined, split
from pflbench.engine.requests import Evaluate
from pflbench.run.memory_estimate import Peak

SIZES = (16, 8, 21, 14, 11)
engines = pytest.mark.parametrize("engine", EXECUTORS[:3])


def moved(fed, seed=0):
    """A model, and buffers that differ from client to client."""
    drawn = torch.Generator().manual_seed(seed)
    for rows in fed.buffers.values():
        rows += torch.rand(rows.shape, generator=drawn, dtype=rows.dtype)
    return fed.initial() + 0.05 * torch.randn(fed.flat.size, generator=drawn, dtype=fed.dtype)


def plainly(fed, row, buffers, samples):
    """Correct predictions and summed loss of one model."""
    module = fed.flat.module.double().eval()
    named = {**fed.flat.views(row), **fed.flat.buffer_views(buffers)}
    with torch.no_grad():
        x, y = fed.executor.samples.batch(torch.from_numpy(samples))
        logits = functional_call(module, named, (x,))
        return int((logits.argmax(1) == y).sum()), float(F.cross_entropy(logits, y, reduction="sum"))


@engines
@pytest.mark.parametrize("model", ["mlp", "batchnorm", "cnn", "fasttext"])
def test_one_model_for_all(model, engine):
    fed = federation(model, engine, n=SIZES)
    fed.buffers_of("model")
    row, S = moved(fed), torch.tensor([0, 2, 3, 4])
    scores = fed.evaluate(row, S)
    expected = [plainly(fed, row, fed.buffers["model"][c], fed.test_indices[c]) for c in S.tolist()]
    assert scores.correct.tolist() == [correct for correct, _ in expected]
    np.testing.assert_allclose(scores.loss, [loss for _, loss in expected], rtol=1e-12)
    own = fed.evaluate(fed.everyone(row), S)
    assert own.correct.tolist() == scores.correct.tolist()
    np.testing.assert_allclose(own.loss, scores.loss, rtol=1e-12)
    if engine == "loop":
        assert own.loss.tolist() == scores.loss.tolist(), "to the last bit"


def shared(fed, seed):
    """Three models, for 2, 1 and 3 clients, one of which stands there twice and one has no samples."""
    row = moved(fed, seed)
    rows = torch.stack([row, row * 1.1, row * 0.9])
    buffers = fed.buffers_of("model")[:3]
    orders = [fed.test_indices[0], fed.test_indices[1], fed.test_indices[2], np.arange(0), *fed.test_indices[:1], np.arange(9)]
    return Evaluate(Plan.through(orders, 4), rows, buffers, torch.tensor([2, 1, 3]))


@engines
@pytest.mark.parametrize("model", ["mlp", "batchnorm"])
def test_some_models_for_some_clients_each(model, engine):
    fed = federation(model, engine, n=SIZES)
    fed.buffers_of("model")
    asked = shared(fed, 1)
    found = fed.executor.do(asked)
    of = zip([0, 0, 1, 2, 2, 2], asked.plan.order, strict=True)
    expected = [plainly(fed, asked.models[m], asked.buffers[m], mine) if len(mine) else (0, 0.0) for m, mine in of]
    assert found.correct.tolist() == [correct for correct, _ in expected]
    np.testing.assert_allclose(found.loss, [loss for _, loss in expected], rtol=1e-12)


@engines
def test_what_several_runs_ask_for_is_one_request(engine):
    fed = federation("mlp", engine, n=SIZES)
    requests = [shared(fed, seed) for seed in range(2)]
    assert joinable(*requests)
    assert not joinable(requests[0], Evaluate(requests[0].plan, requests[0].models, requests[0].buffers))
    apart = [fed.executor.do(request) for request in requests]
    together = split(fed.executor.do(joined(requests)), [6, 6])
    for one, other in zip(apart, together, strict=True):
        assert torch.equal(one.correct, other.correct)
        torch.testing.assert_close(one.loss, other.loss, rtol=1e-12, atol=0)


def test_a_shared_model_is_not_copied_for_each_client(monkeypatch):
    fed = federation("mlp", "batched", n=(2,) * 20)
    with Peak() as peak:
        fed.evaluate(fed.initial(), torch.arange(20))
    assert peak.largest < 2 * fed.initial().nbytes
    loads = []
    on_call(monkeypatch, Worker, "load", lambda worker, *_: loads.append(worker))
    looped = federation("mlp", "loop", n=(2,) * 20)
    looped.evaluate(looped.initial(), torch.arange(20))
    assert len(loads) == len(set(loads)) <= looped.executor.workers


@engines
def test_samples_of_one_client_do_no_harm_to_another(engine):
    """Not even the first sample of all, with which shorter rows are filled up."""
    fed = federation("mlp", engine, n=SIZES)
    fed.test_indices[0] = np.array([0])
    fed.executor.samples.x[0] = torch.inf
    for models in (fed.initial(), fed.everyone(fed.initial())):
        assert np.isfinite(fed.evaluate(models, torch.arange(5)).loss).tolist() == [False, True, True, True, True]


# -- logits ---------------------------------------------------------------------------------------------------------------

N, TESTS = (13, 8, 5, 9), (4, 0, 150, 1)


def expected_logits(fed, row, client):
    x, _ = fed.executor.samples.batch(torch.from_numpy(fed.test_indices[client]))
    return module_of(fed, row).eval()(x).detach()


@pytest.mark.parametrize("engine", EXECUTORS)
@pytest.mark.parametrize("model", ["mlp", "batchnorm"])
@pytest.mark.parametrize("shared", [False, True])
def test_logits(engine, model, shared):
    fed = federation(model, engine, n=N, tests=TESTS)
    rows = perturbed(fed)
    found = fed.logits(rows[2] if shared else rows, torch.arange(4))
    assert list(found) == [0, 2, 3]
    for client, logits in found.items():
        close(torch.from_numpy(logits), expected_logits(fed, rows[2 if shared else client], client))


@pytest.mark.parametrize("engine", EXECUTORS)
def test_nobody_has_test_data(engine):
    fed = federation(engine=engine, n=N, tests=TESTS)
    assert fed.logits(perturbed(fed), torch.tensor([1])) == {}
    fed.test_indices = [samples[:0] for samples in fed.test_indices]
    assert fed.logits(fed.initial(), torch.arange(4)) == {}


@pytest.mark.parametrize("engine", EXECUTORS)
@pytest.mark.parametrize("of", [[0, 1, 3], [1]])
def test_a_client_without_samples_in_a_request(engine, of):
    fed = federation(engine=engine, n=N, tests=TESTS)
    rows, plan = perturbed(fed)[of], Plan.through((fed.test_indices[c] for c in of), 128)
    found = fed.executor.do(Evaluate(plan, rows, fed.buffers_of("model")[of], logits=True))
    assert found.correct[of.index(1)] == found.loss[of.index(1)] == 0
    assert found.logits.device.type == "cpu"
    assert len(found.logits) == len(of)
    for i, c in enumerate(of):
        if c != 1:
            close(found.logits[i, : TESTS[c]], expected_logits(fed, rows[i], c))


def test_logits_in_a_pack():
    def make(seed):
        return federation(engine="batched", n=(13, 8), tests=(5, 30), seed=seed)

    def work(fed):
        return fed.logits(fed.everyone(fed.initial()), torch.arange(2))

    for seed, found in enumerate(in_a_pack([make(0), make(1)], work)):
        for client, logits in work(make(seed)).items():
            close(torch.from_numpy(found[client]), torch.from_numpy(logits))
