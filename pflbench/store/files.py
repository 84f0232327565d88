"""Files that are there whole or not at all: written aside, flushed, then moved to their name."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pflbench.errors import UserError
from pflbench.plain import printable

if TYPE_CHECKING:
    import numpy as np

try:
    import fcntl
except ImportError:  # Windows: no advisory locks there
    fcntl = None  # type: ignore[assignment]


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that takes its name when it is complete. An interruption or a full disk leaves what was there before.

    What is no plain file, such as a pipe or /dev/null, is written as it is. Raises OSError if it cannot be written.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        with target.open("wb") as out:
            yield out
        return
    remove_abandoned(target)
    partial = partial_of(target)
    try:
        with _own(partial) as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        if target.exists():
            partial.chmod(target.stat().st_mode)
        partial.replace(target)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """As `atomic_write`, the name of a file for SQLite to make, in a folder of its own with what it writes beside it.

    The lock is the folder's: on NFS one of the file itself would keep SQLite from it, also in this process.
    """
    target = path.resolve()
    remove_abandoned(target)
    partial = partial_of(target)
    try:
        partial.mkdir()
        with ExitStack() as stack:
            with suppress(OSError):  # where there are no locks
                stack.enter_context(locked(partial))
            made = partial / target.name
            yield made
            with made.open("rb") as file:
                os.fsync(file.fileno())
            made.replace(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def partial_of(target: Path) -> Path:
    """Where this process writes aside what is to become `target`, a file or a folder."""
    return target.with_name(f".{target.name}.{os.getpid()}.partial")


def remove_abandoned(target: Path) -> None:
    """Removes what processes that were killed have left aside of `target`: a living one holds the lock of its own."""
    for partial in target.parent.glob(f".{glob.escape(target.name)}.*.partial"):
        with suppress(OSError), locked(partial):
            if partial.is_dir():
                shutil.rmtree(partial)
            else:
                for each in (partial, *(Path(f"{partial}{more}") for more in ("-journal", "-wal", "-shm"))):  # an SQLite file's
                    each.unlink(missing_ok=True)


@contextmanager
def locked(partial: Path) -> Iterator[None]:
    """Holds the lock of what is written aside. Raises OSError where another process holds it, or there are no locks."""
    handle = os.open(partial, os.O_RDONLY)
    try:
        if fcntl is None:
            raise OSError("no locks here")
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def _own(partial: Path) -> IO[bytes]:
    """A new file, with its lock where the file system has locks."""
    while True:
        out = partial.open("wb")
        if fcntl is None:
            return out
        with suppress(OSError):
            fcntl.flock(out, fcntl.LOCK_EX)
        # Another process may have taken it for abandoned before it was locked.
        if partial.exists():
            return out
        out.close()


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """As `atomic_write`, for what the user has asked for.

    Raises:
        UserError: it cannot be written.
    """
    try:
        with atomic_write(path) as out:
            yield out
    except OSError as error:
        raise UserError(f"Cannot write {path}: {error.strerror or error}.", "Give a file in a writable folder with -o.") from None


def write_text(path: Path, text: str) -> None:
    """Without control codes. Raises UserError if it cannot be written."""
    with replacing(path) as out:
        out.write(printable(text).encode())


def write_array(path: Path, array: np.ndarray[Any, np.dtype[Any]]) -> None:
    """In NumPy's .npy format, under exactly this name. Raises UserError if it cannot be written."""
    import numpy as np

    with replacing(path) as out:
        np.save(out, array)
