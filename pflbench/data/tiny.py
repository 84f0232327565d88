"""Tiny-ImageNet: the 100,000 training images, 64 x 64 RGB, 200 classes in alphabetical order of their folders.

From the official zip file as it is, or from an unpacked tiny-imagenet-200/train (methods.md 5). The validation folder
is not read: it is not structured by class. The files of a class are in order of their names, as text
(n01443537_10 before n01443537_2).
"""

from __future__ import annotations

import zipfile
from pathlib import Path, PurePosixPath

import numpy as np

from pflbench.data import content as contents
from pflbench.data import images
from pflbench.data.base import IMAGE_RATE, Arrays, Dataset, Defaults, Finding, Progress, corrupt, missing
from pflbench.data.content import Content
from pflbench.data.folder import class_files
from pflbench.data.images import DAMAGED, Listing, is_image
from pflbench.errors import UserError

URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
SIZE = "248 MB"
CLASSES, PER_CLASS = 200, 500
NAME = "tiny-imagenet-200"
# Of the files' bytes, as `_content` hashes them: decoders differ in some pixels.
OFFICIAL = "f26a91499939f6813c9af8cecaaa3cefcee30d3bac5c497849692ca1d51e703d"


def _places(root: Path) -> list[Path]:
    """Where the data may lie, the unpacked folder before the zip file."""
    folders = (root, root / "tiny")
    return [f / NAME for f in folders] + [f / f"{NAME}.zip" for f in folders]


def _place(root: Path) -> Path | None:
    return next((place for place in _places(root) if place.is_file() or (place / "train").is_dir()), None)


def _class_files(place: Path) -> dict[str, list[str]]:
    """Class -> its images, as names in `place`. Raises one of DAMAGED where the zip file is damaged."""
    if place.is_dir():
        return class_files(place, "train")
    found: dict[str, list[str]] = {}
    with zipfile.ZipFile(place) as file:
        for name in sorted(file.namelist()):
            parts = PurePosixPath(name).parts
            if parts[1:2] == ("train",) and len(parts) == 5 and is_image(parts[-1]):
                found.setdefault(parts[2], []).append(name)
    return found


def _listing(place: Path) -> Listing:
    """Raises UserError where the zip file is damaged or images are missing."""
    try:
        files = _class_files(place)
    except DAMAGED as e:
        raise UserError(str(e)) from e
    if len(files) != CLASSES:
        raise UserError(f"{len(files)} of {CLASSES} classes")
    for name, held in files.items():
        if len(held) != PER_CLASS:
            raise UserError(f"{len(held)} of {PER_CLASS} images of class {name}")
    classes = sorted(files)
    names = tuple(name for c in classes for name in files[c])
    return Listing(place, names, np.repeat(np.arange(CLASSES), PER_CLASS), tuple(classes))


def _whole(root: Path) -> Listing:
    place = _place(root)
    if place is None:
        raise missing("tiny", SIZE, root, _places(root))
    try:
        return _listing(place)
    except UserError as e:
        raise corrupt("tiny", root, Finding(place, "corrupt", e.message)) from e


def _load(root: Path, variant: str | None, progress: Progress | None) -> Arrays:
    return images.load(_whole(root), root, progress)


def _content(root: Path, variant: str | None, progress: Progress | None) -> Content:
    """Of the bytes of each image file, in order and with its class: the same from the folder and from the zip file."""
    listing = _whole(root)

    def read() -> Content:
        samples = [of_bytes.encode() for _, of_bytes in images.digests(listing, progress)]
        found, parts = contents.of_samples(samples, listing.y, listing.classes, None)
        return Content(found, parts, official=found == OFFICIAL)

    return contents.remembered(root, images.fingerprint(listing), read)


def _verify(root: Path, variant: str | None) -> list[Finding]:
    """The number of images, and that each one can be decoded."""
    place = _place(root)
    if place is None:
        return [Finding(_places(root)[0], "missing", f"{SIZE} to download")]
    try:
        images.load(_listing(place), root, None)
    except UserError as e:
        return [Finding(place, "corrupt", e.message)]
    return [Finding(place, "ok", f"{CLASSES * PER_CLASS:,} images")]


def _download(root: Path, variant: str | None, progress: Progress | None) -> None:
    from pflbench.data.fetch import fetch

    place = _place(root)
    if place is not None and place.is_dir():
        try:
            _listing(place)
        except UserError as e:
            raise UserError(f"{place} is incomplete: {e.message}.", f"Remove {place} and run this again.") from e
        return
    fetch([URL], root / f"{NAME}.zip", MD5, progress)


TINY = Dataset(
    name="tiny",
    title="Tiny-ImageNet",
    samples=CLASSES * PER_CLASS,
    classes=CLASSES,
    size=SIZE,
    url=URL,
    defaults=Defaults("cnn", IMAGE_RATE, classes_per_client=20),
    load=_load,
    verify=_verify,
    content=_content,
    download=_download,
    test_part=False,
    shape=(3, 64, 64),
)
