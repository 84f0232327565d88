"""Small files in the original formats of MNIST and its relatives, and as PFLlib writes them."""

from __future__ import annotations

import json
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


def put_pfllib(folder: Path, clients: int = 2, side: int = 4, **config: object) -> Path:
    """A folder of images as PFLlib's own code writes it: np.savez_compressed(file, data={"x": ..., "y": ...})."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 6), ("test", 2)):
        (folder / part).mkdir(parents=True)
        for client in range(clients):
            x = rng.normal(size=(count, 1, side, side)).astype(np.float32)
            y = np.arange(count) % 2 + client
            np.savez_compressed(folder / part / f"{client}.npz", data={"x": x, "y": y})
    (folder / "config.json").write_text(json.dumps({"num_clients": clients, **config}))
    return folder
