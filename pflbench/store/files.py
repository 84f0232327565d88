"""Atomic writes: a file is written in a temporary folder, flushed, then renamed."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pflbench.errors import UserError
from pflbench.plain import printable


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that is renamed to `path` when it is complete. An interruption or a full disk leaves the old file.

    A pipe or device, such as /dev/null, is written directly. Raises OSError if it cannot be written.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as out:
            yield out
    else:
        with atomic_path(path) as whole, whole.open("wb") as out:
            yield out


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """As `atomic_write`, for a file that SQLite writes: in the temporary folder there is room for its journals."""
    target = path.resolve()
    folder = target.with_name(f".{target.name}.{os.getpid()}.partial")
    for left in target.parent.glob(f".{glob.escape(target.name)}.*.partial"):
        if not _is_in_use(left):
            shutil.rmtree(left, ignore_errors=True)
    folder.mkdir()
    try:
        whole = folder / target.name
        yield whole
        with whole.open("rb") as file:
            os.fsync(file.fileno())
        if target.exists():
            whole.chmod(target.stat().st_mode)
        whole.replace(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_in_use(folder: Path) -> bool:
    """Whether another process of this machine writes to a temporary folder, which has its number in the name."""
    try:
        pid = int(folder.suffixes[-2][1:])
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, ValueError):  # another user's process, or no folder of ours
        return True
    return pid != os.getpid()


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
