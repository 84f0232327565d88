"""Files derived from the data (decoded images, encoded texts, content hashes), written once and moved into place whole.

They lie in `.cache` of the data folder, or in the user's cache folder where that one cannot be written.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from zipfile import BadZipFile

from pflbench.errors import UserError

T = TypeVar("T")
UNUSABLE = (OSError, ValueError, KeyError, EOFError, BadZipFile)


def cached(root: Path, name: str, load: Callable[[Path], T], build: Callable[[Path], None]) -> T:
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
        with _locked(folder / f"{name}.lock"):
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
        raise UserError(f"The disk is full: {target} could not be written.", "Free some space and run again.") from e
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
    raise UserError(f"No cache can be written: {places} are read-only.", "Name a folder that can: --data-dir PATH.")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """An exclusive lock between processes; none where the system has no flock (the last builder's file then stays)."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
