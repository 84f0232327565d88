"""Files that are there whole or not at all: written aside, flushed, then moved to their name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pflbench.errors import UserError
from pflbench.plain import printable

if TYPE_CHECKING:
    import numpy as np


@contextmanager
def aside(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that takes its name when it is complete. An interruption or a full disk leaves what was there before.

    What is no plain file, such as a pipe or /dev/null, is written as it is. Raises OSError if it cannot be written.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        with target.open("wb") as out:
            yield out
        return
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as out:
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
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """As `aside`, for what the user has asked for.

    Raises:
        UserError: it cannot be written.
    """
    try:
        with aside(path) as out:
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
