"""Large linear layers of many clients whose weight gradients are never written: SGD adds the products of their factors.

The same as engine.factored, which is for one client at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pflbench.engine.factored import LARGE


class Factors:
    """The factors of a weight's gradient, the sum of all g^T x: pairs of g [c, b, out] and x [c, b, in]."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Tensor, Tensor]] = []


class Products:
    """Takes over the large linear layers of a module that have biases."""

    def __init__(self, module: nn.Module) -> None:
        self._layers: dict[str, _Product] = {}  # by the name of the weight
        self._biases: dict[str, str] = {}
        for name, layer in module.named_modules():
            if isinstance(layer, nn.Linear) and layer.bias is not None and layer.weight.numel() >= LARGE:
                layer.__class__ = _Product
                prefix = f"{name}." if name else ""
                self._layers[f"{prefix}weight"] = layer  # type: ignore[assignment]
                self._biases[f"{prefix}weight"] = f"{prefix}bias"

    def among(self, parameters: set[str]) -> set[str]:
        """Which of these parameters are such layers' weights. The bias has to be trained too: its gradient leads to the layer."""
        return {weight for weight, bias in self._biases.items() if {weight, bias} <= parameters}

    @contextmanager
    def kept(self, names: set[str]) -> Iterator[dict[str, Factors]]:
        """Inside, these weights get no gradient, but the factors of it are kept."""
        found = {name: Factors() for name in names}
        for name, kept in found.items():
            self._layers[name].kept = kept
        try:
            yield found
        finally:
            for name in names:
                self._layers[name].kept = None


def descend(weight: Tensor, gradient: Factors, lr: float, live: Tensor | None) -> None:
    """weight [c, out, in] -= lr * g^T x, in the rows where live [c] is 1."""
    for g, x in gradient.pairs:
        wanted = g if live is None else g * live[:, None, None]
        weight.baddbmm_(wanted.transpose(1, 2), x, alpha=-lr)


class _Product(nn.Linear):
    kept: Factors | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.kept is None:
            return x @ self.weight.t() + self.bias
        product: Tensor = _Affine.apply(x, self.weight, self.bias, self.kept)  # type: ignore[no-untyped-call]
        return product


class _Affine(torch.autograd.Function):
    """(x, weight, bias, kept) -> x weight^T + bias. The weight gets no gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, kept: Factors) -> Tensor:
        return x @ weight.t() + bias

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Factors], output: Tensor) -> None:
        x, weight, _, ctx.kept = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, Tensor, None]:
        x, weight = ctx.saved_tensors
        _Keep.apply(gradient, x, ctx.kept)  # type: ignore[no-untyped-call]
        return gradient @ weight if ctx.needs_input_grad[0] else None, None, gradient.flatten(0, -2).sum(0), None


class _Keep(torch.autograd.Function):
    """(gradient, x, kept), of which `vmap` shows all clients at once."""

    @staticmethod
    def forward(gradient: Tensor, x: Tensor, kept: Factors) -> Tensor:
        raise RuntimeError("Factors are kept of clients under vmap alone.")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, dims: tuple[int, int, None], gradient: Tensor, x: Tensor, kept: Factors) -> tuple[Tensor, int]:
        kept.pairs.append((gradient.movedim(dims[0], 0).flatten(1, -2), x.movedim(dims[1], 0).flatten(1, -2)))
        return gradient, dims[0]
