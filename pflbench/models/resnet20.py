"""ResNet-20 (He et al., CVPR 2016, section 4.2; methods.md 4.4): the CIFAR type, with batch or group normalisation."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from pflbench.models.base import Backbone

Norm = Callable[[int], nn.Module]

GROUPS = 8  # of 2, 4 and 8 channels; neither paper nor poster says how many


def group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(GROUPS, channels)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut without parameters, the paper's option A."""

    def __init__(self, channels_in: int, channels: int, norm: Norm) -> None:
        super().__init__()
        self.added = channels - channels_in
        self.stride = 2 if self.added else 1
        self.conv1 = nn.Conv2d(channels_in, channels, 3, self.stride, padding=1, bias=False)
        self.norm1 = norm(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = norm(channels)

    def forward(self, x: Tensor) -> Tensor:
        residual = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(residual + self.shortcut(x))

    def shortcut(self, x: Tensor) -> Tensor:
        """The identity; where the shape changes, every second pixel, and zeros as the additional channels."""
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added))


class ResNet20(Backbone):
    """3x3 stem of 16 channels, three stages of three basic blocks (16, 32, 64 channels), average pooling."""

    head = "fc"
    blocks = (("fc",), ("layer3",), ("layer2",), ("layer1",), ("conv1", "norm1"))

    def __init__(self, channels: int, classes: int, norm: Norm = nn.BatchNorm2d) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.norm1 = norm(16)
        self.layer1 = _stage(16, 16, norm)
        self.layer2 = _stage(16, 32, norm)
        self.layer3 = _stage(32, 64, norm)
        self.fc = nn.Linear(64, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def features(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(x)))
        return self.layer3(self.layer2(self.layer1(x))).mean((2, 3))  # type: ignore[no-any-return]


def _stage(channels_in: int, channels: int, norm: Norm) -> nn.Sequential:
    later = (BasicBlock(channels, channels, norm) for _ in range(2))
    return nn.Sequential(BasicBlock(channels_in, channels, norm), *later)
