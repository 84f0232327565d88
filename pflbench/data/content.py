"""What a dataset's files hold: a hash of all samples in their order, and whether that is the official content.

A hash of decoded samples tells more than one of files: the same samples may lie in other files. Where decoders differ (JPEG) or a
vocabulary of all texts is needed, a sample is what the file has of it. Official contents are known by published checksums of
files, by a hash, or at least by the number of samples of each part.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pflbench.data import cache
from pflbench.data.base import Arrays

State = Literal["official", "same samples in another order", "other", "unknown"]


@dataclass(frozen=True)
class Facts:
    """What is read of the files alone, once, and remembered.

    hash: SHA-256 (hex) of all samples with their labels, in order. samples: the same whatever the order within the training part
    and within the test part. parts: their sizes, one number where there is no such split. files: MD5 of each file, where that is
    what is published of it; archived: whether the files are what the official archive beside them holds, None if there is none.
    """

    hash: str
    samples: str
    parts: tuple[int, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    archived: bool | None = None


@dataclass(frozen=True)
class Content:
    """hash: as in Facts. detail: how it compares with the official content, in words."""

    hash: str
    state: State
    detail: str

    @property
    def in_key(self) -> str | None:
        """What enters a run's specification: runs on official content have none, as before contents were looked at."""
        return None if self.state == "official" else self.hash


@dataclass(frozen=True)
class Published:
    """What is known of the official content; what is not known is empty.

    parts: samples of the training and of the test part. files: MD5 of each file. hash, samples: as in Facts.
    checked: whether files with other checksums than the published ones were refused before.
    """

    parts: tuple[int, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    hash: str = ""
    samples: str = ""
    checked: bool = False

    def judge(self, found: Facts) -> Content:
        """Whether this is the official content. `unknown` where sizes agree and nothing else can be compared."""
        if self.parts and found.parts != self.parts:
            return Content(found.hash, "other", f"{_sizes(found.parts)}; the official data have {_sizes(self.parts)}")
        if self._is_official(found):
            return Content(found.hash, "official", _sizes(found.parts))
        if self.samples and found.samples == self.samples:
            return Content(found.hash, "same samples in another order", f"{_sizes(found.parts)}; partitions differ")
        if self.files or self.hash or found.archived is False:
            return Content(found.hash, "other", f"{_sizes(found.parts)}, as many as the official data have, but not the same")
        return Content(found.hash, "unknown", f"{_sizes(found.parts)}, as published; no checksum of these files is known")

    def _is_official(self, found: Facts) -> bool:
        by_files = bool(self.files) and all(self.files.get(name) == md5 for name, md5 in found.files.items())
        by_hash = bool(self.hash) and found.hash == self.hash
        return self.checked or (by_files and bool(found.files)) or by_hash or bool(found.archived)


def remembered(root: Path, fingerprint: str, read: Callable[[], Facts]) -> Facts:
    """What `read` finds in files with this fingerprint; read once."""
    text = cache.remembered(root, f"{fingerprint}.content.json", lambda: json.dumps(asdict(read())))
    plain: dict[str, Any] = json.loads(text)
    return Facts(**{**plain, "parts": tuple(plain["parts"])})


def of_arrays(arrays: Arrays) -> Facts:
    """Of decoded samples: bytes and label of each, and type, shape and classes of all."""
    x = np.ascontiguousarray(arrays.x).reshape(len(arrays.x), -1)
    digests = [_digest(row.tobytes(), label) for row, label in zip(x, arrays.y.tolist(), strict=True)]
    head = [str(x.dtype), *map(str, arrays.x.shape[1:]), *arrays.classes]
    if len(set(arrays.classes)) < len(arrays.classes) or any("\0" in name for name in arrays.classes):
        # Joined by null characters, these might be another shape with other names.
        head = [json.dumps([str(x.dtype), arrays.x.shape[1:], arrays.classes])]
    return of_digests(digests, head, arrays.train_size)


def of_samples(samples: Iterable[bytes], y: npt.NDArray[np.int64], classes: Sequence[str], train_size: int | None) -> Facts:
    """Of samples as they stand in their files, with their labels y [n]."""
    digests = [_digest(sample, label) for sample, label in zip(samples, y.tolist(), strict=True)]
    return of_digests(digests, classes, train_size)


def of_digests(digests: Sequence[bytes], head: Iterable[str], train_size: int | None) -> Facts:
    """Of the digest of each sample. head: what all samples share."""
    parts = [digests] if train_size is None else [digests[:train_size], digests[train_size:]]
    sizes = tuple(map(len, parts))
    begin = "\0".join([*head, *map(str, sizes)]).encode()
    ordered, unordered = hashlib.sha256(begin), hashlib.sha256(begin)
    for part in parts:
        ordered.update(b"".join(part))
        unordered.update(b"".join(sorted(part)))
    return Facts(ordered.hexdigest(), unordered.hexdigest(), sizes)


def _digest(sample: bytes, label: int) -> bytes:
    return hashlib.sha256(b"%d " % label + sample).digest()


def _sizes(parts: tuple[int, ...]) -> str:
    """Training + test part."""
    return f"{' + '.join(f'{size:,}' for size in parts)} samples"
