"""Small files in the original formats of MNIST and its relatives."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


def random(seed: int, *shape: int) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def put_idx(path: Path, array: Bytes) -> None:
    """The format of yann.lecun.com/exdb/mnist: 0, 0, 8 (unsigned byte), number of dimensions, sizes, data."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes())


def put_set(folder: Path, prefixes: tuple[str, str], labels: tuple[list[int], list[int]]) -> Bytes:
    """Training and test files; returns the merged images."""
    parts = []
    for seed, (prefix, y) in enumerate(zip(prefixes, labels, strict=True)):
        parts.append(random(seed, len(y), 28, 28))
        put_idx(folder / f"{prefix}-images-idx3-ubyte", parts[-1])
        put_idx(folder / f"{prefix}-labels-idx1-ubyte", np.array(y, np.uint8))
    return np.concatenate(parts)
