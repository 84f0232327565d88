"""The models of the tasks in plain PyTorch, with the parameters' names and shapes that pflbench has (methods.md 4).

Every adapter trains these, so that no tool needs pflbench in its environment. `weights.pt` of a task loads strictly.
"""

from __future__ import annotations

from math import prod

from torch import Tensor, nn
from torch.nn import functional as F


class CNN(nn.Module):
    """Two 5x5 convolutions with 32 and 64 channels, each with ReLU and 2x2 max-pooling, `fc` of 512 units, `output`."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = input_shape
        self.conv_1 = nn.Conv2d(channels, 32, 5)
        self.conv_2 = nn.Conv2d(32, 64, 5)
        self.fc = nn.Linear(64 * _pooled_twice(height) * _pooled_twice(width), 512)
        self.output = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images [batch, channels, height, width] -> logits [batch, classes]."""
        x = F.max_pool2d(F.relu(self.conv_1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv_2(x)), 2)
        logits: Tensor = self.output(F.relu(self.fc(x.flatten(1))))
        return logits


class MLP(nn.Module):
    """One hidden layer of 64 units with ReLU."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(prod(input_shape), 64)
        self.output = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Samples [batch, ...] -> logits [batch, classes]."""
        logits: Tensor = self.output(F.relu(self.hidden(x.flatten(1))))
        return logits


class LogisticRegression(nn.Module):
    """One linear layer over the flattened sample."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.output = nn.Linear(prod(input_shape), classes)

    def forward(self, x: Tensor) -> Tensor:
        """Samples [batch, ...] -> logits [batch, classes]."""
        logits: Tensor = self.output(x.flatten(1))
        return logits


class FastText(nn.Module):
    """Mean of the 32-dimensional embeddings over all positions, padding included, `hidden` without activation, `output`."""

    def __init__(self, vocabulary: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 32, padding_idx=0)
        self.hidden = nn.Linear(32, 32)
        self.output = nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Token ids [batch, positions] -> logits [batch, classes]."""
        logits: Tensor = self.output(self.hidden(self.embedding(x).mean(1)))
        return logits


NAMES = ("cnn", "mlp", "logreg", "fasttext")


def build(name: str, input_shape: tuple[int, ...], classes: int, vocabulary: int | None = None) -> nn.Module:
    """The model `name` for samples of `input_shape` (without the batch). Its head is `output` in all of them."""
    if name == "fasttext":
        assert vocabulary is not None, "fastText needs texts"
        return FastText(vocabulary, classes)
    return {"cnn": CNN, "mlp": MLP, "logreg": LogisticRegression}[name](input_shape, classes)


def _pooled_twice(size: int) -> int:
    return ((size - 4) // 2 - 4) // 2
