"""Layers that compute PyTorch's results in another way: how they come into a module, and what both executors have of them.

The gradient of a large linear layer's weight is never written down: SGD adds the product of its two factors to the weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, autograd, nn
from torch.nn import functional as F

LARGE = 2**18  # elements, 1 MB in float32: beyond the cache of a core, where writing a gradient and reading it back costs time

Ways = Mapping[type[nn.Module], Any]
"""PyTorch's class of a layer -> a subclass that computes it in another way, and says whether it suits a layer: `suits(layer)`."""


def install(module: nn.Module, ways: Ways) -> list[Any]:
    """Computes the module's layers so from here on, where there is a way that suits, and returns these.

    A subclass of a layer stays as it is, and so does one with a forward of its own.
    """
    known = [layer for layer in module.modules() if type(layer) in ways and "forward" not in vars(layer)]
    layers = [layer for layer in known if ways[type(layer)].suits(layer)]
    for layer in layers:
        layer.__class__ = ways[type(layer)]
    return layers


class Factors:
    """Those of the gradient of a linear layer's weight, the sum of all g^T x: pairs of g [b, out] and x [b, in]."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Tensor, Tensor]] = []

    def keep(self, g: Tensor, x: Tensor) -> None:
        self.pairs.append((g.reshape(-1, g.shape[-1]), x.reshape(-1, x.shape[-1])))

    def descend(self, weight: Tensor, lr: float) -> None:
        """weight -= lr * g^T x for all that was kept since the last time."""
        for g, x in self.pairs:
            weight.addmm_(g.t(), x, alpha=-lr)
        self.pairs.clear()


class Product(autograd.Function):
    """(x, weight, bias, factors) -> F.linear(x, weight, bias). The weight gets no gradient: the factors are kept."""

    # No `setup_context`: PyTorch would look at this signature in every call, for more than a hundredth of a step of the CNN.
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, factors: Factors) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.factors = factors
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        ctx.factors.keep(g, x)
        to_x, _, to_bias, _ = ctx.needs_input_grad
        return g @ weight if to_x else None, None, g.reshape(-1, g.shape[-1]).sum(0) if to_bias else None, None


class LargeLinear(nn.Linear):
    """A client's by itself. Where its weight is used in other ways too, there is a gradient for these."""

    factors: Factors | None = None  # where to keep them

    @staticmethod
    def suits(layer: nn.Linear) -> bool:
        return layer.weight.numel() >= LARGE

    def forward(self, x: Tensor) -> Tensor:
        if self.factors is None or not self.weight.requires_grad:
            return super().forward(x)
        product: Tensor = Product.apply(x, self.weight, self.bias, self.factors)  # type: ignore[no-untyped-call]
        return product
