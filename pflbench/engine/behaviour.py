"""How clients behave beside what a method asks of them: simulated seconds, and compressed uploads (methods.md 2.14)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflbench.spec import TrainSpec

INDEX = 4  # bytes of the position of an entry that topk keeps


@dataclass(frozen=True)
class ClientClock:
    """Simulated devices and networks. compute: seconds of a client's plain local training, [N]; latency: seconds, each way.

    bandwidth: bytes per second, each way; inf: transfers take no time.
    """

    compute: NDArray[np.float64]
    bandwidth: float = float("inf")
    latency: float = 0.0

    def seconds(self, down: NDArray[Any], up: NDArray[Any]) -> NDArray[np.float64]:
        """Of each client's round, [N]. down, up: bytes, [N]."""
        return np.asarray(2 * self.latency + (down + up) / self.bandwidth + self.compute)


def upload_bytes(train: TrainSpec, width: int, word: int) -> int:
    """What one client sends for `width` parameters. word: bytes of a floating-point number."""
    if not width or train.upload == "full":
        return word * width
    if train.kept_share is None:
        return width + word
    return (word + INDEX) * _kept(width, train.kept_share)


def compressed(train: TrainSpec, change: Tensor) -> Tensor:
    """What the server makes of clients' changes [c, P] that were sent in the protocol's form."""
    if train.kept_share is None:
        return _rounded(change)
    at = change.abs().topk(_kept(change.shape[1], train.kept_share), dim=1).indices
    return torch.zeros_like(change).scatter(1, at, change.gather(1, at))


def _kept(width: int, share: float) -> int:
    return max(1, int(share * width))


def _rounded(change: Tensor) -> Tensor:
    """To the nearest of 255 levels, which are symmetric around 0; the outermost are a row's largest magnitude."""
    step = change.abs().amax(dim=1, keepdim=True) / 127
    return torch.where(step > 0, (change / step).round() * step, 0)
