"""UCI HAR (Anguita et al., ESANN 2013): 10,299 windows of a smartphone's sensors, 6 activities, 30 people (methods.md 5).

Read from the inner zip file of the download as it is, or from an unpacked folder "UCI HAR Dataset".
"""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pflbench.data import cache
from pflbench.data import content as contents
from pflbench.data.base import Arrays, Damaged, Dataset, Defaults, Progress, unpacked_or_zip
from pflbench.data.content import Content
from pflbench.data.fetch import download_errors, fetch
from pflbench.data.images import DAMAGED
from pflbench.errors import UserError

URL = "https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip"
NAME = "UCI HAR Dataset"
PARTS = ("train", "test")
SIGNALS = tuple(f"{sensor}_{axis}" for sensor in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
STEPS = 128  # of a window, at 50 Hz
CLASSES = ("WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING")


@dataclass(frozen=True, kw_only=True)
class UciHar(Dataset):
    def files(self, root: Path, variant: str | None) -> list[Path]:
        return [unpacked_or_zip((root / NAME, root / "har" / NAME), root / "har" / f"{NAME}.zip")]

    def read(self, root: Path, variant: str | None, progress: Progress | None) -> Arrays:
        (place,) = self.files(root, variant)
        return read(place, progress)

    def content(self, root: Path, variant: str | None, progress: Progress | None) -> Content:
        """Of signals, label and person of each sample. It is never known to be official: we know no published checksum."""

        def compute() -> Content:
            held = self.read(root, variant, progress)
            assert held.owner is not None
            samples = (row.tobytes() + b" %d" % owner for row, owner in zip(held.x, held.owner.tolist(), strict=True))
            found, parts = contents.of_samples(samples, held.y, held.classes, held.train_size)
            return Content(found, parts, official=False)

        (place,) = self.files(root, variant)
        files = sorted(place.glob("t*/**/*.txt")) if place.is_dir() else [place]
        return contents.remembered(root, cache.fingerprint(files), compute)

    def fetch(self, root: Path, variant: str | None, progress: Progress | None) -> None:
        """Downloads the zip file of the archive, and keeps the one inside it."""
        (place,) = self.files(root, variant)
        if self.verify(root, variant)[0].state == "ok":
            return
        if place.is_dir():
            raise UserError(f"{place} is damaged.", f"Remove {place} and run this again.")
        outer, part = place.with_name("har-download.zip"), place.with_name(f"{place.name}.part")
        fetch([URL], outer, None, progress)
        try:
            with download_errors(URL, place), zipfile.ZipFile(outer) as file:
                if place.name not in file.namelist():
                    raise OSError(f"the downloaded file holds no '{place.name}'")
                part.write_bytes(file.read(place.name))
            os.replace(part, place)
        finally:
            outer.unlink()
            part.unlink(missing_ok=True)


def read(place: Path, progress: Progress | None = None) -> Arrays:
    """All windows, float32 [n, 9, 1, 128], with their activities and people. Raises `Damaged` for other files than published."""
    parts = [_part(place, part, progress) for part in PARTS]
    x, y, owner = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Arrays(x, y, CLASSES, train_size=len(parts[0][1]), owner=owner)


def _part(place: Path, part: str, progress: Progress | None) -> tuple[npt.NDArray[np.float32], ...]:
    """Signals, labels and persons of the training or the test part."""
    y, owner = (_numbers(place, f"{part}/{name}_{part}.txt", np.int64, 1)[:, 0] for name in ("y", "subject"))
    signals = []
    for i, name in enumerate(SIGNALS):
        if progress:
            progress(f"reading {part} signals of HAR", i + 1, len(SIGNALS))
        signals.append(_numbers(place, f"{part}/Inertial Signals/{name}_{part}.txt", np.float32, STEPS))
    rows = {len(y), len(owner), *map(len, signals)}
    if len(rows) > 1:
        raise Damaged(f"the files of {part} differ in their numbers of lines: {', '.join(map(str, sorted(rows)))}.")
    if y.min() < 1 or y.max() > len(CLASSES):
        raise Damaged(f"y_{part}.txt has activities from {y.min()} to {y.max()}; expected 1 to {len(CLASSES)}.")
    return np.stack(signals, axis=1)[:, :, None], y - 1, owner


def _numbers(place: Path, name: str, kind: type, columns: int) -> npt.NDArray[Any]:
    """The numbers of one file, [lines, columns]."""
    try:
        with (place if place.is_dir() else zipfile.Path(place, f"{NAME}/")).joinpath(name).open(encoding="ascii") as file:
            numbers: npt.NDArray[Any] = np.loadtxt(file, dtype=kind, ndmin=2)
    except DAMAGED as e:
        raise Damaged(f"{name} cannot be read: {' '.join(str(e).split()) or type(e).__name__}.") from e
    if numbers.shape[1] != columns or not len(numbers):
        raise Damaged(f"{name} holds {len(numbers)} lines of {numbers.shape[1]} numbers; expected {columns} in each line.")
    if not np.isfinite(numbers).all():
        raise Damaged(f"{name} has values that are not finite.")
    return numbers


HAR = UciHar(
    name="har",
    title="UCI HAR",
    samples=10_299,
    classes=len(CLASSES),
    size="61 MB",
    url=URL,
    defaults=Defaults("harcnn", 0.01, classes_per_client=2),
    shape=(len(SIGNALS), 1, STEPS),
    checksum_known=False,
)
