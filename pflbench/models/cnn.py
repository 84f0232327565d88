"""The 4-layer CNN of McMahan et al., AISTATS 2017, as FedALA uses it (methods.md 4.1), and the usual one for EMNIST (4.4)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from pflbench.models.base import Backbone


class CNN(Backbone):
    """Two 5x5 convolutions with 32 and 64 channels, each with ReLU and 2x2 max-pooling, `fc` of 512 units, `output`."""

    head = "output"
    blocks = (("output",), ("fc",), ("conv_2",), ("conv_1",))

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = input_shape
        self.conv_1 = nn.Conv2d(channels, 32, 5)
        self.conv_2 = nn.Conv2d(32, 64, 5)
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(64 * _pooled_twice(height) * _pooled_twice(width), 512)
        self.output = nn.Linear(512, classes)

    def features(self, x: Tensor) -> Tensor:
        # Pooling before ReLU gives the same numbers and spares the ReLU three quarters of its input.
        x = F.relu(self.pool(self.conv_1(x)))
        x = F.relu(self.pool(self.conv_2(x)))
        return F.relu(self.fc(x.flatten(1)))


class EmnistCNN(Backbone):
    """Two 3x3 convolutions with 32 and 64 channels, each with ReLU, one 2x2 max-pooling, `fc` of 128 units, `output`."""

    head = "output"
    blocks = (("output",), ("fc",), ("conv_2",), ("conv_1",))

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = input_shape
        self.conv_1 = nn.Conv2d(channels, 32, 3)
        self.conv_2 = nn.Conv2d(32, 64, 3)
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128)
        self.output = nn.Linear(128, classes)

    def features(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv_1(x))
        x = F.relu(self.pool(self.conv_2(x)))
        return F.relu(self.fc(x.flatten(1)))


def _pooled_twice(size: int) -> int:
    return ((size - 4) // 2 - 4) // 2
