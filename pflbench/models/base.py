"""What the engine may ask of a model: its logits, its head, its feature and its blocks. Nothing federated."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn


class Backbone(nn.Module):
    """A classifier that knows its head (methods.md 0.3) and its blocks (Table 5 of FedALA, methods.md 1.14).

    Submodules are registered from bottom to top, so the parameters of the p top blocks are the trailing ones.
    """

    head: ClassVar[str]
    """Name of the last linear layer."""

    blocks: ClassVar[tuple[tuple[str, ...], ...]]
    """Names of the submodules of each block, top block first; together they hold every parameter."""

    lookup: ClassVar[str | None] = None
    """Name of the nn.Embedding that looks up the input's tokens, if there is one: a step changes few of its rows."""

    channels_last: bool = True
    """Whether it works on parameters and samples in channels-last format, in which convolutions are faster on a CPU."""

    def features(self, x: Tensor) -> Tensor:
        """The input of the head, [batch, d]."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Logits, [batch, classes]."""
        logits: Tensor = getattr(self, self.head)(self.features(x))
        return logits
