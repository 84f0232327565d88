"""Small federations on made-up data, for tests of any model and any method."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pflbench import models
from pflbench.contract.recorded import Recorded
from pflbench.engine.batched.batched_executor import BatchedExecutor
from pflbench.engine.batched.program import capture
from pflbench.engine.federation import Federation
from pflbench.engine.flat import Flat
from pflbench.engine.loop_executor import LoopExecutor
from pflbench.engine.memory import Chunks
from pflbench.engine.packed.packed_executor import Pack
from pflbench.engine.requests import Executor, Loss
from pflbench.engine.samples import Samples
from pflbench.methods.base import Method
from pflbench.run.checkpoint import tensors
from pflbench.run.round import CommunicationRound
from pflbench.spec import TrainSpec

__all__ = ["CLASSES", "EXECUTORS", "federation", "in_a_pack", "tensors", "train", "unequal"]

CLASSES = 4
T = TypeVar("T")
Make = Callable[[tuple[int, ...], int, int | None], nn.Module]
EXECUTORS = ("loop", "batched", "batched in chunks", "captured")


class BatchNormNet(nn.Module):
    """Two blocks with BatchNorm between them, the smallest model with buffers."""

    head = "output"
    blocks = (("output",), ("hidden", "norm"))

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(12, 6)
        self.norm = nn.BatchNorm1d(6)
        self.output = nn.Linear(6, CLASSES)

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.hidden(x)))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.output(self.features(x))
        return logits


NUMBERS, GREY, COLOUR, SIGNALS, TEXT = (12,), (1, 16, 16), (3, 32, 32), (2, 1, 28), (20,)  # samples
VOCABULARY = 30


def _suits(model: str, shape: tuple[int, ...], vocabulary: int | None = None) -> bool:
    return model in models.MODELS and not models.MODELS[model].needs(shape, vocabulary)


def _shape(model: str) -> tuple[int, ...]:
    """The smallest sample that a built-in model takes."""
    return next((shape for shape in (NUMBERS, GREY, COLOUR, SIGNALS) if _suits(model, shape)), TEXT)


SHAPES = {name: _shape(name) for name in models.MODELS} | {
    "batchnorm": NUMBERS,
    "resnet20": (3, 16, 16),
    "resnet20-gn": (3, 16, 16),
}

# Steps in an epoch of 20 clients: 20, 19, 15, 11, 8, 6, 5, 4, 3, 2 and 1 clients take part in a first, second, ... eleventh step.
# Captured programs are for 20, 16, 12, 9, 7, 5, 4, 3, 2 and 1 clients: all of them are needed, and five also hold clients that
# have finished.
STEPS = (1, *(2,) * 4, *(3,) * 4, *(4,) * 3, 5, 5, 6, 7, 8, 9, 10, 11)


def unequal(batch_size: int) -> tuple[int, ...]:
    """Samples of 20 clients that make STEPS with whole batches of this size."""
    return tuple(steps * batch_size + client % batch_size for client, steps in enumerate(STEPS))


def federation(
    model: str | Make = "mlp",
    engine: str = "loop",
    *,
    n: tuple[int, ...] = (33, 8, 21, 14),
    tests: tuple[int, ...] | None = None,
    seed: int = 0,
    dtype: str = "float64",
    device: str = "cpu",
    shape: tuple[int, ...] | None = None,
    classes: int = CLASSES,
    vocabulary: int | None = None,
    convolution: str | None = None,
    around: Callable[[nn.Module], nn.Module] | None = None,
    **train: Any,
) -> Federation:
    """Clients with n training samples each; batches of 5, so that some clients have a partial batch.

    model: a name, or a function of a sample's shape, the number of classes and the vocabulary. engine: one of EXECUTORS;
    tests: test samples of each client, by default half as many; device: as PyTorch names it; shape: of a sample, by default the
    model's in SHAPES; vocabulary: of tokens, which samples then are; convolution: as BatchedExecutor takes it; train: as in
    TrainSpec; around: `Method.model`.
    """
    tests = tests or tuple(max(k // 2, 1) for k in n)
    rng = np.random.default_rng(7)
    total = sum(n) + sum(tests)
    shape = shape or SHAPES.get(str(model)) or _shape(str(model))
    vocabulary = VOCABULARY if isinstance(model, str) and _suits(model, TEXT, VOCABULARY) else vocabulary
    y = rng.integers(classes, size=total)
    x: np.ndarray
    if vocabulary is not None:
        x = rng.integers(vocabulary, size=(total, *shape))
    else:
        x = rng.normal(size=(total, *shape)) + rng.normal(size=(classes, *shape))[y]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = _module(model, shape, classes, vocabulary)
        flat = Flat(around(module) if around else module)
    samples = Samples(x, y, getattr(torch, dtype), torch.device(device))
    settings = {"rounds": 4, "batch_size": 5, "lr": 0.1, **train}
    bounds = np.cumsum([0, *n, *tests])
    parts = [np.arange(a, b) for a, b in itertools.pairwise(bounds)]
    spec = TrainSpec(dtype=dtype, **settings)
    return Federation(flat, executor(engine, flat, samples, convolution), spec, parts[: len(n)], parts[len(n) :], seed, y)


def _module(model: str | Make, shape: tuple[int, ...], classes: int, vocabulary: int | None) -> nn.Module:
    if not isinstance(model, str):
        return model(shape, classes, vocabulary)
    return BatchNormNet() if model == "batchnorm" else models.build(model, shape, classes, vocabulary)


def executor(engine: str, flat: Flat, samples: Samples, convolution: str | None = None, loss: Loss = F.cross_entropy) -> Executor:
    if engine == "loop":
        return LoopExecutor(flat, samples, 2 if samples.device.type == "cpu" else None, loss)
    chunks = Chunks(2 if engine == "batched in chunks" else None)
    how = (capture("auto", samples.device) or Recorded()) if engine == "captured" else None
    return BatchedExecutor(flat, samples, chunks, loss, how, convolution)


def train(method: Method, fed: Federation, count: int = 3, state: Any = None, start: int = 1, tested: bool = True) -> Any:
    """The state after `count` rounds and one more reception, as E1 of the round after sees it.

    tested: whether the clients are tested after earlier receptions, too.
    """
    now = CommunicationRound(method, fed, start)
    now.reception.test_follows = tested
    state = state if state is not None else now.receive(method.init(fed))
    for t in range(start, start + count):
        state = now.update(state)
        now = CommunicationRound(method, fed, t + 1)
        now.reception.test_follows = tested or t + 1 == start + count
        state = now.receive(state)
    return state


def in_a_pack(feds: Sequence[Federation], work: Callable[[Federation], T]) -> list[T]:
    """What `work` returns for each federation, all together on the first one's executor."""

    def done(fed: Federation) -> Generator[T, None, None]:
        yield work(fed)

    pack = Pack(feds[0].executor, len(feds))
    for fed, own in zip(feds, pack.executors, strict=True):
        fed.executor = own
    found = dict(pack.together(list(map(done, feds))))
    return [found[number] for number in range(len(feds))]
