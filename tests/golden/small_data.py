"""Small datasets in the files of the originals: a few samples for each class, drawn around a pattern of the class.

They have nothing of the originals but the format and the number of classes, and their runs say so: other content. Where pflbench
opens files of a known size or checksum alone, that is set aside while they are in use.
"""

from __future__ import annotations

import csv
import hashlib
import pickle
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from PIL import Image

from pflbench._torchvision import torchvision
from pflbench.data import tiny

Images = npt.NDArray[np.uint8]

MNIST, CIFAR100, AGNEWS = (300, 100), (750, 250), (150, 50)  # samples for training and for testing
TINY, TINY_SIZE = 3, 32  # of each of the 200 classes; pixels to a side, half of the original's: four times as fast
COMMON, OF_CLASS = 20, 10  # words of all texts, and of those of a class


@contextmanager
def written(root: Path) -> Iterator[None]:
    """All five below `root`, for as long as the context lasts."""
    for name in ("MNIST", "FashionMNIST"):
        _mnist(root / name / "raw")
    _tiny(root / "tiny-imagenet-200" / "train")
    _agnews(root / "ag_news_csv")
    with ExitStack() as known:
        known.enter_context(patch.object(tiny, "PER_CLASS", TINY))
        for name, value in _cifar100(root).items():
            known.enter_context(patch.object(torchvision().datasets.CIFAR100, name, value))
        yield


def images(seed: int, labels: npt.NDArray[np.int64], classes: int, size: int, channels: int) -> Images:
    """uint8 [n, size, size, channels]: 4 x 4 tiles of the colours of the class, the same for every seed, and noise."""
    tiles = np.random.default_rng(0).integers(0, 256, (classes, 4, 4, channels))
    noise = np.random.default_rng(seed).normal(0, 25, (len(labels), size, size, channels))
    patterns = tiles[labels].repeat(size // 4, axis=1).repeat(size // 4, axis=2)
    return (patterns + noise).clip(0, 255).astype(np.uint8)


def _labels(number: int, classes: int) -> npt.NDArray[np.int64]:
    return np.arange(number) % classes


def _mnist(folder: Path) -> None:
    """IDX: 0, 0, 8 (unsigned byte), the number of dimensions, the sizes, the data."""
    folder.mkdir(parents=True)

    def put(name: str, array: Images) -> None:
        (folder / name).write_bytes(struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes())

    for seed, (prefix, number) in enumerate(zip(("train", "t10k"), MNIST, strict=True), start=1):
        y = _labels(number, 10)
        put(f"{prefix}-images-idx3-ubyte", images(seed, y, 10, 28, 1)[..., 0])
        put(f"{prefix}-labels-idx1-ubyte", y.astype(np.uint8))


def _cifar100(root: Path) -> dict[str, object]:
    """Pickles; returns torchvision's list of files with the checksums of these."""
    reader = torchvision().datasets.CIFAR100
    folder = root / reader.base_folder
    folder.mkdir(parents=True)

    def put(name: str, content: object) -> str:
        data = pickle.dumps(content)
        (folder / name).write_bytes(data)
        return hashlib.md5(data).hexdigest()

    sums: dict[str, object] = {}
    for seed, (part, number) in enumerate(zip(("train", "test"), CIFAR100, strict=True), start=1):
        y = _labels(number, 100)
        rows = images(seed, y, 100, 32, 3).transpose(0, 3, 1, 2).reshape(number, -1)  # 1024 red, 1024 green, 1024 blue
        content = {"data": rows, "fine_labels": y.tolist()}
        sums[f"{part}_list"] = [[part, put(part, content)]]
    names = {"fine_label_names": [f"class {k}" for k in range(100)]}
    return sums | {"meta": reader.meta | {"md5": put("meta", names)}}


def _tiny(folder: Path) -> None:
    """train/CLASS/images/CLASS_k.JPEG."""
    for k in range(tiny.CLASSES):
        name = f"n{k:08}"
        held = folder / name / "images"
        held.mkdir(parents=True)
        for i, image in enumerate(images(k, np.full(TINY, k), tiny.CLASSES, TINY_SIZE, 3)):
            Image.fromarray(image).save(held / f"{name}_{i}.JPEG")


def _agnews(folder: Path) -> None:
    """CSV of class, title, description."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    words = [f"word{k}" for k in range(COMMON + 4 * OF_CLASS)]

    def text(label: int, length: int) -> str:
        own = COMMON + label * OF_CLASS
        places = np.where(rng.random(length) < 0.3, rng.integers(own, own + OF_CLASS, length), rng.integers(0, COMMON, length))
        return " ".join(words[place] for place in places)

    for name, number in zip(("train.csv", "test.csv"), AGNEWS, strict=True):
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_ALL)
            writer.writerows([str(label + 1), text(label, 4), text(label, 8)] for label in _labels(number, 4).tolist())
