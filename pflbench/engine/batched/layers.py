"""Layers for all clients at once, where `vmap` alone would copy images or need many more operations.

A convolution in groups takes and returns images [b, clients * channels, ...]. `vmap` by itself pools [clients * b, ...], so that
images are copied before and after each pooling, forward and backward. It normalises batches without weights and multiplies
afterwards, in some nine passes over the images where one is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, autograd, nn
from torch.nn import functional as F
from torch.nn.modules.utils import _pair

# -- pooling and normalisation: layers that treat every channel by itself -----------------------------------------------------


@dataclass(frozen=True)
class Operation:
    """run(*arguments, constant) -> results: images [b, channels, ...], or one value for each channel [channels].

    gradient: run(the first result's gradient, the first `needs` arguments, the other results, constant) -> arguments' gradients.
    gradient_of_others: the same without the first argument's gradient, for when it is not needed.
    """

    run: Callable[..., tuple[Tensor, ...]]
    needs: int = 0
    gradient: Operation | None = None
    gradient_of_others: Operation | None = None


class Together(autograd.Function):
    """(operation, *arguments, constant) -> its results. Under `vmap` it runs once, on the channels of all clients."""

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
    """Images [b, clients * channels, ...], or values for each channel [clients * channels].

    clients: the clients' dimension; None: all have the same value.
    """
    if not isinstance(value, Tensor):
        return value
    at = 0 if value.dim() == 1 + (clients is not None) else 1
    if clients is None:
        value, clients = value.expand(count, *value.shape), 0
    return value.movedim(clients, at).flatten(at, at + 1)


def _pool(x: Tensor, window: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    """-> pooled, places of the largest. window: kernel, stride, padding, dilation, ceil_mode."""
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

    @staticmethod
    def suits(layer: nn.modules.batchnorm._BatchNorm) -> bool:
        return bool(layer.affine and layer.track_running_stats and layer.momentum is not None)

    def forward(self, x: Tensor) -> Tensor:
        count = x.numel() // x.shape[1]
        if not self.training or count == 1:  # which PyTorch refuses in training
            return super().forward(x)
        arguments = x, self.weight, self.bias, self.eps
        normalised, mean, inverse = Together.apply(self.operation, *arguments)  # type: ignore[no-untyped-call]
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


# -- linear layers --------------------------------------------------------------------------------------------------------


class _Linear(nn.Linear):
    """`vmap` would multiply the bias by 1 first."""

    @staticmethod
    def suits(layer: nn.Linear) -> bool:
        return layer.bias is not None

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.t() + self.bias


# -- the loss -------------------------------------------------------------------------------------------------------------


def cross_entropy(logits: Tensor, y: Tensor, *options: Any, **named: Any) -> Tensor:
    """F.cross_entropy; in few operations for logits [b, K] and labels [b] in 0..K-1.

    `vmap` turns PyTorch's own, with its ignored classes and weights, into some twenty operations.
    """
    if options or named or logits.dim() != 2 or y.dim() != 1:
        return F.cross_entropy(logits, y, *options, **named)
    return -F.log_softmax(logits, -1).gather(-1, y.unsqueeze(-1)).mean()


# -- a module with all of these -------------------------------------------------------------------------------------------

TOGETHER: Mapping[type[nn.Module], Any] = {
    nn.Linear: _Linear,
    nn.MaxPool2d: _MaxPool,
    nn.BatchNorm1d: _BatchNorm1d,
    nn.BatchNorm2d: _BatchNorm2d,
}


def install(module: nn.Module, ways: Mapping[type[nn.Module], Any]) -> list[Any]:
    """Replaces the classes of the module's layers, and returns the layers that were changed.

    ways: PyTorch's class of a layer -> a subclass of it with another forward, whose `suits(layer)` says whether it can be
    used. Subclasses by users, and layers with a forward of their own, stay as they are.
    """
    known = [layer for layer in module.modules() if type(layer) in ways and "forward" not in vars(layer)]
    layers = [layer for layer in known if ways[type(layer)].suits(layer)]
    for layer in layers:
        layer.__class__ = ways[type(layer)]
    return layers


def compute_together(module: nn.Module) -> None:
    """Replaces the module's layers by those for all clients at once."""
    for layer in install(module, TOGETHER):
        if isinstance(layer, _Norm):  # it counts in rows of buffers, which are floating point
            layer.num_batches_tracked = layer.num_batches_tracked.to(layer.weight.dtype)  # type: ignore[union-attr]


def change_buffers_in_place(module: nn.Module) -> bool:
    """Whether all submodules with buffers change them in place, also when their memory is not contiguous."""
    return all(isinstance(part, _Norm) for part in module.modules() if part._buffers)
