"""Large linear layers whose weight gradient is never written down: SGD adds the product of its two factors to the weight."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LARGE = 2**18  # elements, 1 MB in float32: beyond the cache of a core, where writing a gradient and reading it back costs time


class Factored:
    """Takes over the large linear layers of a module. While `on`, a backward pass gives no gradient for their weights.

    Instead it keeps the factors g [b, out] and x [b, in] of that gradient, g^T x, until `descend` takes the step. Where a weight
    is used in other ways too, there is a gradient for these.
    """

    def __init__(self, module: nn.Module) -> None:
        self.on = False
        self.kept: list[tuple[Tensor, Tensor, Tensor]] = []
        for layer in module.modules():
            if type(layer) is nn.Linear and layer.weight.numel() >= LARGE:
                layer.forward = partial(self._forward, layer)  # type: ignore[method-assign]

    def switch(self, on: bool) -> None:
        """Also forgets what an interrupted step has left."""
        self.on = on
        self.kept.clear()

    def descend(self, lr: float) -> None:
        """w <- w - lr * g^T x for everything kept since the last time."""
        for weight, g, x in self.kept:
            weight.addmm_(g.t(), x, alpha=-lr)
        self.kept.clear()

    def _forward(self, layer: nn.Linear, x: Tensor) -> Tensor:
        if not (self.on and layer.weight.requires_grad and torch.is_grad_enabled()):
            return F.linear(x, layer.weight, layer.bias)
        product: Tensor = _Linear.apply(x, layer.weight, layer.bias, self.kept)  # type: ignore[no-untyped-call]
        return product


class _Linear(torch.autograd.Function):
    """F.linear with an entry to `kept` in place of the weight's gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, kept: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.kept = kept
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, Tensor | None, None]:
        (g,), (x, weight) = gradients, ctx.saved_tensors
        rows = g.reshape(-1, g.shape[-1])
        ctx.kept.append((weight, rows, x.reshape(-1, x.shape[-1])))
        to_x, _, to_bias, _ = ctx.needs_input_grad
        return g @ weight if to_x else None, None, rows.sum(0) if to_bias else None, None
