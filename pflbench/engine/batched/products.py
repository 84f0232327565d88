"""Large linear layers of many clients whose weight gradients are never written: SGD adds the products of their factors.

engine.factored is for one client at a time. Here a weight that is used in other ways, too, is left alone: it would get no
gradient for these.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from pflbench.engine.batched import merged
from pflbench.engine.factored import LARGE
from pflbench.engine.samples import Samples


class Factors:
    """The factors of a weight's gradient, the sum of all g^T x: pairs of g [c, b, out] and x [c, b, in]."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Tensor, Tensor]] = []


class Products:
    """Takes over the large linear layers of a module that have biases. samples: what it is for, on any device."""

    def __init__(self, module: nn.Module, samples: Samples) -> None:
        self._layers: dict[str, _Product] = {}  # by the name of the weight
        owners = Counter(parameter for _, parameter in module.named_parameters(remove_duplicate=False))
        for name, layer in module.named_modules():
            plain = type(layer) in (nn.Linear, merged.Linear) and "forward" not in vars(layer)
            if plain and layer.bias is not None and layer.weight.numel() >= LARGE and owners[layer.weight] == 1:
                layer.__class__ = _Product
                self._layers[f"{name}.weight" if name else "weight"] = layer
        if self._layers:
            used = self._used_by_their_layers_alone(module, samples.without_data())
            self._layers = {name: layer for name, layer in self._layers.items() if name in used}

    def among(self, parameters: set[str]) -> set[str]:
        """Which of these parameters are such layers' weights. The bias has to be trained too: its gradient leads to the layer."""
        return {name for name in self._layers if {name, name.removesuffix("weight") + "bias"} <= parameters}

    def kept(self, names: set[str]) -> AbstractContextManager[dict[str, Factors]]:
        """Inside, these weights get no gradient from their layers, but the factors of it are kept."""
        return _keeping({name: self._layers[name] for name in names})

    def _used_by_their_layers_alone(self, module: nn.Module, samples: Samples) -> set[str]:
        """Found in one step without data: factors are kept of these weights, and no gradient leads to them besides."""
        alone = copy.deepcopy(module).to("meta").train()
        layers: dict[str, Any] = {name: alone.get_submodule(name.rpartition(".")[0]) for name in self._layers}
        with suppress(Exception), _keeping(layers) as kept, torch.enable_grad():
            x, _ = samples.batch(torch.zeros(2, dtype=torch.int64, device="meta"))
            weights = [layer.weight for layer in layers.values()]
            gradients = torch.autograd.grad(alone(x).sum(), [*weights, *alone.parameters()], allow_unused=True)
            return {name for name, gradient in zip(layers, gradients, strict=False) if gradient is None and kept[name].pairs}
        return set()


@contextmanager
def _keeping(layers: dict[str, _Product]) -> Iterator[dict[str, Factors]]:
    found = {name: Factors() for name in layers}
    for name, layer in layers.items():
        layer.kept = found[name]
    try:
        yield found
    finally:
        for layer in layers.values():
            layer.kept = None


def descend(weight: Tensor, gradient: Factors, lr: float, live: Tensor | None) -> None:
    """weight [c, out, in] -= lr * g^T x, in the rows where live [c] is 1."""
    for g, x in gradient.pairs:
        wanted = g if live is None else g * live[:, None, None]
        weight.baddbmm_(wanted.transpose(1, 2), x, alpha=-lr)


class _Product(merged.Linear):
    kept: Factors | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.kept is None or x.dim() < 2:
            return super().forward(x)
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
    """(gradient, x, kept), of which `vmap` shows all clients at once; without it there is one."""

    @staticmethod
    def forward(gradient: Tensor, x: Tensor, kept: Factors) -> Tensor:
        kept.pairs.append((gradient[None].flatten(1, -2), x[None].flatten(1, -2)))
        return gradient

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], gradient: Tensor, x: Tensor, kept: Factors) -> tuple[Tensor, int | None]:
        of_all = [
            value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)
            for value, dim in zip((gradient, x), dims, strict=False)
        ]
        kept.pairs.append((of_all[0].flatten(1, -2), of_all[1].flatten(1, -2)))
        return gradient, dims[0]
