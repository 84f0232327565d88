"""Checksums of single files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pflbench.errors import UserError, require_regular


def sha256(path: Path) -> str:
    """Of the file's bytes, in hex. Raises UserError where it cannot be read."""
    return _digest(path, "sha256")


def md5(path: Path) -> str:
    """As `sha256`: the checksum that the publishers of the classic datasets give."""
    return _digest(path, "md5")


def _digest(path: Path, algorithm: str) -> str:
    require_regular(path)
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()
    except OSError as e:
        raise UserError(f"{path} cannot be read: {e.strerror}.") from e
