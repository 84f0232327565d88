"""Convolutions of all clients at once on a GPU, in the fastest of three ways for the shapes of a run (docs/performance.md).

On a CPU `vmap` itself makes a convolution in groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, autograd, nn
from torch.nn import functional as F

from pflbench.engine import devices
from pflbench.engine.batched.layers import Operation, Together, install

CONVOLUTIONS = ("groups", "search", "unfold")
CHANNELS = 65_534  # of one convolution in groups: CUDA's grids end at 65,535
WINDOWS = 2**26  # most numbers in the columns of one product, unless a single client has more
REPEATS = 3
CLEARLY = 1.05  # how much faster than the first another way must be, so that a machine chooses the same each time

Results = tuple[Tensor, ...]


@dataclass(frozen=True)
class _Kernel:
    """A layer's settings. shape: of one client's weight, [out, in / groups, height, width]."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    unfold: bool

    @property
    def width(self) -> int:
        """Numbers in a window."""
        return math.prod(self.shape[1:])

    def positions(self, x: Tensor) -> list[int]:
        """Numbers of positions of the kernel in an image, along its height and its width."""
        sides = zip(x.shape[2:], self.shape[2:], self.stride, self.padding, self.dilation, strict=True)
        return [(size + 2 * padding - dilation * (k - 1) - 1) // stride + 1 for size, k, stride, padding, dilation in sides]


class _Convolution(nn.Conv2d):
    unfold = False

    @staticmethod
    def suits(layer: nn.Conv2d) -> bool:
        left, right, top, bottom = layer._reversed_padding_repeated_twice
        return layer.padding_mode == "zeros" and (left, top) == (right, bottom)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4:  # an image without a batch
            return super().forward(x)
        left, _, top, _ = self._reversed_padding_repeated_twice
        kernel = _Kernel(tuple(self.weight.shape), self.stride, (top, left), self.dilation, self.groups, self.unfold)
        out: Tensor = Together.apply(CONVOLVE, x, self.weight.flatten(), kernel)[0]  # type: ignore[no-untyped-call]
        return out if self.bias is None else out + self.bias[:, None, None]


class _Unfolded(_Convolution):
    unfold = True


# -- images [b, clients * in, ...] and flat weights [clients * out * in * height * width] -----------------------------------


def _convolve(x: Tensor, weight: Tensor, kernel: _Kernel) -> Results:
    grouped, unfolded = partial(_grouped, kernel=kernel), partial(_unfolded, kernel=kernel)
    return _some_clients_at_a_time(grouped, unfolded, x, kernel, x, weight)


def _gradients(g: Tensor, x: Tensor, weight: Tensor, kernel: _Kernel, *, of_images: bool) -> Results:
    grouped = partial(_grouped_gradients, kernel=kernel, of_images=of_images)
    unfolded = partial(_unfolded_gradients, kernel=kernel, of_images=of_images)
    return _some_clients_at_a_time(grouped, unfolded, x, kernel, g, x, weight)


def _some_clients_at_a_time(
    grouped: Callable[..., Results], unfolded: Callable[..., Results], x: Tensor, kernel: _Kernel, *values: Tensor
) -> Results:
    """Calls it for equally many clients at a time, in as few calls as possible. Clients are independent of one another."""
    clients = x.shape[1] // (kernel.shape[1] * kernel.groups)
    # Without groups, for a single client, cuDNN is fast.
    if unfold := kernel.unfold and kernel.groups == 1 and clients > 1:
        most = WINDOWS // (kernel.width * math.prod(kernel.positions(x)) * len(x))
    else:
        most = CHANNELS // max(kernel.shape[0], x.shape[1] // clients)
    one = unfolded if unfold else grouped
    calls = -(-clients // max(1, most))
    if calls == 1:
        return one(*values)
    at_a_time = -(-clients // calls)
    parts = [one(*some) for some in zip(*(_split(value, clients, at_a_time) for value in values), strict=True)]
    return tuple(torch.cat(same, min(1, same[0].dim() - 1)) for same in zip(*parts, strict=True))


def _split(value: Tensor, clients: int, at_a_time: int) -> Results:
    at = min(1, value.dim() - 1)
    return torch.split(value, value.shape[at] // clients * at_a_time, at)


def _grouped(x: Tensor, weight: Tensor, kernel: _Kernel) -> Results:
    weight = weight.view(-1, *kernel.shape[1:])
    groups = x.shape[1] // kernel.shape[1]
    return (F.conv2d(x, weight, None, kernel.stride, kernel.padding, kernel.dilation, groups),)


def _grouped_gradients(g: Tensor, x: Tensor, weight: Tensor, kernel: _Kernel, of_images: bool) -> Results:
    weight = weight.view(-1, *kernel.shape[1:])
    how = kernel.stride, kernel.padding, kernel.dilation, False, [0, 0], x.shape[1] // kernel.shape[1]
    to_x, to_weight, _ = torch.ops.aten.convolution_backward(g, x, weight, None, *how, [of_images, True, False])
    return (to_x, to_weight.flatten()) if of_images else (to_weight.flatten(),)


def _unfolded(x: Tensor, weight: Tensor, kernel: _Kernel) -> Results:
    out = weight.view(-1, kernel.shape[0], kernel.width) @ _columns(x, kernel)
    out = out.view(-1, len(x), *kernel.positions(x))
    return (out.transpose(0, 1).contiguous(),)


def _unfolded_gradients(g: Tensor, x: Tensor, weight: Tensor, kernel: _Kernel, of_images: bool) -> Results:
    """The columns are computed again: kept from the forward pass, they would be most of a step's memory."""
    weight = weight.view(-1, kernel.shape[0], kernel.width)
    g = g.transpose(0, 1).reshape(len(weight), kernel.shape[0], -1)
    to_weight = (g @ _columns(x, kernel).transpose(1, 2)).flatten()
    if not of_images:
        return (to_weight,)
    to_columns = (weight.transpose(1, 2) @ g).view(len(weight) * kernel.width, len(x), -1).transpose(0, 1)
    to_x = F.fold(to_columns, x.shape[2:], kernel.shape[2:], kernel.dilation, kernel.padding, kernel.stride)
    return to_x, to_weight


def _columns(x: Tensor, kernel: _Kernel) -> Tensor:
    """Each client's windows side by side, [clients, in * height * width, b * positions], by one copy for all clients.

    `F.unfold` launches a kernel for each image.
    """
    positions, (top, left) = kernel.positions(x), kernel.padding
    x = F.pad(x, (left, left, top, top)) if top or left else x
    image, channel, *sides = x.stride()
    within = [dilation * side for dilation, side in zip(kernel.dilation, sides, strict=True)]
    between = [stride * side for stride, side in zip(kernel.stride, sides, strict=True)]
    shape = x.shape[1], *kernel.shape[2:], len(x), *positions
    windows = x.as_strided(shape, (channel, *within, image, *between))
    return windows.reshape(-1, kernel.width, len(x) * math.prod(positions))


CONVOLVE = Operation(
    _convolve, 2, Operation(partial(_gradients, of_images=True)), Operation(partial(_gradients, of_images=False))
)


# -- which way ------------------------------------------------------------------------------------------------------------


def convolutions(module: nn.Module) -> bool:
    """Whether the module has convolutions."""
    return any(isinstance(part, nn.modules.conv._ConvNd) for part in module.modules())


def convolve_by(module: nn.Module, way: str) -> None:
    """Makes the module compute its convolutions in this way. Layers with other kinds of padding stay as they are."""
    install(module, {nn.Conv2d: _Unfolded if way == "unfold" else _Convolution})


@contextmanager
def convolving(way: str | None) -> Iterator[None]:
    """Inside, cuDNN chooses algorithms as one of CONVOLUTIONS says. None: as outside."""
    before = torch.backends.cudnn.benchmark
    if way is not None:
        torch.backends.cudnn.benchmark = way == "search"
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def fastest(seconds: Callable[[str], float]) -> str:
    """The one of CONVOLUTIONS that takes the fewest seconds; the first unless another is clearly faster.

    Each is timed in a thread of its own, backward pass included. PyTorch keeps cuDNN's choice for a shape by thread: the second
    way in the same thread would be timed with the kernels of the first.
    """

    def alone(way: str) -> float:
        with autograd.set_multithreading_enabled(False):
            return seconds(way)

    times = {}
    for way in CONVOLUTIONS:
        with ThreadPoolExecutor(1) as thread:
            times[way] = thread.submit(alone, way).result()
    best, first = min(CONVOLUTIONS, key=times.__getitem__), CONVOLUTIONS[0]
    return best if times[best] * CLEARLY < times[first] else first


def seconds(device: torch.device, call: Callable[[], object]) -> float:
    """The shortest of several calls, after one for warming up."""
    call()
    times = []
    for _ in range(REPEATS):
        begun = devices.seconds(device)
        call()
        times.append(devices.seconds(device) - begun)
    return min(times)
