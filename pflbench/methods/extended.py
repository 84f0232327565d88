"""A module around the user's model, with parts that a method trains or keeps beside it (methods.md 0.7)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pflbench.engine.federation import Federation
from pflbench.errors import UserError


class ExtendedModel(nn.Module):
    """The user's model `net`; a subclass adds its own parts behind it, and overrides `outputs` and `forward`.

    Columns are [base | head | the further parts in the order of their registration]. A vector or matrix must be a `Values`:
    PyTorch lists a module's own parameters before those of its submodules. Raises UserError for a model whose head is no linear
    layer or that has no features.
    """

    user_model = "net"  # the name of the user's model

    def __init__(self, net: Any) -> None:
        super().__init__()
        top = net.get_submodule(net.head)
        named = {name for name, _ in top.named_parameters()}  # others where PyTorch computes the weight (parametrizations)
        if not isinstance(top, nn.Linear) or not named <= {"weight", "bias"} or not hasattr(net, "features"):
            raise UserError(
                "The method needs the model's features and a linear layer as its head.",
                "A model of your own names that layer as its head: see docs/own-model.md.",
            )
        self.net = net
        self.head = f"net.{net.head}"
        self.blocks = tuple(tuple(f"net.{name}" for name in block) for block in net.blocks)
        self.channels_last = getattr(net, "channels_last", True)
        self.classes, self.width = top.out_features, top.in_features

    @property
    def classifier(self) -> nn.Linear:
        """The model's head."""
        found: nn.Linear = self.get_submodule(self.head)  # type: ignore[assignment]
        return found

    def features(self, x: Tensor) -> Tensor:
        """z: [b, h]."""
        z: Tensor = self.net.features(x)
        return z

    def forward(self, x: Tensor) -> Tensor:
        """What tests take as logits, [b, K]."""
        logits: Tensor = self.classifier(self.features(x))
        return logits


class Targeted(NamedTuple):
    logits: Tensor  # [b, K]
    features: Tensor  # [b, h]
    targets: Tensor  # [K, h]


class ClassTargets(ExtendedModel):
    """The model, and a vector for each class that its features are pulled to. Columns [net | targets]; these are not trained."""

    def __init__(self, net: Any) -> None:
        super().__init__(net)
        self.targets = Values(self.classes, self.width)

    def outputs(self, x: Tensor) -> Targeted:
        z = self.features(x)
        return Targeted(self.classifier(z), z, self.targets.value)


class Values(nn.Module):
    """A vector or matrix of parameters, 0 at first."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(shape))


def base_with(fed: Federation, *parts: str) -> Tensor:
    """The columns of the model below its head and of these further parts: what a method with personal heads sends."""
    columns = torch.arange(fed.flat.size, device=fed.device)
    return torch.cat([columns[: fed.flat.head.start], columns[fed.flat.columns(parts)]])
