"""What the store takes and gives: plain values and NumPy arrays, no SQL."""

from __future__ import annotations

import io
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class RoundRecord:
    """The state after `round` rounds and what round `round` cost; meanings and units as in `schema.Round`.

    None stands for "not measured". `clients`, `correct`, `total` and `loss` are aligned arrays [evaluated clients],
    int64 but for `loss` (float64, summed cross-entropy over the client's test samples); all four or none of them.
    """

    round: int
    accuracy: float | None = None
    accuracy_mean: float | None = None
    accuracy_std: float | None = None
    test_loss: float | None = None
    train_loss: float | None = None
    participants: int | None = None
    seconds_receive: float | None = None
    seconds_update: float | None = None
    seconds_evaluate: float | None = None
    params_up: int | None = None
    params_down: int | None = None
    scalars_up: int | None = None
    scalars_down: int | None = None
    bytes_up: int | None = None
    bytes_down: int | None = None
    peak_memory: int | None = None
    clients: NDArray[Any] | None = None
    correct: NDArray[Any] | None = None
    total: NDArray[Any] | None = None
    loss: NDArray[Any] | None = None
    series: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # name -> accuracy, test loss
    artifacts: Mapping[str, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class PartitionRecord:
    """Which client holds which samples: the columns of `schema.Partition`.

    `train_counts` and `test_counts` are [client][class]; `indices` has the arrays train_0, test_0, train_1, ...
    """

    hash: str
    scheme: str
    label: str
    dataset: str
    spec: Mapping[str, Any]
    classes: Sequence[str]
    train_counts: NDArray[Any] | Sequence[Sequence[int]]
    test_counts: NDArray[Any] | Sequence[Sequence[int]]
    indices: Mapping[str, NDArray[Any]] | None = None
    left_out: int | None = None


@dataclass(frozen=True)
class RunRow:
    """One attempt at a run. `last_round` is the newest stored round, None where there is none yet."""

    id: int
    key: str
    attempt: int
    protocol: str
    status: str
    message: str | None
    spec: dict[str, Any]
    environment: dict[str, Any]
    rounds: int
    partition_id: int | None
    created_at: str
    started_at: str | None
    finished_at: str | None
    last_round: int | None


def pack_indices(indices: Mapping[str, NDArray[Any]]) -> bytes:
    """The arrays as a compressed .npz."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **dict(indices))
    return buffer.getvalue()


def unpack_indices(data: bytes) -> dict[str, NDArray[Any]]:
    """The inverse of `pack_indices`."""
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def pack_array(array: NDArray[Any]) -> bytes:
    """The array's buffer, C order, little-endian, compressed. dtype and shape are kept beside it."""
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return zlib.compress(little.tobytes(order="C"), level=1)


def unpack_array(data: bytes, dtype: str, shape: Sequence[int]) -> NDArray[Any]:
    """The inverse of `pack_array`, for a dtype named like "float32"."""
    values = np.frombuffer(zlib.decompress(data), dtype=np.dtype(dtype).newbyteorder("<"))
    return values.astype(dtype).reshape(tuple(shape))
