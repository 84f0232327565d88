"""Class means of features, beside one pass over each client's samples, and sums over the steps of training."""

from __future__ import annotations

import pytest
import torch
from support.spies import on_call
from support.twins import close, module_of, perturbed
from torch import Tensor, nn

from pflbench.contract.small import CLASSES, EXECUTORS, federation
from pflbench.engine.samples import Samples
from pflbench.methods.extended import ExtendedModel, Values

N = (13, 0, 1, 140)


@pytest.mark.parametrize("engine", EXECUTORS)
@pytest.mark.parametrize(("model", "clients"), [("mlp", [0, 1, 2, 3]), ("batchnorm", [0, 1, 2, 3]), ("mlp", [1])])
def test_class_means(engine, model, clients):
    """Client 1 has no samples: all of its means are 0."""
    fed = federation(model, engine, n=N)
    S, models = torch.tensor(clients), perturbed(fed)
    means, squares, counts = fed.class_means(models[S], S)
    for i, client in enumerate(S.tolist()):
        x, y = federation(model, n=N).executor.samples.batch(torch.from_numpy(fed.train_indices[client]))
        z = module_of(fed, models[client]).eval().features(x).detach()
        for k in range(CLASSES):
            mine = z[y == k]
            assert counts[i, k] == len(mine)
            close(means[i, k], mine.mean(0) if len(mine) else torch.zeros_like(means[i, k]))
            close(squares[i, k], mine.square().sum(1).mean() if len(mine) else torch.zeros_like(squares[i, k]))


@pytest.mark.parametrize("engine", EXECUTORS)
def test_samples_of_one_client_do_no_harm_to_another(engine):
    """Not even the first sample of all, with which shorter rows are filled up."""
    fed = federation(engine=engine, n=N)
    fed.executor.samples.x[0] = torch.inf
    means, squares, _ = fed.class_means(perturbed(fed), torch.arange(4))
    for found in (means.flatten(1), squares):
        assert found.isfinite().all(1).tolist() == [False, True, True, True]


def test_a_large_client_costs_the_others_nothing(monkeypatch):
    """Samples computed at once are limited, and a client that has no more of them is left out."""
    fed = federation(engine="batched", n=(300, *[5] * 9))
    expected = fed.class_means(perturbed(fed), torch.arange(10))
    monkeypatch.setattr("pflbench.engine.batched.batched_executor.EVALUATED_AT_ONCE", 100)
    seen = []
    on_call(monkeypatch, Samples, "batch", lambda _, index: seen.append(index.numel()))
    found = fed.class_means(perturbed(fed), torch.arange(10))
    assert seen == [100, *[10] * 29]
    for a, b in zip(found, expected, strict=True):
        close(a, b)


class Counting(ExtendedModel):
    """Sums up how often each class was seen, and the features that it gave: [K, h + 1]."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        self.sums = Values(self.classes, self.width + 1)

    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = self.features(x)
        return self.classifier(z), z, self.sums.value


def with_sums(loss, labels, own):
    logits, z, sums = own
    seen = torch.cat([z, torch.ones_like(z[:, :1])], dim=1).detach()
    term = (sums[labels] * seen).sum()
    return loss(logits, labels) + term - term.detach()


@pytest.mark.parametrize("engine", EXECUTORS)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_sums_over_the_steps(engine, optimizer):
    """Of the features before each step; the model itself is trained as without them."""
    how = {"n": (13, 8), "local_epochs": 2, "optimizer": optimizer}
    fed, plain = federation(engine=engine, around=Counting, **how), federation(engine=engine, **how)
    S, sums = torch.arange(2), fed.flat.columns(["sums"])
    found = fed.sgd(fed.everyone(fed.initial()), S, summed=sums, objective=with_sums)
    close(found[:, : sums.start], plain.sgd(plain.everyone(plain.initial()), S), 1e-12)
    expected = torch.zeros(2, CLASSES, (sums.stop - sums.start) // CLASSES, dtype=torch.float64)
    one = federation(n=how["n"], local_epochs=2, optimizer=optimizer)
    for i in range(2):
        for step, index in enumerate(one.batches(S).batches(i)):
            x, y = one.executor.samples.batch(torch.from_numpy(index))
            z = module_of(one, after(one, i, step)).features(x).detach()
            for k in range(CLASSES):
                expected[i, k] += torch.cat([z[y == k].sum(0), (y == k).sum()[None].double()])
    close(found[:, sums].view_as(expected), expected, 1e-10)


@pytest.mark.parametrize("engine", EXECUTORS)
def test_what_is_summed_may_change_from_one_training_to_the_next(engine):
    """Also in a captured program: only the end of the summed columns differs."""
    how = {"n": (13, 8), "around": Counting}
    fed, other = federation(engine=engine, **how), federation(engine=engine, **how)
    S, sums = torch.arange(2), fed.flat.columns(["sums"])
    rows, none = fed.everyone(fed.initial()), slice(sums.start, sums.start)
    plan = fed.batches(S)
    fed.sgd(rows, S, plan=plan, summed=none, objective=with_sums)
    found = fed.sgd(rows, S, plan=plan, summed=sums, objective=with_sums)
    close(found, other.sgd(rows, S, plan=plan, summed=sums, objective=with_sums))


@pytest.mark.parametrize("engine", EXECUTORS)
def test_sums_in_the_head_where_only_the_head_is_trained(engine):
    fed = federation(engine=engine, n=(13, 8))
    S, rows, head = torch.arange(2), fed.everyone(fed.initial()), fed.flat.head
    plan, how = fed.batches(S), {"columns": head, "summed": slice(head.stop - CLASSES, head.stop)}
    found = fed.sgd(rows, S, plan=plan, **how)
    close(found, fed.sgd(rows, S, plan=plan, **how, penalty=lambda w: (torch.zeros_like(w), 0)))


def after(fed, client, steps):
    """The client's model after its first steps."""
    S, plan = torch.tensor([client]), fed.batches(torch.tensor([client]))
    short = type(plan)((plan.order[0][: plan.sizes[0][:steps].sum()],), (plan.sizes[0][:steps],))
    return fed.sgd(fed.initial()[None], S, plan=short)[0]
