"""What a dataset's files hold: a hash of all samples in their order, and whether that is the official content.

A hash of decoded samples tells more than one of files: the same samples may lie in other files. Where decoders differ (JPEG) or a
vocabulary of all texts is needed, a sample is what the file has of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pflbench.data import cache
from pflbench.data.base import Arrays
from pflbench.errors import UserError


@dataclass(frozen=True)
class Content:
    """hash: SHA-256 (hex) of all samples with their labels, in order. parts: samples of the training and of the test part, one
    number where there is no such split.
    """

    hash: str
    parts: tuple[int, ...]
    official: bool

    @property
    def state(self) -> str:
        return "official" if self.official else "other"

    @property
    def detail(self) -> str:
        return f"{' + '.join(f'{size:,}' for size in self.parts)} samples"

    @property
    def in_key(self) -> str | None:
        """What enters a run's specification: nothing for official content."""
        return None if self.official else self.hash


def remembered(root: Path, fingerprint: str, read: Callable[[], Content]) -> Content:
    """What `read` finds in files with this fingerprint; read once."""
    text = cache.remembered(root, f"{fingerprint}.content2.json", lambda: json.dumps(asdict(read())))
    plain = json.loads(text)
    return Content(plain["hash"], tuple(plain["parts"]), plain["official"])


def of_arrays(arrays: Arrays) -> tuple[str, tuple[int, ...]]:
    """Hash and parts of decoded samples: bytes and label of each, and type, shape and classes of all."""
    x = np.ascontiguousarray(arrays.x).reshape(len(arrays.x), -1)
    head = [str(x.dtype), *map(str, arrays.x.shape[1:]), *arrays.classes]
    if len(set(arrays.classes)) < len(arrays.classes) or any("\0" in name for name in arrays.classes):
        # Joined by null characters, these might be another shape with other names.
        head = [json.dumps([str(x.dtype), arrays.x.shape[1:], arrays.classes])]
    return of_samples((row.tobytes() for row in x), arrays.y, head, arrays.train_size)


def of_samples(
    samples: Iterable[bytes], y: npt.NDArray[np.int64], head: Sequence[str], train_size: int | None
) -> tuple[str, tuple[int, ...]]:
    """Hash and parts of samples as they stand in their files, with their labels y [n]. head: what all samples share."""
    digests = [hashlib.sha256(b"%d " % label + one).digest() for one, label in zip(samples, y.tolist(), strict=True)]
    parts = (len(digests),) if train_size is None else (train_size, len(digests) - train_size)
    whole = hashlib.sha256("\0".join([*head, *map(str, parts)]).encode())
    whole.update(b"".join(digests))
    return whole.hexdigest(), parts


def checksum(path: Path, algorithm: str = "sha256") -> str:
    """Of the file's bytes, in hex. Raises UserError where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()
    except OSError as e:
        raise UserError(f"{path} cannot be read: {e.strerror}.") from e
