"""Layers of many clients at once that leave their images where a convolution in groups has put them.

That convolution takes and gives [b, clients * channels, ...]. `vmap` by itself pools images one below another, as
[clients * b, ...], so that everything is copied before each pooling and behind it, forward and backward; and it normalises
batches without weights and multiplies afterwards, in some nine passes over the images where one would do.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

Window = tuple[Any, Any, Any, Any, bool]
"""Size of the kernel, stride, padding, dilation, and whether the size of the result is rounded up."""


def merge(module: nn.Module) -> None:
    """Computes the module's layers so from here on. Gradients of gradients of max-pooling and normalisation are not to be had."""
    for part in module.modules():
        if "forward" in vars(part):  # it computes something else
            continue
        if type(part) is nn.Linear and part.bias is not None:
            part.__class__ = Linear
        elif type(part) is nn.MaxPool2d and not part.return_indices:
            part.__class__ = _MaxPool
        elif type(part) in (nn.BatchNorm1d, nn.BatchNorm2d) and _is_usual(part):  # type: ignore[arg-type]
            part.__class__ = _BatchNorm1d if type(part) is nn.BatchNorm1d else _BatchNorm2d
            part.num_batches_tracked = part.num_batches_tracked.to(part.weight.dtype)  # type: ignore[arg-type]


def _is_usual(norm: nn.modules.batchnorm._BatchNorm) -> bool:
    return bool(norm.affine and norm.track_running_stats and norm.momentum is not None)


def owns_buffers(module: nn.Module) -> bool:
    """Whether all buffers are merged normalisations': these change them where they lie, however far apart they lie."""
    return all(isinstance(part, _Merged) for part in module.modules() if part._buffers)


def track_statistics(module: nn.Module, tracked: bool) -> None:
    """Whether merged normalisations of the module change their running statistics in training."""
    for part in module.modules():
        if isinstance(part, _Merged):
            part.tracked = tracked


class Linear(nn.Linear):
    """`vmap` would multiply the bias by 1 first."""

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.t() + self.bias


class _MaxPool(nn.MaxPool2d):
    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4:  # images without channels
            return super().forward(x)  # type: ignore[no-any-return]
        window = (self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)
        pooled: Tensor = _Pool.apply(x, window)[0]  # type: ignore[no-untyped-call]
        return pooled


class _Merged(nn.modules.batchnorm._BatchNorm):
    tracked = True  # the running statistics

    def forward(self, x: Tensor) -> Tensor:
        count = x.numel() // x.shape[1]
        if not self.training or count == 1:  # which PyTorch refuses in training
            return super().forward(x)
        normalised, mean, inverse = _Normalise.apply(x, self.weight, self.bias, self.eps)  # type: ignore[no-untyped-call]
        if self.tracked:
            self._track(mean, inverse, count)
        return normalised  # type: ignore[no-any-return]

    @torch.no_grad()
    def _track(self, mean: Tensor, inverse: Tensor, count: int) -> None:
        variance = (inverse**-2 - self.eps) * (count / (count - 1))
        for running, found in ((self.running_mean, mean), (self.running_var, variance)):
            running.mul_(1 - self.momentum).add_(found, alpha=self.momentum)  # type: ignore[union-attr,operator]
        self.num_batches_tracked.add_(1)  # type: ignore[union-attr]


class _BatchNorm1d(_Merged, nn.BatchNorm1d):
    pass


class _BatchNorm2d(_Merged, nn.BatchNorm2d):
    pass


class _Together(torch.autograd.Function):
    """A function that treats every channel by itself: of many clients, it is made once with the channels of all."""

    @classmethod
    def vmap(cls, info: Any, dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        merged = [_merge(value, dim, info.batch_size) for value, dim in zip(arguments, dims, strict=True)]
        found = cls.apply(*merged)  # type: ignore[no-untyped-call]
        results = found if isinstance(found, tuple) else (found,)
        places = tuple(map(_channel, results))
        apart = tuple(value.unflatten(at, (info.batch_size, -1)) for value, at in zip(results, places, strict=True))
        return (apart, places) if isinstance(found, tuple) else (apart[0], places[0])


def _merge(value: Any, clients: int | None, count: int) -> Any:
    """Images [b, clients * channels, ...], or what there is one of for a channel, [clients * channels]."""
    if not isinstance(value, Tensor):
        return value
    if clients is None:
        value, clients = value.expand(count, *value.shape), 0
    at = 0 if value.dim() == 2 else 1
    return value.movedim(clients, at).flatten(at, at + 1)


def _channel(merged: Tensor) -> int:
    return 0 if merged.dim() == 1 else 1


class _Pool(_Together):
    """(x, window) -> pooled, places of the largest."""

    @staticmethod
    def forward(x: Tensor, window: Window) -> tuple[Tensor, Tensor]:
        return torch.ops.aten.max_pool2d_with_indices(x, *map(_pair, window[:4]), window[4])  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Window], output: tuple[Tensor, Tensor]) -> None:
        (x, ctx.window), (_, places) = inputs, output
        ctx.mark_non_differentiable(places)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, places)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: None) -> tuple[Tensor, None]:
        return _PoolBackward.apply(gradient, *ctx.saved_tensors, ctx.window), None  # type: ignore[no-untyped-call]


class _Backward(_Together):
    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> None:
        raise NotImplementedError("Gradients of gradients of a merged layer.")


class _PoolBackward(_Backward):
    """(gradient, x, places, window) -> gradient of x."""

    @staticmethod
    def forward(gradient: Tensor, x: Tensor, places: Tensor, window: Window) -> Tensor:
        kernel, stride, padding, dilation = map(_pair, window[:4])
        return torch.ops.aten.max_pool2d_with_indices_backward(  # type: ignore[no-any-return]
            gradient, x, kernel, stride, padding, dilation, window[4], places
        )


class _Normalise(_Together):
    """(x, weight, bias, eps) -> normalised, mean and 1 / sqrt(variance + eps) of every channel in the batch."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        return torch.ops.aten.native_batch_norm(x, weight, bias, None, None, True, 0.0, eps)  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, float], output: tuple[Tensor, Tensor, Tensor]) -> None:
        (x, weight, _, ctx.eps), (_, mean, inverse) = inputs, output
        ctx.mark_non_differentiable(mean, inverse)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, mean, inverse)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: None) -> tuple[Tensor, Tensor, Tensor, None]:
        return *_NormaliseBackward.apply(gradient, *ctx.saved_tensors, ctx.eps), None  # type: ignore[no-untyped-call]


class _NormaliseBackward(_Backward):
    """(gradient, x, weight, mean, inverse, eps) -> gradients of x, weight and bias."""

    @staticmethod
    def forward(
        gradient: Tensor, x: Tensor, weight: Tensor, mean: Tensor, inverse: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        return torch.ops.aten.native_batch_norm_backward(  # type: ignore[no-any-return]
            gradient, x, weight, None, None, mean, inverse, True, eps, [True, True, True]
        )


def _pair(value: Any) -> list[int]:
    return list(value) if isinstance(value, (tuple, list)) else [value, value]
