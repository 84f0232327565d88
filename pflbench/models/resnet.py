"""ResNet-18 (He et al., CVPR 2016; methods.md 4.3): torchvision's, with its names and its initialisation."""

from __future__ import annotations

from torch import Tensor, nn

from pflbench._torchvision import torchvision
from pflbench.models.base import Backbone


class ResNet18(Backbone):
    """For RGB images of any size; 7x7 stem with stride 2, batch normalisation, 512 features."""

    head = "fc"
    blocks = (("fc",), ("layer4",), ("layer3",), ("layer2",), ("layer1",), ("conv1", "bn1"))

    def __init__(self, classes: int) -> None:
        super().__init__()
        net: nn.Module = torchvision().models.resnet18(weights=None, num_classes=classes)
        for name, child in net.named_children():
            self.add_module(name, child)

    def features(self, x: Tensor) -> Tensor:
        for name, child in self.named_children():
            if name != self.head:
                x = child(x)
        return x.flatten(1)
