"""MNIST, Fashion-MNIST, EMNIST, Cifar10 and Cifar100: downloaded, checked and read by torchvision.

uint8, [n, 1, 28, 28] as stored (EMNIST's images are stored transposed and stay so) and [n, 3, 32, 32].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pflbench.data import cache
from pflbench.data import content as contents
from pflbench.data.base import IMAGE_RATE, Arrays, Damaged, Dataset, Defaults, Progress
from pflbench.data.content import Content, checksum
from pflbench.data.fetch import download_errors, fetch
from pflbench.errors import UserError

GREY, COLOUR = (1, 28, 28), (3, 32, 32)
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
BATCHES = {
    "CIFAR10": [f"cifar-10-batches-py/{f}" for f in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta")],
    "CIFAR100": [f"cifar-100-python/{f}" for f in ("train", "test", "meta")],
}


@dataclass(frozen=True, kw_only=True)
class Vision(Dataset):
    """A class of torchvision.datasets. known: MD5 of each file, where that is what is known."""

    cls: str
    known: Mapping[str, str] | None = None

    def names(self, variant: str | None) -> list[str]:
        """Relative to torchvision's root."""
        if self.cls in BATCHES:
            return BATCHES[self.cls]
        prefixes = [f"emnist-{variant}-train", f"emnist-{variant}-test"] if variant else ["train", "t10k"]
        return [f"{self.cls}/raw/{p}-{kind}-ubyte" for p in prefixes for kind in ("images-idx3", "labels-idx1")]

    def place(self, root: Path, variant: str | None) -> Path:
        """torchvision's root: the first place that has any of the files, else where they will be."""
        places = root / self.name, root
        return next((p for p in places if any((p / name).is_file() for name in self.names(variant))), places[0])

    def files(self, root: Path, variant: str | None) -> list[Path]:
        place = self.place(root, variant)
        return [place / name for name in self.names(variant)]

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

    def read(self, root: Path, variant: str | None, progress: Progress | None) -> Arrays:
        """Training and test data merged."""
        try:
            sets = [self.open(self.place(root, variant), variant, train=train) for train in (True, False)]
        except (OSError, RuntimeError, ValueError, TypeError, AssertionError, KeyError) as e:
            raise Damaged(f"its files are damaged: {' '.join(str(e).split()) or type(e).__name__}.") from e
        x = np.concatenate([np.asarray(s.data) for s in sets])
        y = np.concatenate([np.asarray(s.targets, np.int64) for s in sets])
        if len(x) != len(y):
            raise Damaged(f"{len(x)} images and {len(y)} labels.")
        x = x[:, None] if x.ndim == 3 else np.ascontiguousarray(x.transpose(0, 3, 1, 2))
        names = [str(name).split(" - ")[0] for name in sets[0].classes]  # torchvision: "0 - zero"
        if variant == "letters":  # labels 1..26, torchvision's class 0 is "N/A"
            y, names = y - 1, names[1:]
        return Arrays(x, y, tuple(names), train_size=len(sets[0].data))

    def content(self, root: Path, variant: str | None, progress: Progress | None) -> Content:
        paths = self.files(root, variant)
        archive = paths[0].with_name(ARCHIVE)

        def read() -> Content:
            found, parts = contents.of_arrays(self.read(root, variant, progress))
            return Content(found, parts, self._is_official(paths, archive, variant, parts))

        return contents.remembered(root, cache.fingerprint([*paths, *([archive] if archive.is_file() else [])]), read)

    def _is_official(self, paths: list[Path], archive: Path, variant: str | None, parts: tuple[int, ...]) -> bool:
        if self.known is not None:
            return all(checksum(path, "md5") == self.known.get(path.name) for path in paths)
        if self.cls in BATCHES:
            return True  # others are not read
        archived = archive.is_file() and checksum(archive, "md5") == self._class().md5
        return archived and parts == EMNIST_PARTS[variant or "byclass"]

    def fetch(self, root: Path, variant: str | None, progress: Progress | None) -> None:
        """Fetches the archives that torchvision names, and lets it unpack them."""
        found = {finding.state for finding in self.verify(root, variant)}
        place = self.place(root, variant)
        if found == {"ok"}:
            return
        with download_errors(f"'{self.name}'", place):
            for path in self.files(root, variant) if "corrupt" in found else ():
                path.unlink()  # torchvision looks only whether an IDX file exists
            place.mkdir(parents=True, exist_ok=True)
            for urls, archive, md5 in self.archives():
                fetch(urls, place / archive, md5, progress)
            self.open(place, variant, train=True, download=True)  # archives with their checksum are only unpacked
        for finding in self.verify(root, variant):
            if finding.state != "ok":
                raise UserError(f"{finding.file} is {finding.state} after the download: {finding.detail}.")


MNIST = Vision(
    name="mnist", title="MNIST", cls="MNIST", samples=70_000, classes=10, shape=GREY, size="12 MB", known=MNIST_FILES,
    url="https://ossci-datasets.s3.amazonaws.com/mnist/", defaults=Defaults("cnn", 0.1, classes_per_client=2),
)  # fmt: skip
FASHIONMNIST = Vision(
    name="fashionmnist", title="Fashion-MNIST", cls="FashionMNIST", samples=70_000, classes=10, shape=GREY, size="31 MB",
    known=FASHIONMNIST_FILES, url="https://github.com/zalandoresearch/fashion-mnist",
    defaults=Defaults("cnn", IMAGE_RATE, classes_per_client=2),
)  # fmt: skip
EMNIST = Vision(
    name="emnist", title="EMNIST", cls="EMNIST", samples=814_255, classes=62, shape=GREY, size="562 MB",
    url="https://www.nist.gov/itl/products-and-services/emnist-dataset",
    defaults=Defaults("cnn", IMAGE_RATE, classes_per_client=5),
    variants={"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}, variant="byclass",
)  # fmt: skip
CIFAR10 = Vision(
    name="cifar10", title="Cifar10", cls="CIFAR10", samples=60_000, classes=10, shape=COLOUR, size="171 MB",
    url="https://www.cs.toronto.edu/~kriz/cifar.html", defaults=Defaults("cnn", IMAGE_RATE, classes_per_client=2),
)  # fmt: skip
CIFAR100 = Vision(
    name="cifar100", title="Cifar100", cls="CIFAR100", samples=60_000, classes=100, shape=COLOUR, size="169 MB",
    url="https://www.cs.toronto.edu/~kriz/cifar.html", defaults=Defaults("cnn", IMAGE_RATE, classes_per_client=10),
)  # fmt: skip
