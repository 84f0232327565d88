"""Atomic writes: a file is written under another name, flushed, then renamed."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pflbench.errors import UserError
from pflbench.plain import printable

if TYPE_CHECKING:
    import numpy as np


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that is renamed to `path` when it is complete. An interruption or a full disk leaves the old file.

    A pipe or device, such as /dev/null, is written directly. Raises OSError if it cannot be written.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        with target.open("wb") as out:
            yield out
        return
    with _partial(target) as partial:
        with partial.open("wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        if target.exists():
            partial.chmod(target.stat().st_mode)
        partial.replace(target)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """As `atomic_write`, for a file that SQLite writes. It lies in a folder of its own, since SQLite makes files beside it."""
    target = path.resolve()
    with _partial(target) as folder:
        folder.mkdir()
        whole = folder / target.name
        yield whole
        with whole.open("rb") as file:
            os.fsync(file.fileno())
        whole.replace(target)


@contextmanager
def _partial(target: Path) -> Iterator[Path]:
    """A temporary name beside `target`, for a file or folder that is removed at the end. Removes those of killed processes."""
    for left in target.parent.glob(f".{glob.escape(target.name)}.*.partial"):
        pid = left.suffixes[-2][1:]
        if pid.isdigit() and not _is_alive(int(pid)):
            _remove(left)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        yield partial
    finally:
        _remove(partial)


def _is_alive(pid: int) -> bool:
    """Whether this is another process of this machine."""
    if pid == os.getpid():
        return False
    with suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True


def _remove(path: Path) -> None:
    with suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """As `atomic_write`, for a file that the user has asked for. Raises UserError if it cannot be written."""
    try:
        with atomic_write(path) as out:
            yield out
    except OSError as error:
        raise UserError(f"Cannot write {path}: {error.strerror or error}.", "Give a file in a writable folder with -o.") from None


def write_text(path: Path, text: str) -> None:
    """Writes a text without control codes. Raises UserError if it cannot be written."""
    with replacing(path) as out:
        out.write(printable(text).encode())


def write_array(path: Path, array: np.ndarray[Any, np.dtype[Any]]) -> None:
    """Writes an .npy file under exactly this name. Raises UserError if it cannot be written."""
    import numpy as np

    with replacing(path) as out:
        np.save(out, array)
