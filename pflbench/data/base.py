"""What every source of data gives and says about itself: Arrays, Defaults, Dataset, Source, Finding."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from pflbench.errors import NoData, UserError

if TYPE_CHECKING:
    from pflbench.data.content import Content

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""

IMAGE_RATE = 0.005  # of the 4-layer CNN (methods.md 2.2)


@dataclass(frozen=True, eq=False)
class Arrays:
    """A whole dataset, original train and test data merged (train first, stored order; methods.md 5).

    x: uint8 [n, c, h, w] images, which the engine scales to [-1, 1]; or float32 [n, ...], taken as is;
       or int64 [n, 200] token ids. It may be a memory map: treat it as read-only.
    y: int64 [n], 0..K-1.
    classes: the K names.
    vocabulary: of token ids, the number of embedding rows; index 0 is padding and <unk>.
    train_size: how many leading samples are the official training part; None where there is no such split.
    owner: who owns each sample [n], numbers or names, for the partition `natural`; None where the data do not say.
    """

    x: npt.NDArray[np.uint8] | npt.NDArray[np.float32] | npt.NDArray[np.int64]
    y: npt.NDArray[np.int64]
    classes: tuple[str, ...]
    vocabulary: int | None = None
    train_size: int | None = None
    owner: npt.NDArray[Any] | None = None


@dataclass(frozen=True)
class Defaults:
    """The paper's settings for a dataset (methods.md 2.2 and 3.1), used where the user gives none."""

    model: str
    lr: float
    classes_per_client: int
    rounds: int = 2000
    clients: int = 20
    beta: float = 0.1


@dataclass(frozen=True)
class Finding:
    """What `verify` says of one file, or of a folder of them."""

    file: Path
    state: Literal["ok", "missing", "corrupt"]
    detail: str = ""


class Damaged(UserError):
    """A file of a dataset is not what was published; `load` adds how to get it anew."""


@dataclass(frozen=True, kw_only=True)
class Dataset(ABC):
    """One line of the table of contents; a subclass says where its files are, and reads them.

    size is that of the download, as text. variants: the names allowed behind the colon, and how many classes each has; variant:
    the one meant when there is no colon. `test_part` says whether there is an official one.
    shape: of an image, as loaded; None of texts. checksum_known: whether anything tells that files are the official ones.
    """

    name: str
    title: str
    samples: int
    classes: int
    size: str
    url: str
    defaults: Defaults
    variants: Mapping[str, int] = field(default_factory=dict)
    variant: str | None = None
    test_part: bool = True
    shape: tuple[int, ...] | None = None
    checksum_known: bool = True

    @abstractmethod
    def files(self, root: Path, variant: str | None) -> list[Path]:
        """Where its files are, or belong."""

    @abstractmethod
    def read(self, root: Path, variant: str | None, progress: Progress | None) -> Arrays:
        """All samples, of files that are all there. Raises `Damaged`."""

    def content(self, root: Path, variant: str | None, progress: Progress | None) -> Content | None:
        """What the files hold, read only once; None where the data come with pflbench's own libraries. Raises `Damaged`."""
        return None

    @abstractmethod
    def fetch(self, root: Path, variant: str | None, progress: Progress | None) -> None:
        """Downloads what is missing or damaged. Raises UserError where that fails; then nothing incomplete is in place."""

    def verify(self, root: Path, variant: str | None) -> list[Finding]:
        """The state of each file; one line for all of them where one is damaged."""
        paths = self.files(root, variant)
        if absent := [path for path in paths if not path.exists()]:
            return [Finding(path, "missing", f"{self.size} to download") for path in absent]
        try:
            arrays = self.read(root, variant, None)
        except UserError as e:
            return [Finding(_place(paths), "corrupt", e.message)]
        return [Finding(path, "ok", f"{len(arrays.y):,} samples in all") for path in paths]

    @contextmanager
    def whole(self, root: Path, variant: str | None) -> Iterator[None]:
        """Raises UserError, with the command that downloads the dataset, where files are missing or found to be damaged."""
        elsewhere = "" if root == default_root() else f" --data-dir {root}"
        command = f"pflbench data download {self.name}{elsewhere}"
        paths = self.files(root, variant)
        if absent := [path for path in paths if not path.exists()]:
            raise NoData(f"The data of '{self.name}' are missing: no {absent[0]}.", f"Get them ({self.size}): {command}")
        try:
            yield
        except Damaged as e:
            raise UserError(f"{_place(paths)} is corrupt: {e.message}", f"Get it anew: {command}") from e


@dataclass(frozen=True)
class Source:
    """A kind of own data. `content` hashes what `load` reads: a run's key follows the data, not their place.

    place: of the path in a specification, what must exist of it.
    """

    name: str
    title: str
    content: Callable[[Path, Path, Progress | None], str]
    load: Callable[[Path, Path, Progress | None], Arrays]
    defaults: Callable[[Path, Path], Defaults]
    place: Callable[[Path], Path] = lambda path: path


def default_root() -> Path:
    """The data folder when `--data-dir` is not given: $PFLBENCH_DATA, else ./data."""
    return Path(os.environ.get("PFLBENCH_DATA") or "data")


def unpacked_or_zip(folders: Sequence[Path], default: Path) -> Path:
    """The first of these folders that has a training part, else the first of their zip files, else the default."""
    zips = [folder.with_name(f"{folder.name}.zip") for folder in folders]
    unpacked = [folder for folder in folders if (folder / "train").is_dir()]
    return [*unpacked, *(file for file in zips if file.is_file()), default][0]


def _place(paths: list[Path]) -> Path:
    return paths[0] if len(paths) == 1 else paths[0].parent
