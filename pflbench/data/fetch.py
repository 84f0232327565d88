"""Downloads: continued where one was broken off, checked, and only then put in place."""

from __future__ import annotations

import os
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from pflbench import __version__
from pflbench.data.base import Progress
from pflbench.data.content import checksum
from pflbench.errors import UserError

CHUNK = 1 << 18  # bytes
TIMEOUT = 30.0  # seconds without an answer or a byte
COMPLETE = 416  # "range not satisfiable": no byte is left to be sent


def fetch(urls: Sequence[str], target: Path, md5: str | None, progress: Progress | None = None) -> None:
    """Downloads `target` from the first of `urls` that serves it. What an earlier call has left of it is continued.

    md5: None if no published checksum is known; the file is then downloaded even if `target` exists, and is not checked.
    Raises UserError if none does, or if the MD5 is not `md5`: `target` is then as it was.
    """
    if md5 is not None and target.is_file() and checksum(target, "md5") == md5:
        return
    part = target.with_name(f"{target.name}.part")
    for url in urls:
        try:
            with download_errors(url, target):
                target.parent.mkdir(parents=True, exist_ok=True)
                _receive(url, part, target.name, progress)
                if md5 is not None and checksum(part, "md5") != md5:
                    part.unlink()
                    raise OSError("the file is corrupted: its MD5 is not the published one")
                os.replace(part, target)
            return
        except UserError:
            if url == urls[-1]:
                raise


def _receive(url: str, part: Path, name: str, progress: Progress | None) -> None:
    """Appends to `part` what is missing of it, or writes it anew if the server does not serve ranges."""
    held = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": f"pflbench/{__version__}"} | ({"Range": f"bytes={held}-"} if held else {})
    try:
        answer = urlopen(Request(url, headers=headers), timeout=TIMEOUT)
    except HTTPError as error:
        if error.code == COMPLETE and held:
            return
        raise
    with answer, part.open("ab" if answer.status == 206 else "wb") as file:
        total = file.tell() + int(answer.headers.get("Content-Length", 0))
        while chunk := answer.read(CHUNK):
            file.write(chunk)
            if progress is not None:
                progress(f"Downloading {name}", file.tell(), total)
        if file.tell() < total:
            raise OSError(f"the connection broke off after {file.tell():,} of {total:,} bytes; the next attempt continues there")


@contextmanager
def download_errors(what: str, place: Path) -> Iterator[None]:
    """Turns whatever a download may end with into a UserError. place: where the files belong."""
    try:
        yield
    except (FileExistsError, NotADirectoryError, PermissionError) as e:
        raise UserError(f"{e.filename} cannot be written: {e.strerror}.", "Name a folder that can: --data-dir PATH.") from e
    except (OSError, RuntimeError, EOFError, HTTPException, tarfile.TarError, zipfile.BadZipFile) as e:
        lines = " ".join(str(e).split()) or type(e).__name__
        raise UserError(f"{what} could not be downloaded: {lines}", f"Run it again, or put the files at {place} yourself.") from e
