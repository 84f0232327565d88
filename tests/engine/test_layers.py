"""Layers of all clients at once give what PyTorch's layers give each client by itself, and copy no images on the way."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from pflbench.contract.small import federation
from pflbench.engine.batched import batched_executor as executor
from pflbench.engine.batched.layers import (
    compute_together,
    cross_entropy,
    track_statistics,
)

CPU = torch.device("cpu")
CLIENTS, BATCH = 3, 7


class Net(nn.Module):
    """One of each layer, with windows that overlap, reach beyond the image and are rounded up."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4, momentum=0.3, eps=1e-3)
        self.pool = nn.MaxPool2d(3, 2, 1, ceil_mode=True)
        self.fc = nn.Linear(4 * 16, 5)
        self.norm_1d = nn.BatchNorm1d(5)
        self.output = nn.Linear(5, 3)

    def forward(self, x):
        x = self.pool(F.relu(self.norm(self.conv(x))))
        return self.output(self.norm_1d(self.fc(x.flatten(1))))


@pytest.fixture
def clients():
    """Models with parameters and running statistics of their own, images and labels."""
    torch.manual_seed(0)
    models = [Net().double() for _ in range(CLIENTS)]
    for model in models:
        for norm in (model.norm, model.norm_1d):
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var)
    x = torch.randn(CLIENTS, BATCH, 2, 8, 8, dtype=torch.float64)
    return models, x, torch.randint(3, (CLIENTS, BATCH))


def stacked(models, names):
    return {
        name: torch.stack([getattr(m, f"get_{names}")(name).detach().double() for m in models]) for name in own(models, names)
    }


def own(models, names):
    return [name for name, _ in getattr(models[0], f"named_{names}s")()]


def together(models, x, y, tracked=True):
    """Gradients, losses and buffers by the merged layers."""
    module = copy.deepcopy(models[0]).train()
    compute_together(module)
    track_statistics(module, tracked)

    def loss(params, buffers, x, y):
        return F.cross_entropy(functional_call(module, (params, buffers), (x,)), y), buffers

    step = vmap(grad_and_value(loss, has_aux=True))
    grads, (losses, after) = step(stacked(models, "parameter"), stacked(models, "buffer"), x, y)
    return grads, losses, after


def test_gradients_losses_and_statistics_are_those_of_each_client(clients):
    models, x, y = clients
    grads, losses, after = together(models, x, y)
    for i, model in enumerate(models):
        loss = F.cross_entropy(model.train()(x[i]), y[i])
        loss.backward()
        torch.testing.assert_close(losses[i], loss.detach(), rtol=0, atol=1e-12)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(grads[name][i], parameter.grad, rtol=0, atol=1e-12)
        for name, buffer in model.named_buffers():
            torch.testing.assert_close(after[name][i], buffer.double(), rtol=0, atol=1e-12)


def test_statistics_stay_where_they_are_not_wanted(clients):
    models, x, y = clients
    grads, _, after = together(models, x, y, tracked=False)
    expected, _, changed = together(models, x, y)
    for name, before in stacked(models, "buffer").items():
        assert torch.equal(after[name], before)
        assert not torch.equal(changed[name], before)
    assert all(torch.equal(grads[name], expected[name]) for name in expected)


class Scaled(nn.Linear):
    """What users make of a layer."""

    def forward(self, x):
        return 2 * super().forward(x)


def test_other_layers_are_left_alone():
    kept = nn.Sequential(
        nn.MaxPool2d(2, return_indices=True),
        nn.BatchNorm2d(2, affine=False),
        nn.BatchNorm2d(2, track_running_stats=False),
        nn.BatchNorm2d(2, momentum=None),
        nn.Linear(2, 2, bias=False),
        Scaled(2, 2),
    )
    own = nn.Linear(2, 2)
    own.forward = lambda x: x
    kept.append(own)
    types = [type(layer) for layer in kept]
    compute_together(kept)
    assert [type(layer) for layer in kept] == types


class Operations(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.seen.append((func.overloadpacket.__name__, result))
        return result


@pytest.mark.parametrize(("model", "layers"), [("cnn", 0), ("resnet20", 19)])
def test_a_step_copies_no_images_and_normalises_once(model, layers):
    fed = federation(model, "batched", n=(BATCH,) * CLIENTS, batch_size=BATCH)
    rows, index = fed.everyone(fed.initial()), torch.arange(CLIENTS * BATCH).view(CLIENTS, BATCH)
    with Operations() as made:
        fed.executor.gradients.make()(rows, fed.buffers_of("model"), index)
    names = [name for name, _ in made.seen]
    copied = [tuple(r.shape) for name, r in made.seen if name in ("clone", "copy_") and r.dim() > 3 and BATCH in r.shape]
    assert copied == []
    assert names.count("native_batch_norm") == names.count("native_batch_norm_backward") == layers


# -- large parameters -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [None, ["fc"], ["conv_2", "fc"], ["fc", "output"], ["output"]])
def test_a_step_is_the_same_where_large_gradients_are_not_copied_beside_the_others(columns, monkeypatch):
    """The layer "fc" of the small CNN counts as large, "output" does not; one client ends before the others."""
    monkeypatch.setattr(executor, "LARGE", 4000)
    trained = []
    for engine in ("loop", "batched"):
        fed = federation("cnn", engine, n=(12, 7, 9), lr=0.1)
        where = slice(None) if columns is None else fed.flat.columns(columns)
        trained.append(fed.at(1).sgd(fed.everyone(fed.initial()), fed.all_trainable(), columns=where))
    torch.testing.assert_close(*trained, rtol=0, atol=1e-12)


# -- the loss -------------------------------------------------------------------------------------------------------------


def test_the_lean_cross_entropy_is_pytorch_s():
    logits, y = torch.randn(6, 4, dtype=torch.float64, requires_grad=True), torch.tensor([0, 3, 1, 1, 2, 0])
    found, expected = cross_entropy(logits, y), F.cross_entropy(logits, y)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(*(torch.autograd.grad(loss, logits)[0] for loss in (found, expected)), rtol=0, atol=1e-14)
