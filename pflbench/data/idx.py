"""MNIST, Fashion-MNIST and EMNIST: IDX files, read and downloaded by torchvision. uint8 [n, 1, 28, 28], as stored
(EMNIST's images are stored transposed and stay so).
"""

from __future__ import annotations

import gzip
import hashlib
import zipfile
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pflbench.data.base import IMAGE_RATE, Arrays, Dataset, Defaults, Finding
from pflbench.data.content import Published
from pflbench.data.hashing import md5
from pflbench.data.vision import Reader, content, download, load, verify

ARCHIVE = "gzip.zip"  # the whole of EMNIST, as torchvision leaves it beside the files that it takes from it
# Samples for training and for testing, and classes. Cohen et al. (2017) have them, but for `letters`: its files hold more.
EMNIST_PARTS = {
    "byclass": (697_932, 116_323),
    "bymerge": (697_932, 116_323),
    "balanced": (112_800, 18_800),
    "letters": (124_800, 20_800),
    "digits": (240_000, 40_000),
    "mnist": (60_000, 10_000),
}
EMNIST_CLASSES = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}
# MD5 of the unpacked files; torchvision knows those of the packed ones, from which these come.
MNIST_FILES = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
FASHIONMNIST_FILES = {
    "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
}
# Facts.samples of the official ones; computed from the copy in a folder that PFLlib wrote, and from another.
MNIST_SAMPLES = "2b326fd2df7a5c02d88db5034bd15a20cb319afec22b4e5e0d6b613ee10b50ba"


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


def _checksums(files: list[Path]) -> dict[str, Any]:
    return {"files": {file.name: md5(file) for file in files}}


def _archived(files: list[Path]) -> dict[str, Any]:
    """Of EMNIST no checksum of single files is published, but one of the archive: whether they are what it holds."""
    archive = files[-1]
    if archive.name != ARCHIVE:
        return {"archived": None}
    from pflbench._torchvision import torchvision

    if md5(archive) != torchvision().datasets.EMNIST.md5:
        return {"archived": None}
    with zipfile.ZipFile(archive) as packed:
        return {"archived": all(_unpacked(packed, f"gzip/{file.name}.gz") == md5(file) for file in files[:-1])}


def _unpacked(packed: zipfile.ZipFile, name: str) -> str | None:
    """MD5 of an archive's member, unpacked."""
    try:
        with packed.open(name) as member, gzip.open(member) as content:
            return hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except (KeyError, OSError, EOFError, zlib.error, zipfile.BadZipFile):
        return None


def _dataset(
    name: str, title: str, folder: str, samples: int, classes: int, size: str, url: str, defaults: Defaults,
    compared: dict[str, Any], **more: Any,
) -> Dataset:  # fmt: skip
    reader = Reader(name, size, folder, partial(_files, folder), _check, _parts, **compared)
    return Dataset(
        name, title, samples, classes, size, url, defaults, load=partial(load, reader), verify=partial(verify, reader),
        content=partial(content, reader), download=partial(download, reader), shape=(1, 28, 28), **more,
    )  # fmt: skip


def _compared(published: Published) -> dict[str, Any]:
    return {"published": lambda variant: published, "more": _checksums}


MNIST = _dataset(
    "mnist", "MNIST", "MNIST", 70_000, 10, "12 MB", "https://ossci-datasets.s3.amazonaws.com/mnist/",
    Defaults("cnn", 0.1, classes_per_client=2),
    _compared(Published((60_000, 10_000), MNIST_FILES, samples=MNIST_SAMPLES)),
)  # fmt: skip
FASHIONMNIST = _dataset(
    "fashionmnist", "Fashion-MNIST", "FashionMNIST", 70_000, 10, "31 MB", "https://github.com/zalandoresearch/fashion-mnist",
    Defaults("cnn", IMAGE_RATE, classes_per_client=2), _compared(Published((60_000, 10_000), FASHIONMNIST_FILES)),
)  # fmt: skip
EMNIST = _dataset(
    "emnist", "EMNIST", "EMNIST", 814_255, 62, "562 MB", "https://www.nist.gov/itl/products-and-services/emnist-dataset",
    Defaults("cnn", IMAGE_RATE, classes_per_client=5),
    {"published": lambda variant: Published(EMNIST_PARTS[variant or "byclass"]), "more": _archived, "beside": (ARCHIVE,)},
    variants=tuple(EMNIST_PARTS), variant="byclass", variant_classes=EMNIST_CLASSES,
)  # fmt: skip
