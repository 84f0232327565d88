"""Modules as users write them: all executors give the same rows, buffers, losses and evaluation."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pflbench.contract.recorded import Recorded
from pflbench.contract.small import federation
from pflbench.engine.batched.batched_executor import BatchedExecutor
from pflbench.engine.batches import Plan
from pflbench.engine.flat import Flat
from pflbench.engine.loop_executor import LoopExecutor
from pflbench.engine.requests import Evaluate, Sgd
from pflbench.engine.samples import Samples

CLASSES, WIDE = 4, 520  # WIDE^2 weights are a large layer
SIZES = (10, 10, 5)


class Model(nn.Module):
    head = "output"

    def __init__(self, width, **parts):
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)
        self.output = nn.Linear(width, CLASSES)

    def features(self, x):
        return self.body(x).flatten(1)

    def forward(self, x):
        return self.output(self.features(x))


class Activated(nn.BatchNorm1d):
    def forward(self, x):
        return F.relu(super().forward(x))


class Wide(Model):
    def __init__(self):
        super().__init__(WIDE, first=nn.Linear(12, WIDE), fc=nn.Linear(WIDE, WIDE))

    def features(self, x):
        return F.relu(self.used(F.relu(self.first(x))))


class Tied(Wide):
    def __init__(self):
        super().__init__()
        self.other = nn.Linear(WIDE, WIDE)
        self.other.weight = self.fc.weight

    def used(self, h):
        return self.other(F.relu(self.fc(h)))


class Attention(Model):
    def __init__(self):
        super().__init__(512, first=nn.Linear(6, 512), attention=nn.MultiheadAttention(512, 4, batch_first=True))

    def features(self, x):
        h = self.first(x.unflatten(1, (2, 6)))
        return (h + self.attention(h, h, h, need_weights=False)[0]).mean(1)


class OwnBuffers(Model):
    def __init__(self):
        super().__init__(5, body=nn.Linear(12, 5))
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def features(self, x):
        h = self.body(x)
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * h.detach().mean(0))
            self.count.add_(1)
        return h + self.mean


class Overlapping(Model):
    """Windows that overlap, reach beyond the image and are rounded up; running statistics that are not PyTorch's defaults."""

    def __init__(self):
        super().__init__(
            5,
            conv=nn.Conv2d(2, 4, 3, bias=False),
            norm=nn.BatchNorm2d(4, momentum=0.3, eps=1e-3),
            pool=nn.MaxPool2d(3, 2, 1, ceil_mode=True),
            fc=nn.Linear(4 * 16, 5),
            norm_1d=nn.BatchNorm1d(5),
        )

    def features(self, x):
        return self.norm_1d(self.fc(self.pool(F.relu(self.norm(self.conv(x)))).flatten(1)))


class Permuted(Model):
    """Features in an order that a buffer of integers keeps."""

    def __init__(self):
        super().__init__(12, body=nn.Identity())
        self.register_buffer("order", torch.arange(11, -1, -1))

    def features(self, x):
        return x[:, self.order]


def of(width, *layers):
    return lambda: Model(width, body=nn.Sequential(*layers))


MODULES = {
    "parametrized": (of(WIDE, nn.Linear(12, WIDE), nn.utils.parametrizations.weight_norm(nn.Linear(WIDE, WIDE))), (12,)),
    "tied": (Tied, (12,)),
    "attention": (Attention, (12,)),
    "subclass of a normalisation": (of(5, nn.Linear(12, 5), Activated(5)), (12,)),
    "normalisation without weights": (of(5, nn.Linear(12, 5), nn.BatchNorm1d(5, affine=False)), (12,)),
    "normalisation of sequences": (of(35, nn.Conv1d(2, 5, 3), nn.BatchNorm1d(5)), (2, 9)),
    "normalisation in three dimensions": (of(135, nn.Conv3d(2, 5, 2), nn.BatchNorm3d(5)), (2, 4, 4, 4)),
    "images without channels": (of(12, nn.Linear(7, 7), nn.MaxPool2d(3, 2, 1)), (5, 7)),
    "windows that overlap": (Overlapping, (2, 8, 8)),
    "own buffers": (OwnBuffers, (12,)),
}


def results(name, kind, capture=None):
    torch.manual_seed(0)
    make, shape = MODULES[name]
    module, draw = make().double(), np.random.default_rng(0)
    x, y = draw.normal(size=(sum(SIZES), *shape)), draw.integers(CLASSES, size=sum(SIZES))
    flat, samples = Flat(module), Samples(x, y, torch.float64, torch.device("cpu"))
    executor = LoopExecutor(flat, samples, workers=1) if kind == "loop" else BatchedExecutor(flat, samples, capture=capture)
    rows = flat.row().repeat(len(SIZES), 1)
    rows += 0.01 * torch.randn(rows.shape, dtype=torch.float64)
    starts = np.cumsum((0, *SIZES))
    order = tuple(np.arange(start, stop) for start, stop in itertools.pairwise(starts))
    plan = Plan(order, tuple(np.full(n // 5, 5) for n in SIZES))
    trained = executor.do(Sgd(plan, rows, flat.buffer_row(torch.float64).repeat(len(SIZES), 1), 0.1))
    assert not torch.equal(trained.models, rows)
    return *vars(trained).values(), *vars(executor.do(Evaluate(plan, trained.models, trained.buffers))).values()


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("capture", [None, Recorded()], ids=["plain", "captured"])
@pytest.mark.parametrize("name", MODULES)
def test_all_executors_give_the_same(name, capture):
    for found, expected in zip(results(name, "batched", capture), results(name, "loop"), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [LoopExecutor, BatchedExecutor])
def test_an_average_of_integers_is_rounded(kind):
    """In float32 seven shares of a 7 may add up to 6.9999995: cut off, it would be another index."""
    torch.manual_seed(0)
    flat, x = Flat(Permuted()), torch.randn(9, 12).numpy()
    executor = kind(flat, Samples(x, np.arange(9) % CLASSES, torch.float32, torch.device("cpu")))
    plan = Plan((np.arange(9),), (np.full(1, 9),))
    exact = flat.buffer_row(torch.float32).repeat(1, 1)
    expected, found = (executor.do(Evaluate(plan, flat.row().repeat(1, 1), rows)) for rows in (exact, exact - 4e-7))
    assert all(map(torch.equal, vars(found).values(), vars(expected).values()))


# -- steps of a method's own ----------------------------------------------------------------------------------------------


def anchored(grad, *, w, c, anchor):
    """Also at one row for all, and with a number of another type."""
    return {"w": w - 0.1 * (grad(w) - grad(anchor)) - 0.01 * w, "c": c.double() + 1}


def swapped(grad, *, w, c, anchor):
    return {"w": c, "c": w - 0.1 * grad(w)}


def remembered(grad, *, w, c, anchor):
    return {"w": w - 0.1 * grad(w) + 0.05 * (w - c), "c": w}


@pytest.mark.parametrize("engine", ["batched", "captured"])
@pytest.mark.parametrize(("step", "carried"), [(anchored, torch.float32), (swapped, torch.float64), (remembered, torch.float64)])
def test_steps_may_return_what_they_were_given(step, carried, engine):
    found = []
    for kind in ("loop", engine):
        fed = federation("mlp", kind, n=(12, 12, 7)).at(1)
        S, rows = fed.all_trainable(), fed.everyone(fed.initial())
        carry = {"w": rows, "c": (rows.clone() if carried == rows.dtype else torch.zeros_like(rows)).to(carried)}
        found.append(fed.train_by(step, rows, S, carry=carry, given={"anchor": rows[0] + 0.1}))
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=0, atol=1e-10)


def soft(loss, labels, own, reference):
    """An objective uses the loss as PyTorch has it."""
    return loss(own.logits, labels, label_smoothing=0.1) + loss(own.logits, reference.logits.softmax(-1))


@pytest.mark.parametrize("engine", ["batched", "captured"])
def test_objectives_get_pytorch_s_loss(engine):
    found = []
    for kind in ("loop", engine):
        fed = federation("mlp", kind, n=(12, 12, 7)).at(1)
        rows = fed.everyone(fed.initial())
        found.append(fed.sgd(rows, fed.all_trainable(), objective=soft, references=(rows,)))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-10)


def test_no_clients_are_nothing_to_do():
    fed = federation("mlp", "captured", n=(12, 12))
    rows = fed.everyone(fed.initial())[:0]
    assert fed.executor.do(Sgd(Plan((), ()), rows, rows[:, :0], 0.1)).models.shape == (0, fed.flat.size)
