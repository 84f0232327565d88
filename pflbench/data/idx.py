"""MNIST, Fashion-MNIST and EMNIST: IDX files, read and downloaded by torchvision. uint8 [n, 1, 28, 28], as stored
(EMNIST's images are stored transposed and stay so).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pflbench.data.base import IMAGE_RATE, Arrays, Dataset, Defaults, Finding
from pflbench.data.vision import Reader, download, load, verify

EMNIST_VARIANTS = ("byclass", "bymerge", "balanced", "letters", "digits", "mnist")


def _files(folder: str, variant: str | None) -> list[str]:
    prefixes = [f"emnist-{variant}-train", f"emnist-{variant}-test"] if variant else ["train", "t10k"]
    return [f"{folder}/raw/{p}-{kind}-ubyte" for p in prefixes for kind in ("images-idx3", "labels-idx1")]


def _check(path: Path) -> Finding:
    """The header's sizes against the file's."""
    with path.open("rb") as file:
        head = file.read(16)
    dims = 3 if "-idx3-" in path.name else 1
    if head[:4] != bytes((0, 0, 8, dims)) or len(head) < 4 + 4 * dims:  # 8: unsigned bytes
        return Finding(path, "corrupt", "no IDX file of this kind")
    shape = np.frombuffer(head, ">u4", dims, offset=4).astype(np.int64)
    expected = 4 + 4 * dims + int(shape.prod())
    size = path.stat().st_size
    if size != expected:
        return Finding(path, "corrupt", f"{size:,} bytes, expected {expected:,}")
    return Finding(path, "ok", f"{shape[0]:,} entries")


def _parts(sets: list[Any], variant: str | None) -> Arrays:
    x = np.concatenate([s.data.numpy() for s in sets])[:, None]
    y = np.concatenate([s.targets.numpy() for s in sets])
    names = [str(name).split(" - ")[0] for name in sets[0].classes]  # torchvision: "0 - zero"
    if variant == "letters":  # labels 1..26, torchvision's class 0 is "N/A"
        y, names = y - 1, names[1:]
    return Arrays(x, y, tuple(names), train_size=len(sets[0].data))


def _dataset(
    name: str, title: str, folder: str, samples: int, classes: int, size: str, url: str, defaults: Defaults, **more: Any
) -> Dataset:
    reader = Reader(name, size, folder, partial(_files, folder), _check, _parts)
    return Dataset(
        name, title, samples, classes, size, url, defaults,
        load=partial(load, reader), verify=partial(verify, reader), download=partial(download, reader), **more,
    )  # fmt: skip


MNIST = _dataset(
    "mnist", "MNIST", "MNIST", 70_000, 10, "12 MB", "https://ossci-datasets.s3.amazonaws.com/mnist/",
    Defaults("cnn", 0.1, classes_per_client=2),
)  # fmt: skip
FASHIONMNIST = _dataset(
    "fashionmnist", "Fashion-MNIST", "FashionMNIST", 70_000, 10, "31 MB", "https://github.com/zalandoresearch/fashion-mnist",
    Defaults("cnn", IMAGE_RATE, classes_per_client=2),
)  # fmt: skip
EMNIST = _dataset(
    "emnist", "EMNIST", "EMNIST", 814_255, 62, "562 MB", "https://www.nist.gov/itl/products-and-services/emnist-dataset",
    Defaults("cnn", IMAGE_RATE, classes_per_client=5), variants=EMNIST_VARIANTS, variant="byclass",
)  # fmt: skip
