"""Runs on made-up data by their whole path into a database: clients of any size, small models of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from sqlalchemy import Engine
from torch import Tensor, nn
from torch.nn import functional as F

from pflbench import models
from pflbench.data import Arrays
from pflbench.models.base import Backbone
from pflbench.partition import Partition
from pflbench.run import federation_data as setting
from pflbench.run.execution import Execution
from pflbench.run.training import Progress, execute
from pflbench.spec import RunSpec

SHAPES = {"logreg": (6,), "mlp": (6,), "norm": (6,), "images": (1, 6, 6), "images, norm": (1, 6, 6), "fasttext": (5,)}
VOCABULARY = 12  # of fasttext's tokens


class Flat(Backbone):
    """BatchNorm between two layers."""

    head = "output"
    blocks = (("output",), ("hidden", "norm"))

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.hidden, self.norm, self.output = nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, classes)

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.hidden(x)))


class Images(Backbone):
    """A convolution, BatchNorm behind it or not, and a pooling."""

    head = "output"
    blocks = (("output",), ("convolution", "norm"))

    def __init__(self, classes: int, norm: bool) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3) if norm else nn.Identity()
        self.output = nn.Linear(3 * 2 * 2, classes)

    def features(self, x: Tensor) -> Tensor:
        return F.max_pool2d(F.relu(self.norm(self.convolution(x))), 2).flatten(1)


def build(name: str, shape: tuple[int, ...], classes: int, *more: Any) -> Backbone:
    """A model of SHAPES."""
    if name == "norm":
        return Flat(classes)
    if name.startswith("images"):
        return Images(classes, norm=name.endswith("norm"))
    return models.build(name, shape, classes, *more)


LOOP = Execution("cpu", "loop", workers=1)


@dataclass(frozen=True, repr=False)
class Case:
    """A specification, with the data and the partition that it is made on whatever it says of them."""

    spec: RunSpec
    arrays: Arrays
    partition: Partition
    how: Execution = LOOP

    def __repr__(self) -> str:
        labels = [[self.arrays.y[own].tolist() for own in side] for side in (self.partition.train, self.partition.test)]
        return f"{self.spec.model_dump_json()}\n{self.how}\ntrained on {labels[0]}\ntested on {labels[1]}"

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """What Hypothesis asks for."""
        printer.text(repr(self))


def samples(model: str, y: np.ndarray, train_size: int | None = None) -> Arrays:
    """Of these labels and of a model's shape: a pattern of the class, and what tells a sample from others.

    Nothing is drawn or rounded: the same on every machine.
    """
    at, where = np.arange(1, len(y) + 1)[:, None], np.arange(1, int(np.prod(SHAPES[model])) + 1)[None]
    pattern, own = where * (y[:, None] + 2) * 29 % 64, at * where * (at + where) * 7 % 61 % 32
    classes = tuple(str(k) for k in range(int(y.max()) + 1))
    if model == "fasttext":
        return Arrays((pattern + own) % VOCABULARY, y, classes, VOCABULARY, train_size)
    x = ((pattern - 32) / 32 + (own - 16) / 16).reshape(-1, *SHAPES[model])
    return Arrays(x.astype(np.float32), y, classes, None, train_size)


@contextmanager
def in_place(case: Case) -> Iterator[None]:
    """As long as this lasts, its data and partition are those of all specifications."""
    with ExitStack() as patches:
        for owner, name, made in (
            (setting.data, "load", lambda *_: case.arrays),
            (setting.data, "record", lambda *_: {"hash": "made up"}),
            (setting, "make", lambda *_: case.partition),
            (setting, "build", build),
            (setting, "_kept", {}),
        ):
            patches.enter_context(patch.object(owner, name, made))
        yield


def run(case: Case, store: Engine) -> list[Progress]:
    with in_place(case):
        return list(execute(case.spec, store, Path("data"), case.how))
