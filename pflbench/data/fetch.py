"""Downloads over HTTP: resumed where they broke off, retried while there is hope, checked, only then put in place."""

from __future__ import annotations

import http.client
import os
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from pflbench.data.base import Progress
from pflbench.data.hashing import md5
from pflbench.errors import UserError

ATTEMPTS = 5
PAUSE = 1.0  # seconds before the second attempt; doubled before each further one
TIMEOUT = 60.0  # seconds without a byte
BLOCK = 1 << 18
TRANSIENT = (408, 425, 429, 500, 502, 503, 504)


class BrokenOff(Exception):
    """There was no connection, or it ended before the announced length: worth another attempt."""


def fetch(url: str, target: Path, checksum: str, progress: Progress | None = None) -> None:
    """Downloads `url` to `target` if its MD5 is `checksum`. What has arrived stays in `target`.part until it is whole.

    Raises UserError where the server refuses, the connection stays broken, the checksum differs or the file cannot be
    written; `target` then does not exist.
    """
    part = target.with_name(f"{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        resumed = part.exists()
        _receive(url, part, progress)
        if resumed and md5(part) != checksum:  # what was resumed may have been another file
            part.unlink()
            _receive(url, part, progress)
        found = md5(part)
        if found != checksum:
            part.unlink()
            raise UserError(
                f"{target.name} from {url} is corrupt: its MD5 is {found}, expected {checksum}.",
                "It was not kept. Run the command again; if it fails again, the published file has changed.",
            )
        os.replace(part, target)
    except (BrokenOff, urllib.error.HTTPError) as e:
        reason = f"the server answered {e.code} {e.reason}" if isinstance(e, urllib.error.HTTPError) else e
        raise UserError(
            f"{url} could not be downloaded: {reason}.",
            f"What has arrived is kept: run the command again to go on. Or put the file at {target} yourself.",
        ) from e
    except OSError as e:
        raise UserError(
            f"{target} cannot be written: {e.strerror or e}.", "Name another data folder with --data-dir PATH."
        ) from e


def _receive(url: str, part: Path, progress: Progress | None) -> None:
    """Attempts until the whole file is in `part`; raises what the last attempt, or an attempt without hope, raised."""
    for attempt in range(ATTEMPTS):
        try:
            return _attempt(url, part, progress)
        except urllib.error.HTTPError as e:
            if e.code not in TRANSIENT or attempt == ATTEMPTS - 1:
                raise
        except BrokenOff:
            if attempt == ATTEMPTS - 1:
                raise
        time.sleep(PAUSE * 2**attempt)
    return None


def _attempt(url: str, part: Path, progress: Progress | None) -> None:
    have = part.stat().st_size if part.exists() else 0
    try:
        with _open(url, have) as answer:
            resumes = answer.status == http.HTTPStatus.PARTIAL_CONTENT
            _write(answer, part, have if resumes else 0, progress)
    except urllib.error.HTTPError as e:
        if e.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not have:
            raise
        # Nothing follows what is here: it is the whole file, or not this file; the checksum tells.


def _open(url: str, start: int) -> Any:
    # identity: a byte range of a compressed answer would mean something else
    headers = {"User-Agent": "pflbench", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError:
        raise
    except (OSError, http.client.HTTPException) as e:
        reason = e.reason if isinstance(e, urllib.error.URLError) else e
        raise BrokenOff(str(reason) or type(e).__name__) from e


def _write(answer: http.client.HTTPResponse, part: Path, start: int, progress: Progress | None) -> None:
    total = start + int(answer.headers.get("Content-Length") or 0)
    done = start
    with part.open("ab" if start else "wb") as file:
        while block := _read(answer):
            file.write(block)
            done += len(block)
            if progress:
                progress(f"downloading {part.stem}", done, max(total, done))
    if done < total:
        raise BrokenOff(f"the connection ended after {done:,} of {total:,} bytes")


def _read(answer: http.client.HTTPResponse) -> bytes:
    try:
        return answer.read1(BLOCK)
    except (OSError, http.client.HTTPException) as e:  # of the network, not of the disk
        raise BrokenOff(str(e) or type(e).__name__) from e
