"""Layers of all clients at once, where `vmap` would copy images or make many operations of few.

A convolution in groups takes and gives images [b, clients * channels, ...]. `vmap` by itself pools them one below another, as
[clients * b, ...], so that everything is copied before each pooling and behind it, forward and backward. It normalises batches
without weights and multiplies afterwards, in some nine passes over the images where one would do.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, autograd, nn
from torch.nn import functional as F

from pflbench.engine.layers import LARGE, Factors, Product, Ways, install
from pflbench.engine.samples import Samples

# -- pooling and normalisation: what treats every channel by itself -------------------------------------------------------


@dataclass(frozen=True)
class Operation:
    """run(*arguments, constant) -> results: images [b, channels, ...] or, of 1 dimension, what belongs to the channels.

    gradient: run(the first result's gradient, the first `needs` arguments, the other results, constant) -> arguments' gradients.
    gradient_of_others: without the first argument's, where nothing needs it.
    """

    run: Callable[..., tuple[Tensor, ...]]
    needs: int = 0
    gradient: Operation | None = None
    gradient_of_others: Operation | None = None


class Together(autograd.Function):
    """(operation, *arguments, constant) -> its results. Of many clients, it is made once with the channels of all."""

    @staticmethod
    def forward(operation: Operation, *arguments: Any) -> tuple[Tensor, ...]:
        return operation.run(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.operation, *arguments, ctx.constant = inputs
        if ctx.operation.gradient is not None:
            ctx.mark_non_differentiable(*output[1:])
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(*arguments[: ctx.operation.needs], *output[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: None) -> tuple[Tensor | None, ...]:
        operation: Operation = ctx.operation
        others = operation.gradient_of_others is not None and not ctx.needs_input_grad[1]
        back = operation.gradient_of_others if others else operation.gradient
        if back is None:
            raise NotImplementedError("Gradients of gradients of convolution, pooling or normalisation.")
        found = Together.apply(back, gradient, *ctx.saved_tensors, ctx.constant)  # type: ignore[no-untyped-call]
        return None, *([None] if others else []), *found, None

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], operation: Operation, *arguments: Any) -> tuple[Any, Any]:
        merged = [_merge(value, dim, info.batch_size) for value, dim in zip(arguments, dims[1:], strict=True)]
        results = Together.apply(operation, *merged)  # type: ignore[no-untyped-call]
        places = tuple(min(1, value.dim() - 1) for value in results)
        return tuple(value.unflatten(at, (info.batch_size, -1)) for value, at in zip(results, places, strict=True)), places


def _merge(value: Any, clients: int | None, count: int) -> Any:
    """Images [b, clients * channels, ...], or what there is one of for a channel, [clients * channels]."""
    if not isinstance(value, Tensor):
        return value
    at = 0 if value.dim() == 1 + (clients is not None) else 1
    return _with_clients(value, clients, count, at).flatten(at, at + 1)


def _with_clients(value: Tensor, clients: int | None, count: int, at: int) -> Tensor:
    """With the clients' dimension at a place. clients: where it is; None: they all have the same."""
    if clients is None:
        value, clients = value.expand(count, *value.shape), 0
    return value.movedim(clients, at)


def _pool(x: Tensor, window: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    """-> pooled, places of the largest. window: kernel, stride, padding, dilation, whether the size is rounded up."""
    return torch.ops.aten.max_pool2d_with_indices(x, *window)  # type: ignore[no-any-return]


def _pool_gradient(gradient: Tensor, x: Tensor, places: Tensor, window: tuple[Any, ...]) -> tuple[Tensor]:
    return (torch.ops.aten.max_pool2d_with_indices_backward(gradient, x, *window, places),)


class _MaxPool(nn.MaxPool2d):
    operation = Operation(_pool, 1, Operation(_pool_gradient))

    @staticmethod
    def suits(layer: nn.MaxPool2d) -> bool:
        return not layer.return_indices

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4:  # images without channels
            return super().forward(x)  # type: ignore[no-any-return]
        window = (*map(_pair, (self.kernel_size, self.stride, self.padding, self.dilation)), self.ceil_mode)
        pooled: Tensor = Together.apply(self.operation, x, window)[0]  # type: ignore[no-untyped-call]
        return pooled


def _pair(value: Any) -> list[int]:
    return list(value) if isinstance(value, (tuple, list)) else [value, value]


def _normalise(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """-> normalised, mean and 1 / sqrt(variance + eps) of every channel in the batch."""
    return torch.ops.aten.native_batch_norm(x, weight, bias, None, None, True, 0.0, eps)  # type: ignore[no-any-return]


def _normalise_gradient(
    gradient: Tensor, x: Tensor, weight: Tensor, mean: Tensor, inverse: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ops.aten.native_batch_norm_backward(  # type: ignore[no-any-return]
        gradient, x, weight, None, None, mean, inverse, True, eps, [True, True, True]
    )


class _Norm(nn.modules.batchnorm._BatchNorm):
    operation = Operation(_normalise, 2, Operation(_normalise_gradient))
    tracked = True  # the running statistics

    @staticmethod
    def suits(layer: nn.modules.batchnorm._BatchNorm) -> bool:
        return bool(layer.affine and layer.track_running_stats and layer.momentum is not None)

    def forward(self, x: Tensor) -> Tensor:
        count = x.numel() // x.shape[1]
        if not self.training or count == 1:  # which PyTorch refuses in training
            return super().forward(x)
        arguments = x, self.weight, self.bias, self.eps
        normalised, mean, inverse = Together.apply(self.operation, *arguments)  # type: ignore[no-untyped-call]
        if self.tracked:
            self._track(mean, inverse, count)
        return normalised  # type: ignore[no-any-return]

    @torch.no_grad()
    def _track(self, mean: Tensor, inverse: Tensor, count: int) -> None:
        variance = (inverse**-2 - self.eps) * (count / (count - 1))
        for running, found in ((self.running_mean, mean), (self.running_var, variance)):
            running.mul_(1 - self.momentum).add_(found, alpha=self.momentum)  # type: ignore[union-attr,operator]
        self.num_batches_tracked.add_(1)  # type: ignore[union-attr]


class _BatchNorm1d(_Norm, nn.BatchNorm1d):
    pass


class _BatchNorm2d(_Norm, nn.BatchNorm2d):
    pass


def track_statistics(module: nn.Module, tracked: bool) -> None:
    """Whether the module's normalisations of all clients change their running statistics in training."""
    for part in module.modules():
        if isinstance(part, _Norm):
            part.tracked = tracked


# -- linear layers --------------------------------------------------------------------------------------------------------


class _Linear(nn.Linear):
    """`vmap` would multiply the bias by 1 first."""

    factors: FactorsOfAll | None = None  # where to keep them

    @staticmethod
    def suits(layer: nn.Linear) -> bool:
        return layer.bias is not None

    def forward(self, x: Tensor) -> Tensor:
        if self.factors is None or x.dim() < 2:
            return x @ self.weight.t() + self.bias
        product: Tensor = _ProductOfAll.apply(x, self.weight, self.bias, self.factors)  # type: ignore[no-untyped-call]
        return product


class _ProductOfAll(Product):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, factors: FactorsOfAll) -> Tensor:  # type: ignore[override]
        return x @ weight.t() + bias

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _, ctx.factors = inputs
        ctx.save_for_backward(x, weight)


class FactorsOfAll(Factors):
    """Pairs of g [c, b, out] and x [c, b, in]."""

    def keep(self, g: Tensor, x: Tensor) -> None:
        _Keep.apply(self, g, x)  # type: ignore[no-untyped-call]

    def subtract(self, weight: Tensor, lr: float | Tensor, over: Tensor | None) -> None:
        """weight [c, out, in] -= lr * g^T x, but in the rows of clients that are over [c]."""
        for pair in self.pairs:
            # Of both factors, since 0 times what is no number is none.
            g, x = pair if over is None else (factor.masked_fill(over[:, None, None], 0) for factor in pair)
            if isinstance(lr, Tensor):
                weight.baddbmm_((g * lr).transpose(1, 2), x, alpha=-1)
            else:
                weight.baddbmm_(g.transpose(1, 2), x, alpha=-lr)


class _Keep(autograd.Function):
    """(factors, g, x), of which `vmap` shows all clients at once; without it there is one."""

    @staticmethod
    def forward(factors: FactorsOfAll, g: Tensor, x: Tensor) -> Tensor:
        factors.pairs.append((g[None].flatten(1, -2), x[None].flatten(1, -2)))
        return g

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], factors: FactorsOfAll, g: Tensor, x: Tensor) -> tuple[Tensor, int | None]:
        g_of_all, x_of_all = (_with_clients(value, dim, info.batch_size, 0) for value, dim in zip((g, x), dims[1:], strict=True))
        factors.pairs.append((g_of_all.flatten(1, -2), x_of_all.flatten(1, -2)))
        return g, dims[1]


# -- the loss -------------------------------------------------------------------------------------------------------------


def cross_entropy(logits: Tensor, y: Tensor, *options: Any, **named: Any) -> Tensor:
    """In few operations of logits [b, K] and labels [b] in 0..K-1, as PyTorch has it of anything else.

    Of PyTorch's, with its classes to ignore and their weights, `vmap` makes some twenty.
    """
    if options or named or logits.dim() != 2 or y.dim() != 1:
        return F.cross_entropy(logits, y, *options, **named)
    return -F.log_softmax(logits, -1).gather(-1, y.unsqueeze(-1)).mean()


# -- a module with all of these -------------------------------------------------------------------------------------------

TOGETHER: Ways = {nn.Linear: _Linear, nn.MaxPool2d: _MaxPool, nn.BatchNorm1d: _BatchNorm1d, nn.BatchNorm2d: _BatchNorm2d}


class Layers:
    """Takes over the layers of a module. samples: what it is for, on any device."""

    def __init__(self, module: nn.Module, samples: Samples) -> None:
        for layer in install(module, TOGETHER):
            if isinstance(layer, _Norm):  # it counts in the rows of the buffers, which are no integers
                layer.num_batches_tracked = layer.num_batches_tracked.to(layer.weight.dtype)  # type: ignore[union-attr]
        # Normalisations change their buffers where they lie, however far apart they lie.
        self.own_buffers = all(isinstance(part, _Norm) for part in module.modules() if part._buffers)
        owners = Counter(id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False))
        self._large = {  # by the name of the weight
            f"{name}.weight" if name else "weight": layer
            for name, layer in module.named_modules()
            if isinstance(layer, _Linear) and layer.weight.numel() >= LARGE and owners[id(layer.weight)] == 1
        }
        if self._large:
            used = self._used_by_their_layers_alone(module, samples.without_data())
            self._large = {name: layer for name, layer in self._large.items() if name in used}

    def large(self, parameters: set[str]) -> dict[str, _Linear]:
        """The layers that can keep the factors of their weights' gradients, where these parameters are trained; by weight.

        The bias has to be trained too: its gradient leads to the layer. A weight that is used in other ways, too, would get no
        gradient for these.
        """
        trained = {name: {name, name.removesuffix("weight") + "bias"} <= parameters for name in self._large}
        return {name: layer for name, layer in self._large.items() if trained[name]}

    def _used_by_their_layers_alone(self, module: nn.Module, samples: Samples) -> set[str]:
        """Found in one step without data: factors are kept of these weights, and no gradient leads to them besides."""
        alone = copy.deepcopy(module).to("meta").train()
        large: dict[str, Any] = {name: alone.get_submodule(name.rpartition(".")[0]) for name in self._large}
        with suppress(Exception), keeping(large) as kept, torch.enable_grad():
            x, _ = samples.batch(torch.zeros(2, dtype=torch.int64, device="meta"))
            weights = [layer.weight for layer in large.values()]
            gradients = torch.autograd.grad(alone(x).sum(), [*weights, *alone.parameters()], allow_unused=True)
            return {name for name, gradient in zip(large, gradients, strict=False) if gradient is None and kept[name].pairs}
        return set()


@contextmanager
def keeping(layers: Mapping[str, _Linear]) -> Iterator[dict[str, FactorsOfAll]]:
    """Inside, these layers give no gradients of their weights, but keep the factors of these."""
    found = {name: FactorsOfAll() for name in layers}
    for name, layer in layers.items():
        layer.factors = found[name]
    try:
        yield found
    finally:
        for layer in layers.values():
            layer.factors = None
