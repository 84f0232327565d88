"""The whole dataset on the device, in the type in which it is stored; a batch is one gather and one scale."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import torch
from torch import Tensor


class Samples:
    """x: uint8 images, floats taken as they are, or int64 token ids; y: int64 labels. `dtype` is that of the model."""

    def __init__(self, x: np.ndarray, y: np.ndarray, dtype: torch.dtype, device: torch.device) -> None:
        with warnings.catch_warnings():
            # A memory-mapped cache is read-only; so is every use of it here.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            self.x = torch.from_numpy(np.asarray(x)).to(device)
        self.y = torch.from_numpy(np.asarray(y, dtype=np.int64)).to(device)
        self.dtype = dtype
        self.device = device
        # As a tensor it also decides the type that bytes are converted to.
        self._half = torch.tensor(127.5, dtype=dtype, device=device)

    def replaced(self, x: Tensor, y: Tensor) -> Samples:
        """A dataset of other samples, such as features, on the same device."""
        new = copy.copy(self)
        new.x, new.y = x, y
        return new

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs [*index.shape, ...] and labels [*index.shape].

        Bytes are scaled to [0, 1] and then (x - 0.5) / 0.5, into [-1, 1] (methods.md 5); floats only change their type.
        """
        x = self.x[index]
        if x.dtype == torch.uint8:
            x = x.div(self._half).sub_(1)
        elif x.is_floating_point():
            x = x.to(self.dtype)
        return x, self.y[index]
