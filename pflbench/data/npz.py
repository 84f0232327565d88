"""npz:PATH - own arrays: x (uint8 or float), y (integers), optionally `classes` (names) and `owner` (of each sample).

x is [n, h, w], [n, c, h, w], [n, h, w, c] with c = 1 or 3, or [n, d]. uint8 is scaled to [-1, 1] as all images are,
floating point is taken as is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pflbench.data.base import IMAGE_RATE, Arrays, Defaults, Source
from pflbench.data.content import checksum
from pflbench.errors import UserError

LEAST_FOR_CNN = 16  # pixels: two 5x5 convolutions, each with a 2x2 pooling, leave 1 x 1 of 16 x 16


def checked(
    place: str, x: npt.NDArray[Any], y: npt.NDArray[Any], names: npt.NDArray[Any] | None, owner: npt.NDArray[Any] | None = None
) -> Arrays:
    """Samples and labels as described above, in the form that all data have. place: where they are from, in words.

    Raises UserError for other types and shapes, values that are not finite, and labels without a sample or a name.
    """
    if len(x) != len(y):
        raise UserError(f"{place}: x has {len(x)} samples, y has {len(y)} labels.", "Expected one label per sample.")
    x = _samples(place, x)
    y, classes = labelled(place, y, names)
    return Arrays(x, y, classes, owner=owners(place, owner, len(y)))


def owners(place: str, owner: npt.NDArray[Any] | None, samples: int) -> npt.NDArray[Any] | None:
    """The owner of each sample. Raises UserError unless there is one number or name for each."""
    if owner is not None and (owner.shape != (samples,) or owner.dtype.kind not in "iuU"):
        raise UserError(
            f"{place}: owner is {owner.dtype} with the shape {owner.shape}.",
            f"Expected an integer or a name for each of {samples} samples.",
        )
    return owner


def _read(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays by name. Raises UserError naming a file that is truncated, foreign or pickled, or has no x and y."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in ("x", "y", "classes", "owner") if name in file}
            held = ", ".join(sorted(file)) or "nothing"
    except MemoryError as e:
        raise UserError(f"{path} does not fit into memory: {e}.", "Make it smaller, or use a machine with more memory.") from e
    except Exception as e:  # what NumPy raises for a damaged file is not specified
        raise UserError(
            f"{path} cannot be read: {e}.", "Expected a whole .npz of plain arrays: numpy.savez(path, x=..., y=...)."
        ) from e
    for name in ("x", "y"):
        if name not in arrays:
            raise UserError(f"{path} has no array '{name}'; it holds: {held}.")
    return arrays


def _samples(place: str, x: npt.NDArray[Any]) -> npt.NDArray[np.uint8] | npt.NDArray[np.float32]:
    if x.dtype != np.uint8 and not np.issubdtype(x.dtype, np.floating):
        raise UserError(f"{place}: x is {x.dtype}.", "Expected uint8 (scaled to [-1, 1]) or floating point (taken as is).")
    if x.ndim not in (2, 3, 4) or x.size == 0:
        raise UserError(f"{place}: x has the shape {x.shape}.", "Expected [n, h, w], [n, c, h, w], [n, h, w, c] or [n, d].")
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and _channels_last(x.shape):
        x = x.transpose(0, 3, 1, 2)
    if x.dtype == np.uint8:
        return np.ascontiguousarray(x) if x.ndim == 4 else x.astype(np.float32) / np.float32(127.5) - 1
    with np.errstate(over="ignore"):
        plain = np.ascontiguousarray(x, np.float32)
    if not np.isfinite(plain).all():
        what = "values that are not finite" if not np.isfinite(x).all() else "values beyond what float32 holds"
        raise UserError(f"{place}: the data hold NaN or infinity: x has {what}.", "Remove or replace them, or scale the data.")
    return plain


def _channels_last(shape: tuple[int, ...]) -> bool:
    return shape[3] in (1, 3) and shape[1] not in (1, 3)


def labelled(place: str, y: npt.NDArray[Any], names: npt.NDArray[Any] | None) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Labels as 0..K-1. With names, label k is the k-th; without, the classes are the labels that occur, sorted."""
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        raise UserError(f"{place}: y is {y.dtype} with the shape {y.shape}.", "Expected integers, one per sample.")
    if names is None:
        names, y = np.unique(y, return_inverse=True)
    elif names.ndim != 1 or y.min(initial=0) < 0 or y.max(initial=0) >= len(names):
        raise UserError(f"{place}: y has labels that `classes`, of length {len(names)}, does not name.")
    if len(names) < 2:
        raise UserError(f"{place} has {len(names)} classes.", "Expected two classes or more.")
    return y.astype(np.int64), tuple(map(str, names))


def defaults_of(shape: tuple[int, ...]) -> Defaults:
    """By the shape of x: the CNN for images that are large enough for it, else the MLP."""
    sides = () if len(shape) < 3 else shape[1:3] if len(shape) == 3 or _channels_last(shape) else shape[2:]
    image = len(sides) == 2 and min(sides) >= LEAST_FOR_CNN
    return Defaults("cnn", IMAGE_RATE, 2) if image else Defaults("mlp", 0.1, 2)


def _load(path: Path) -> Arrays:
    arrays = _read(path)
    return checked(str(path), arrays["x"], arrays["y"], arrays.get("classes"), arrays.get("owner"))


NPZ = Source(
    "npz",
    "own arrays x and y",
    content=lambda path, root, progress: checksum(path),
    load=lambda path, root, progress: _load(path),
    defaults=lambda path, root: defaults_of(_read(path)["x"].shape),
)
