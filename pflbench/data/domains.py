"""domains:PATH@SIZE - own images of several domains, PATH/<domain>/<class>/<image>, such as Office-Caltech-10, PACS or DomainNet.

A domain owns its images. They are scaled to SIZE x SIZE pixels (default 32), RGB. Domains, classes and files in order of names.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from pflbench.data import images, npz
from pflbench.data.base import Progress, Source
from pflbench.data.folder import SPLITS, class_files, folders
from pflbench.data.images import Listing, is_image
from pflbench.errors import UserError

SIZE, LARGEST = 32, 1024  # pixels
HINT = "Expected PATH/<domain>/<class>/<image>, with two domains and two classes at least."


def split(path: Path) -> tuple[Path, int]:
    """The folder and the size. Raises UserError for a size out of range."""
    name, at, size = path.name.rpartition("@")
    if not (name and at and size.isdecimal()) or path.is_dir():
        return path, SIZE
    if not 1 <= int(size) <= LARGEST:
        raise UserError(f"{path}: images cannot be scaled to {size} pixels.", f"Expected 1 to {LARGEST}.")
    return path.parent / name, int(size)


def listing(path: Path) -> Listing:
    """All images, with their domains as owners; folders without images are left out. Raises UserError for another layout."""
    folder, size = split(path)
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder.", HINT)
    held = {domain: class_files(folder, domain) for domain in sorted(folders(folder))}
    found = {name: of for name, of in held.items() if of or any(is_image(file.name) for file in (folder / name).rglob("*"))}
    if parts := [name for name in found if name in SPLITS]:
        raise UserError(f"{folder / parts[0]} has the name of a training or test part, not of a domain.", HINT)
    if empty := [name for name, files in found.items() if not files]:
        raise UserError(f"{folder / empty[0]} holds no folders with images, one per class.", HINT)
    classes = sorted({name for files in found.values() for name in files})
    if len(found) < 2 or len(classes) < 2:
        raise UserError(f"{folder} has {len(found)} domains and {len(classes)} classes.", HINT)
    index = {name: i for i, name in enumerate(classes)}
    triples = [(file, index[k], domain) for domain, of in found.items() for k, files in of.items() for file in files]
    names, y, owner = zip(*triples, strict=True)
    return Listing(folder, names, np.array(y, np.int64), tuple(classes), owner=np.array(owner), size=size)


def _content(path: Path, root: Path, progress: Progress | None) -> str:
    """Of the size, and of all files with their names, which begin with the domain."""
    held = listing(path)
    return hashlib.sha256(f"{held.size} {images.content(held, root, progress)}".encode()).hexdigest()


DOMAINS = Source(
    "domains",
    "own images, a folder per domain with one folder per class; scaled to 32 x 32 pixels, domains:PATH@64 to 64 x 64",
    content=_content,
    load=lambda path, root, progress: images.load(listing(path), root, progress),
    defaults=lambda path, root: npz.defaults_of((1, 3, *[split(path)[1]] * 2)),
    place=lambda path: split(path)[0],
)
