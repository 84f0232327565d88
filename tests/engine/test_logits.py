"""The logits of test samples, beside one pass over each client's samples."""

from __future__ import annotations

import pytest
import torch
from support.twins import close

from pflbench.contract.small import EXECUTORS, federation, in_a_pack
from pflbench.engine.batches import Plan
from pflbench.engine.requests import Evaluate


def perturbed(fed):
    return fed.everyone(fed.initial()) + 0.1 * torch.arange(fed.size).to(fed.dtype).unsqueeze(1)


def expected(fed, model, row, client):
    module = federation(model).flat.module.double().eval()
    for name, value in fed.flat.views(row).items():
        module.get_parameter(name).data.copy_(value)
    x, _ = federation(model, n=N, tests=TESTS).executor.samples.batch(torch.from_numpy(fed.test_indices[client]))
    return module(x).detach()


N, TESTS = (13, 8, 5, 9), (4, 0, 150, 1)


@pytest.mark.parametrize("engine", EXECUTORS)
@pytest.mark.parametrize("model", ["mlp", "batchnorm"])
@pytest.mark.parametrize("shared", [False, True])
def test_logits(engine, model, shared):
    fed = federation(model, engine, n=N, tests=TESTS)
    rows = perturbed(fed)
    found = fed.logits(rows[2] if shared else rows, torch.arange(4))
    assert list(found) == [0, 2, 3]
    for client, logits in found.items():
        close(torch.from_numpy(logits), expected(fed, model, rows[2 if shared else client], client))


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
            close(found.logits[i, : TESTS[c]], expected(fed, "mlp", rows[i], c))


def test_logits_in_a_pack():
    def make(seed):
        return federation(engine="batched", n=(13, 8), tests=(5, 30), seed=seed)

    def work(fed):
        return fed.logits(fed.everyone(fed.initial()), torch.arange(2))

    for seed, found in enumerate(in_a_pack([make(0), make(1)], work)):
        for client, logits in work(make(seed)).items():
            close(torch.from_numpy(found[client]), torch.from_numpy(logits))
