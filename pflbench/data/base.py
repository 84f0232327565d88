"""What every source of data gives and says about itself: Arrays, Defaults, Dataset, Source, Finding."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

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
    """

    x: npt.NDArray[np.uint8] | npt.NDArray[np.float32] | npt.NDArray[np.int64]
    y: npt.NDArray[np.int64]
    classes: tuple[str, ...]
    vocabulary: int | None = None
    train_size: int | None = None


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
    """What `verify` says of one file (or, of a folder of images, one class)."""

    file: Path
    state: Literal["ok", "missing", "corrupt"]
    detail: str = ""


@dataclass(frozen=True)
class Dataset:
    """One line of the table of contents.

    size is that of the download, as text. `variants` are the names allowed behind the colon, `variant` the one meant
    when there is no colon; variant_classes: their classes, where they differ. `test_part` says whether there is an official one.
    The functions take the data folder and the variant; `download` is None where there is nothing to fetch, `content` where the
    data come with pflbench's own libraries. shape: of an image, as loaded; None of texts.
    """

    name: str
    title: str
    samples: int
    classes: int
    size: str
    url: str
    defaults: Defaults
    load: Callable[[Path, str | None, Progress | None], Arrays]
    verify: Callable[[Path, str | None], list[Finding]]
    content: Callable[[Path, str | None, Progress | None], Content] | None = None
    download: Callable[[Path, str | None, Progress | None], None] | None = None
    variants: tuple[str, ...] = ()
    variant: str | None = None
    variant_classes: Mapping[str, int] = field(default_factory=dict)
    test_part: bool = True
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Source:
    """A kind of own data. `content` hashes what `load` reads: a run's key follows the data, not their place."""

    name: str
    title: str
    content: Callable[[Path, Path, Progress | None], str]
    load: Callable[[Path, Path, Progress | None], Arrays]
    defaults: Callable[[Path, Path], Defaults]


def default_root() -> Path:
    """The data folder when `--data-dir` is not given: $PFLBENCH_DATA, else ./data."""
    return Path(os.environ.get("PFLBENCH_DATA") or "data")


def fetch_command(name: str, root: Path) -> str:
    """The one command that downloads a dataset into `root`."""
    elsewhere = "" if root == default_root() else f" --data-dir {root}"
    return f"pflbench data download {name}{elsewhere}"


def missing(name: str, size: str, root: Path, looked_for: Sequence[Path]) -> UserError:
    """The error for data that are not here: what, where it was looked for, how large, and how to get it."""
    places = " or ".join(map(str, looked_for))
    return NoData(f"The data of '{name}' are missing: no {places}.", f"Get them ({size}): {fetch_command(name, root)}")


def corrupt(name: str, root: Path, finding: Finding) -> UserError:
    """The error for a file that must not be used."""
    return UserError(f"{finding.file} is {finding.state}: {finding.detail}.", f"Get it anew: {fetch_command(name, root)}")
