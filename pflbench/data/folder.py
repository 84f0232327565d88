"""folder:PATH - own images, one folder per class, in any of the usual layouts:

PATH/<class>/*.jpg, PATH/train/<class>/*.jpg with PATH/test/<class>/*.jpg beside it, and either with
<class>/images/*.jpg. Split folders are merged, train first; classes and files in order of their names (code points).
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from pflbench.data import images, npz
from pflbench.data.base import Source
from pflbench.data.images import Listing, is_image
from pflbench.errors import UserError

TRAIN = ("train", "training")
SPLITS = (*TRAIN, "test", "testing", "val", "valid", "validation")


def listing(path: Path) -> Listing:
    """The images under `path`. Raises UserError where the folder has none of the layouts above."""
    if not path.is_dir():
        raise UserError(f"{path} is no folder.", "folder:PATH expects a folder with one folder of images per class.")
    splits = {name: class_files(path, name) for name in SPLITS if (path / name).is_dir()}
    train = next((name for name in TRAIN if splits.get(name)), None)
    parts = {"": class_files(path)} if train is None else {name: files for name, files in splits.items() if files}
    classes = sorted(parts["" if train is None else train])
    _check(path, classes, parts)
    index = {name: i for i, name in enumerate(classes)}
    pairs = [(file, index[name]) for part in parts.values() for name, names in part.items() for file in names]
    y = np.array([k for _, k in pairs], np.int64)
    return Listing(path, tuple(f for f, _ in pairs), y, tuple(classes), _train_size(parts))


def _train_size(parts: dict[str, dict[str, list[str]]]) -> int | None:
    """Of a training folder with one folder beside it; which of several is the test part, nobody says."""
    train, *others = parts
    if len(others) != 1 or others[0] in TRAIN:
        return None
    return sum(map(len, parts[train].values()))


def class_files(path: Path, folder: str = "") -> dict[str, list[str]]:
    """Class -> its images, sorted, relative to `path`. Unlabelled images (a single folder `images`) are no class."""
    inner = f"{folder}/" if folder else ""
    found = {name: _image_names(path, f"{inner}{name}") for name in sorted(folders(path / folder))}
    return {} if list(found) == ["images"] else {name: files for name, files in found.items() if files}


def folders(path: Path) -> list[str]:
    """Names of the folders in `path`, but for hidden ones."""
    with os.scandir(path) as entries:
        return [e.name for e in entries if e.is_dir() and not e.name.startswith(".")]


def _image_names(path: Path, folder: str) -> list[str]:
    with os.scandir(path / folder) as entries:
        names = sorted(e.name for e in entries if is_image(e.name))
    if not names and (path / folder / "images").is_dir():
        return _image_names(path, f"{folder}/images")
    return [f"{folder}/{name}" for name in names]


def _check(path: Path, classes: list[str], parts: dict[str, dict[str, list[str]]]) -> None:
    if len(classes) < 2:
        raise UserError(
            f"{path} holds {len(classes)} folders with images; expected one per class, at least 2.",
            "Layouts: PATH/<class>/*.jpg, or PATH/train/<class>/*.jpg and PATH/test/<class>/*.jpg.",
        )
    for split, files in parts.items():
        for name in files:
            if name not in classes:
                raise UserError(f"{path / split / name} has no counterpart in the training folder: '{name}' is no class.")


FOLDER = Source(
    "folder",
    "own images, one folder per class",
    content=lambda path, root, progress: images.content(listing(path), root, progress),
    load=lambda path, root, progress: images.load(listing(path), root, progress),
    defaults=lambda path, root: npz.defaults_of((1, *images.shape(listing(path)))),
)
