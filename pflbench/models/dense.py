"""Models without convolutions: logistic regression (methods.md 4.4) and a small multilayer perceptron."""

from __future__ import annotations

from math import prod

from torch import Tensor, nn
from torch.nn import functional as F

from pflbench.models.base import Backbone


class LogisticRegression(Backbone):
    """One linear layer over the flattened sample; its feature is the sample itself."""

    head = "output"
    blocks = (("output",),)

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.output = nn.Linear(prod(input_shape), classes)

    def features(self, x: Tensor) -> Tensor:
        return x.flatten(1)


class MLP(Backbone):
    """One hidden layer of 64 units with ReLU: made for the 8x8 digits."""

    head = "output"
    blocks = (("output",), ("hidden",))

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(prod(input_shape), 64)
        self.output = nn.Linear(64, classes)

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.hidden(x.flatten(1)))
