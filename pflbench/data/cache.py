"""Files derived from the data (decoded images, encoded texts, content hashes), written once and moved into place whole.

They lie in `.cache` of the data folder, or in the user's cache folder where that one cannot be written. What they are derived
from is known by its fingerprint: sizes and times, not bytes.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar
from zipfile import BadZipFile

import numpy as np
from filelock import FileLock

from pflbench.data.base import Arrays
from pflbench.errors import UserError

T = TypeVar("T")
UNUSABLE = (OSError, ValueError, KeyError, EOFError, BadZipFile)
TICK = 20_000_000  # nanoseconds in which a file system may give two writes one time


def fingerprint(files: Iterable[str | Path]) -> str:
    """Tells whether any of the files was changed, without reading them: their names, sizes and times, in this order.

    The time of the last change of the file's entry counts, too, which no program can set back. A file that was written a moment
    ago is waited for: a second write within one tick of the clock would not show.
    """
    digest = hashlib.sha256()
    newest = 0
    for name in files:
        s = os.stat(name)
        newest = max(newest, s.st_ctime_ns)
        digest.update(f"{name}\0{s.st_size}\0{s.st_mtime_ns}\0{s.st_ctime_ns}\n".encode("utf-8", "surrogateescape"))
    age = time.time_ns() - newest
    if 0 <= age < TICK:
        time.sleep((TICK - age) / 1e9)
    return digest.hexdigest()[:32]


def remembered(root: Path, name: str, compute: Callable[[], str]) -> str:
    """A text that takes long to compute, kept in the file `name`; not kept where no cache can be written."""
    try:
        return cached(root, name, Path.read_text, lambda path: path.write_text(compute()))
    except Unwritable:
        return compute()


def arrays(root: Path, name: str, make: Callable[[], Arrays]) -> Arrays:
    """The arrays that `make` gives, kept in the file `name`; token ids as int32."""

    def build(path: Path) -> None:
        held = {field: value for field, value in vars(make()).items() if value is not None}
        held["x"] = held["x"].astype(np.int32) if "vocabulary" in held else held["x"]
        with path.open("wb") as file:
            np.savez(file, **held)

    def load(path: Path) -> Arrays:
        with np.load(path, allow_pickle=False) as z:
            vocabulary, train_size = (int(z[field]) if field in z else None for field in ("vocabulary", "train_size"))
            x = z["x"] if vocabulary is None else z["x"].astype(np.int64)
            return Arrays(x, z["y"], tuple(map(str, z["classes"])), vocabulary, train_size, z.get("owner"))

    return cached(root, name, load, build)


class Unwritable(UserError):
    """There is no room, or no place, for a cache."""


def cached(root: Path, name: str, load: Callable[[Path], T], build: Callable[[Path], object]) -> T:
    """`load` the file `name`; `build` it before where it is missing or `load` refuses it (one of `UNUSABLE`).

    Of several processes that want the same file one builds it and the others wait. Raises UserError where no cache
    folder can be written or the disk is full.
    """
    for folder in _folders(root):
        try:
            return load(folder / name)
        except UNUSABLE:
            continue
    folder = _writable(root)
    target, part = folder / name, folder / f"{name}.part"
    try:
        with FileLock(folder / f"{name}.lock"):
            try:
                return load(target)  # another process may have built it while this one waited
            except UNUSABLE:
                pass
            build(part)
            os.replace(part, target)
            return load(target)
    except OSError as e:
        if e.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise Unwritable(f"The disk is full: {target} could not be written.", "Free some space and run again.") from e
    finally:
        part.unlink(missing_ok=True)


def _folders(root: Path) -> tuple[Path, Path]:
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / ".cache", user / "pflbench"


def _writable(root: Path) -> Path:
    for folder in _folders(root):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    places = " and ".join(map(str, _folders(root)))
    raise Unwritable(f"No cache can be written: {places} are read-only.", "Name a folder that can: --data-dir PATH.")
