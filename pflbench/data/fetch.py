"""Downloads by torchvision: checked, and only then put in place."""

from __future__ import annotations

import os
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path

from pflbench.errors import UserError


def fetch(url: str, target: Path, checksum: str) -> None:
    """Downloads `url` to `target` if its MD5 is `checksum`. Raises UserError where that fails; `target` then does not exist."""
    from pflbench._torchvision import torchvision

    part = target.with_name(f"{target.name}.part")
    with told(url, target):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            torchvision().datasets.utils.download_url(url, target.parent, part.name, checksum)
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def told(what: str, place: Path) -> Iterator[None]:
    """Turns whatever a download may end with into a UserError. place: where the files belong."""
    try:
        yield
    except (FileExistsError, NotADirectoryError, PermissionError) as e:
        raise UserError(f"{e.filename} cannot be written: {e.strerror}.", "Name a folder that can: --data-dir PATH.") from e
    except (OSError, RuntimeError, EOFError, HTTPException, tarfile.TarError, zipfile.BadZipFile) as e:
        lines = " ".join(str(e).split()) or type(e).__name__
        raise UserError(f"{what} could not be downloaded: {lines}", f"Run it again, or put the files at {place} yourself.") from e
