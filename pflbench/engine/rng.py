"""Random streams, drawn from (root seed, purpose, numbers such as round and client) and never from the method.

So all methods see the same cohorts and batches, and a resumed run draws what an uninterrupted one draws.
"""

from __future__ import annotations

import zlib

import numpy as np


def stream(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """An independent generator for one purpose, e.g. `stream(seed, "batches", t, client)`."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *numbers])


def torch_seed(seed: int, purpose: str) -> int:
    """A seed for PyTorch's own generator (model initialisation)."""
    return int(stream(seed, purpose).integers(2**62))


def cohort(seed: int, t: int, candidates: np.ndarray, size: int) -> np.ndarray:
    """S_t: `size` of the candidates, uniformly without replacement, in ascending order (methods.md 0.1)."""
    if size >= len(candidates):
        return candidates
    return np.sort(stream(seed, "cohort", t).choice(candidates, size, replace=False))
