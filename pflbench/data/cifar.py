"""Cifar10 and Cifar100 (Krizhevsky, 2009), read and downloaded by torchvision. uint8 [n, 3, 32, 32]."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pflbench.data.base import IMAGE_RATE, Arrays, Dataset, Defaults, Finding
from pflbench.data.content import Published
from pflbench.data.hashing import md5
from pflbench.data.vision import Reader, content, download, load, verify

FILES = {
    "CIFAR10": [f"cifar-10-batches-py/{f}" for f in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta")],
    "CIFAR100": [f"cifar-100-python/{f}" for f in ("train", "test", "meta")],
}


def _files(reader: str, variant: str | None) -> list[str]:
    return FILES[reader]


def _check(reader: str, path: Path) -> Finding:
    """The file's MD5 against the one torchvision knows."""
    from pflbench._torchvision import torchvision

    cls = getattr(torchvision().datasets, reader)
    known = {**dict(cls.train_list + cls.test_list), cls.meta["filename"]: cls.meta["md5"]}
    found = md5(path)
    if found != known[path.name]:
        return Finding(path, "corrupt", f"its MD5 is {found}, expected {known[path.name]}")
    return Finding(path, "ok", "MD5")


def _parts(sets: list[Any], variant: str | None) -> Arrays:
    x = np.concatenate([s.data for s in sets]).transpose(0, 3, 1, 2)
    y = np.concatenate([np.array(s.targets, np.int64) for s in sets])
    return Arrays(np.ascontiguousarray(x), y, tuple(sets[0].classes), train_size=len(sets[0]))


def _dataset(name: str, title: str, reader: str, classes: int, size: str, classes_per_client: int) -> Dataset:
    # They are pickles, which may do anything when they are read: only files with the published checksums are opened.
    published = Published((50_000, 10_000), checked=True)
    r = Reader(name, size, reader, partial(_files, reader), partial(_check, reader), _parts, lambda variant: published)
    return Dataset(
        name, title, 60_000, classes, size, "https://www.cs.toronto.edu/~kriz/cifar.html",
        Defaults("cnn", IMAGE_RATE, classes_per_client),
        load=partial(load, r), verify=partial(verify, r), content=partial(content, r), download=partial(download, r),
        shape=(3, 32, 32),
    )  # fmt: skip


CIFAR10 = _dataset("cifar10", "Cifar10", "CIFAR10", 10, "171 MB", classes_per_client=2)
CIFAR100 = _dataset("cifar100", "Cifar100", "CIFAR100", 100, "169 MB", classes_per_client=10)
