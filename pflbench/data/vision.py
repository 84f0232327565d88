"""MNIST, Fashion-MNIST, EMNIST, Cifar10 and Cifar100: downloaded, checked and read by torchvision.

uint8, [n, 1, 28, 28] as stored (EMNIST's images are stored transposed and stay so) and [n, 3, 32, 32].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pflbench.data import cache
from pflbench.data import content as contents
from pflbench.data.base import IMAGE_RATE, Arrays, Dataset, Defaults, Finding, Progress, corrupt, missing
from pflbench.data.content import Content
from pflbench.data.fetch import fetch, told
from pflbench.data.hashing import md5
from pflbench.errors import UserError

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
# Of EMNIST a checksum is published of the archive alone, which torchvision leaves beside the files that it takes from it.
ARCHIVE = "gzip.zip"
# Samples for training and for testing. Cohen et al. (2017) have them, but for `letters`: its files hold more.
EMNIST_PARTS = {
    "byclass": (697_932, 116_323),
    "bymerge": (697_932, 116_323),
    "balanced": (112_800, 18_800),
    "letters": (124_800, 20_800),
    "digits": (240_000, 40_000),
    "mnist": (60_000, 10_000),
}
EMNIST_CLASSES = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}
BATCHES = {
    "CIFAR10": [f"cifar-10-batches-py/{f}" for f in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta")],
    "CIFAR100": [f"cifar-100-python/{f}" for f in ("train", "test", "meta")],
}


@dataclass(frozen=True)
class _Reader:
    """A class of torchvision.datasets. known: MD5 of each file, where that is what is known."""

    name: str
    size: str
    cls: str
    known: Mapping[str, str] | None = None

    def files(self, variant: str | None) -> list[str]:
        """Relative to torchvision's root."""
        if self.cls in BATCHES:
            return BATCHES[self.cls]
        prefixes = [f"emnist-{variant}-train", f"emnist-{variant}-test"] if variant else ["train", "t10k"]
        return [f"{self.cls}/raw/{p}-{kind}-ubyte" for p in prefixes for kind in ("images-idx3", "labels-idx1")]

    def place(self, root: Path, variant: str | None) -> Path:
        """torchvision's root: the first place that has any of the files, else where they will be."""
        places = root / self.name, root
        return next((p for p in places if any((p / f).is_file() for f in self.files(variant))), places[0])

    def open(self, place: Path, variant: str | None, **options: Any) -> Any:
        # It opens Cifar's pickles only if they have the published checksums.
        return self._class()(place, **({"split": variant} if variant else {}), **options)

    def archives(self) -> list[tuple[list[str], str, str]]:
        """URLs, place below torchvision's root and MD5 of each archive, as torchvision has them."""
        source = self._class()
        if self.cls in BATCHES:
            return [([source.url], source.filename, source.tgz_md5)]
        if self.cls == "EMNIST":
            return [([source.url], f"EMNIST/raw/{ARCHIVE}", source.md5)]
        return [
            ([f"{mirror}{name}" for mirror in source.mirrors], f"{self.cls}/raw/{name}", checksum)
            for name, checksum in source.resources
        ]

    def _class(self) -> Any:
        from pflbench._torchvision import torchvision

        return getattr(torchvision().datasets, self.cls)


def _arrays(reader: _Reader, place: Path, variant: str | None) -> Arrays:
    """Training and test data merged. Raises UserError where they cannot be read."""
    try:
        sets = [reader.open(place, variant, train=train) for train in (True, False)]
    except (OSError, RuntimeError, ValueError, TypeError, AssertionError, KeyError) as e:
        raise UserError(f"its files are damaged: {' '.join(str(e).split()) or type(e).__name__}") from e
    x = np.concatenate([np.asarray(s.data) for s in sets])
    y = np.concatenate([np.asarray(s.targets, np.int64) for s in sets])
    if len(x) != len(y):
        raise UserError(f"{len(x)} images and {len(y)} labels")
    x = x[:, None] if x.ndim == 3 else np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    names = [str(name).split(" - ")[0] for name in sets[0].classes]  # torchvision: "0 - zero"
    if variant == "letters":  # labels 1..26, torchvision's class 0 is "N/A"
        y, names = y - 1, names[1:]
    return Arrays(x, y, tuple(names), train_size=len(sets[0].data))


def _missing(reader: _Reader, root: Path, variant: str | None) -> list[Path]:
    place = reader.place(root, variant)
    return [place / file for file in reader.files(variant) if not (place / file).is_file()]


def _verify(reader: _Reader, root: Path, variant: str | None) -> list[Finding]:
    if absent := _missing(reader, root, variant):
        return [Finding(path, "missing", f"{reader.size} to download") for path in absent]
    place = reader.place(root, variant)
    try:
        arrays = _arrays(reader, place, variant)
    except UserError as e:
        return [Finding(place / Path(reader.files(variant)[0]).parent, "corrupt", e.message)]
    return [Finding(place / file, "ok", f"{len(arrays.y):,} samples in all") for file in reader.files(variant)]


def _load(reader: _Reader, root: Path, variant: str | None, progress: Progress | None) -> Arrays:
    place = _whole(reader, root, variant)
    try:
        return _arrays(reader, place, variant)
    except UserError as e:
        folder = place / Path(reader.files(variant)[0]).parent
        raise corrupt(reader.name, root, Finding(folder, "corrupt", e.message)) from e


def _whole(reader: _Reader, root: Path, variant: str | None) -> Path:
    """The place that has all files. Raises UserError where one is missing."""
    if absent := _missing(reader, root, variant):
        first = reader.files(variant)[0]
        nothing = len(absent) == len(reader.files(variant))
        raise missing(reader.name, reader.size, root, [root / reader.name / first, root / first] if nothing else absent[:1])
    return reader.place(root, variant)


def _content(reader: _Reader, root: Path, variant: str | None, progress: Progress | None) -> Content:
    place = _whole(reader, root, variant)
    files = [file for file in (*reader.files(variant), f"EMNIST/raw/{ARCHIVE}") if (place / file).is_file()]

    def read() -> Content:
        found, parts = contents.of_arrays(_load(reader, root, variant, progress))
        return Content(found, parts, _is_official(reader, place, files, variant, parts))

    return contents.remembered(root, cache.fingerprint(files, str(place)), read)


def _is_official(reader: _Reader, place: Path, files: list[str], variant: str | None, parts: tuple[int, ...]) -> bool:
    if reader.known is not None:
        return all(md5(place / file) == reader.known.get(Path(file).name) for file in reader.files(variant))
    if reader.cls in BATCHES:
        return True  # others are not read
    from pflbench._torchvision import torchvision

    archived = Path(files[-1]).name == ARCHIVE and md5(place / files[-1]) == torchvision().datasets.EMNIST.md5
    return archived and parts == EMNIST_PARTS[variant or "byclass"]


def _download(reader: _Reader, root: Path, variant: str | None, progress: Progress | None) -> None:
    """Fetches the archives that torchvision names, and lets it unpack them. Raises UserError where that fails."""
    found = {finding.state for finding in _verify(reader, root, variant)}
    place = reader.place(root, variant)
    if found == {"ok"}:
        return
    with told(f"'{reader.name}'", place):
        for file in reader.files(variant) if "corrupt" in found else ():
            (place / file).unlink()  # torchvision looks only whether an IDX file exists
        place.mkdir(parents=True, exist_ok=True)
        for urls, archive, checksum in reader.archives():
            fetch(urls, place / archive, checksum, progress)
        reader.open(place, variant, train=True, download=True)  # archives with their checksum are only unpacked
    for finding in _verify(reader, root, variant):
        if finding.state != "ok":
            raise UserError(f"{finding.file} is {finding.state} after the download: {finding.detail}.")


def _dataset(reader: _Reader, title: str, samples: int, classes: int, url: str, defaults: Defaults, **more: Any) -> Dataset:
    return Dataset(
        reader.name, title, samples, classes, reader.size, url, defaults,
        load=partial(_load, reader), verify=partial(_verify, reader), content=partial(_content, reader),
        download=partial(_download, reader), shape=(3, 32, 32) if reader.cls in BATCHES else (1, 28, 28), **more,
    )  # fmt: skip


MNIST = _dataset(
    _Reader("mnist", "12 MB", "MNIST", MNIST_FILES), "MNIST", 70_000, 10, "https://ossci-datasets.s3.amazonaws.com/mnist/",
    Defaults("cnn", 0.1, classes_per_client=2),
)  # fmt: skip
FASHIONMNIST = _dataset(
    _Reader("fashionmnist", "31 MB", "FashionMNIST", FASHIONMNIST_FILES), "Fashion-MNIST", 70_000, 10,
    "https://github.com/zalandoresearch/fashion-mnist", Defaults("cnn", IMAGE_RATE, classes_per_client=2),
)  # fmt: skip
EMNIST = _dataset(
    _Reader("emnist", "562 MB", "EMNIST"), "EMNIST", 814_255, 62, "https://www.nist.gov/itl/products-and-services/emnist-dataset",
    Defaults("cnn", IMAGE_RATE, classes_per_client=5),
    variants=tuple(EMNIST_PARTS), variant="byclass", variant_classes=EMNIST_CLASSES,
)  # fmt: skip
CIFAR10 = _dataset(
    _Reader("cifar10", "171 MB", "CIFAR10"), "Cifar10", 60_000, 10, "https://www.cs.toronto.edu/~kriz/cifar.html",
    Defaults("cnn", IMAGE_RATE, classes_per_client=2),
)  # fmt: skip
CIFAR100 = _dataset(
    _Reader("cifar100", "169 MB", "CIFAR100"), "Cifar100", 60_000, 100, "https://www.cs.toronto.edu/~kriz/cifar.html",
    Defaults("cnn", IMAGE_RATE, classes_per_client=10),
)  # fmt: skip
