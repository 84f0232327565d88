"""How the convolutions of many clients, each with its own kernels, are computed at once: two ways with the same result.

grouped: what `vmap` makes of them, one convolution with a group for each client. unfolded: every window of the input is laid out
as a row (im2col), and a product of matrices for each client does the rest. Which is faster only a measurement tells.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pflbench.engine import devices

CONVOLUTIONS = ("grouped", "unfolded")
REPEATS = 3
CLEARLY = 1.3  # by how much the other way must be faster: the same machine should choose alike each time


class Unfolded(nn.Conv2d):
    """A convolution as a product of matrices."""

    def forward(self, x: Tensor) -> Tensor:
        windows = F.unfold(x, self.kernel_size, self.dilation, self.padding, self.stride)  # type: ignore[arg-type]
        out = self.weight.flatten(1) @ windows
        if self.bias is not None:
            out = out + self.bias.unsqueeze(-1)
        height, width = (self._positions(x.shape[-2 + k], k) for k in range(2))
        return out.view(*out.shape[:-1], height, width)

    def _positions(self, size: int, k: int) -> int:
        """Of the kernel along a side of the input."""
        reach = self.dilation[k] * (self.kernel_size[k] - 1) + 1
        return (size + 2 * int(self.padding[k]) - reach) // self.stride[k] + 1


def unfold(module: nn.Module) -> None:
    """Computes the module's convolutions unfolded from here on, but for those in groups or with padding that is not zeros."""
    for part in _convolutions(module):
        part.__class__ = Unfolded


def present(module: nn.Module) -> bool:
    return any(True for _ in _convolutions(module))


def _convolutions(module: nn.Module) -> list[nn.Conv2d]:
    found = [part for part in module.modules() if type(part) is nn.Conv2d]
    return [part for part in found if part.groups == 1 and part.padding_mode == "zeros" and not isinstance(part.padding, str)]


def fastest(device: torch.device, work: Callable[[str], Callable[[], object]]) -> str:
    """Of CONVOLUTIONS the faster one for what `work` makes of each; the first unless another one is clearly faster."""
    seconds = {name: _seconds(device, work(name)) for name in CONVOLUTIONS}
    best = min(CONVOLUTIONS, key=lambda name: seconds[name])
    return best if seconds[best] * CLEARLY < seconds[CONVOLUTIONS[0]] else CONVOLUTIONS[0]


def _seconds(device: torch.device, call: Callable[[], object]) -> float:
    call()
    found = []
    for _ in range(REPEATS):
        begun = devices.seconds(device)
        call()
        found.append(devices.seconds(device) - begun)
    return min(found)
