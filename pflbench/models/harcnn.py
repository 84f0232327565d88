"""The CNN for windows of motion sensors, PFLlib's HARCNN (methods.md 4.5)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from pflbench.models.base import Backbone

KERNEL, POOLED = 9, 2  # time steps


class HARCNN(Backbone):
    """Two convolutions over time with 32 and 64 channels, each with ReLU and max-pooling; `fc_1`, `fc_2`, `output`."""

    head = "output"
    blocks = (("output",), ("fc_2",), ("fc_1",), ("conv_2",), ("conv_1",))

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        """input_shape: (channels, 1, time steps)."""
        super().__init__()
        channels, _, steps = input_shape
        self.conv_1 = nn.Conv2d(channels, 32, (1, KERNEL))
        self.conv_2 = nn.Conv2d(32, 64, (1, KERNEL))
        self.pool = nn.MaxPool2d((1, POOLED))
        self.fc_1 = nn.Linear(64 * _pooled(_pooled(steps)), 1024)
        self.fc_2 = nn.Linear(1024, 512)
        self.output = nn.Linear(512, classes)

    def features(self, x: Tensor) -> Tensor:
        x = F.relu(self.pool(self.conv_1(x)))
        x = F.relu(self.pool(self.conv_2(x)))
        return F.relu(self.fc_2(F.relu(self.fc_1(x.flatten(1)))))


def _pooled(steps: int) -> int:
    """Time steps that a convolution and the pooling leave."""
    return (steps - KERNEL + 1) // POOLED
