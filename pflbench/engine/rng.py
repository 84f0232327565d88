"""Random streams, which depend on the seed, a purpose and numbers such as round and client, and never on the method.

So all methods have the same cohorts and batches, and a resumed run draws the same numbers as an uninterrupted one.
"""

from __future__ import annotations

import zlib

import numpy as np


def stream(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """An independent generator for one purpose, e.g. `stream(seed, "batches", t, client)`."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *numbers])


def derived_seed(seed: int, purpose: str, *numbers: int) -> int:
    """A seed of its own, such as that of PyTorch's generator for the initial model."""
    return int(stream(seed, purpose, *numbers).integers(2**62))


def cohort(seed: int, t: int, candidates: np.ndarray, size: int) -> np.ndarray:
    """S_t: `size` of the candidates, uniformly without replacement, in ascending order (methods.md 0.1)."""
    if size >= len(candidates):
        return candidates
    return np.sort(stream(seed, "cohort", t).choice(candidates, size, replace=False))


def join_ratio(seed: int, t: int, low: float, high: float) -> float:
    """The ratio of round t, uniformly from [low, high) (methods.md 2.14)."""
    return float(low + (high - low) * stream(seed, "join ratio", t).random())


def failures(seed: int, t: int, clients: int, probability: float) -> np.ndarray:
    """Which of all clients would fail in round t if they joined it, [N] bool (methods.md 2.14)."""
    return np.asarray(stream(seed, "dropout", t).random(clients) < probability)


def speeds(seed: int, clients: int, slowest: float) -> np.ndarray:
    """Of the clients' devices, as shares of the fastest possible: log-uniform from (1 / slowest, 1], [N] (methods.md 2.14)."""
    return np.asarray(slowest ** -stream(seed, "speed").random(clients))


def subset(seed: int, t: int, client: int, samples: np.ndarray, percent: float, contiguous: bool) -> np.ndarray:
    """D^{s,t}: max(1, int(s / 100 * n)) of a client's samples (methods.md 1.14).

    Random without replacement, or one contiguous slice of the given order with a uniformly random start.
    """
    count = max(1, int(percent / 100 * len(samples)))
    draw = stream(seed, "subset", t, client)
    if contiguous:
        start = int(draw.integers(len(samples) - count + 1))
        return samples[start : start + count]
    return draw.permutation(samples)[:count]
