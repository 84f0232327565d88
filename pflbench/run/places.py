"""The place of checkpoints: a folder, which machines may share, or a URL of fsspec such as s3://bucket/checkpoints."""

from __future__ import annotations

import io
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from sqlalchemy import URL

from pflbench.errors import UserError
from pflbench.plain import without_passwords
from pflbench.store import locks
from pflbench.store.failures import place, sqlite_path
from pflbench.store.files import atomic_write
from pflbench.store.runs import RunHead


class Folder:
    """A folder. beside: it lies beside a database file; if that file's folder was moved, no new folder is created."""

    def __init__(self, path: Path, *, beside: bool = False) -> None:
        self._path, self._beside = path, beside

    def __str__(self) -> str:
        return str(self._path)

    def require_writable(self) -> None:
        """Raises UserError for a folder in which no file can be made."""
        try:
            self._path.mkdir(parents=not self._beside, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._path):
                pass
        except OSError as error:
            raise UserError(
                f"Checkpoints cannot be stored in {self}: {error.strerror}.", "Name another place: --checkpoints PATH|URL."
            ) from None

    @contextmanager
    def write(self, name: str) -> Iterator[IO[bytes]]:
        """A file that appears as a whole or not at all. Raises OSError."""
        self._path.mkdir(parents=not self._beside, exist_ok=True)
        with atomic_write(self._path / name) as out:
            yield out

    def read(self, name: str) -> IO[bytes] | None:
        """None if there is no such file. Raises OSError."""
        path = self._path / name
        return path.open("rb") if path.exists() else None

    def remove(self, name: str) -> None:
        """Also removes what a killed process was writing."""
        (self._path / name).unlink(missing_ok=True)
        for left in self._path.glob(f".{name}.*.partial"):
            shutil.rmtree(left)


class Remote:
    """A folder at a URL of fsspec. Raises UserError for a protocol that fsspec does not have, or whose package is missing."""

    def __init__(self, url: str) -> None:
        import fsspec

        self._url = url
        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:  # fsspec names the package
            raise UserError(f"Checkpoints in {self}: {error}.", "For example s3://bucket/checkpoints, or a folder.") from None

    def __str__(self) -> str:
        return without_passwords(self._url, alone=True)

    def require_writable(self) -> None:
        """Nothing is tried at a URL: a test file would cost money, and may not be removable."""

    @contextmanager
    def write(self, name: str) -> Iterator[IO[bytes]]:
        partial = self._path(f"{name}.partial")
        with _as_os_errors():
            self._files.makedirs(self._root, exist_ok=True)
            with self._files.open(partial, "wb") as out:
                yield out
            self._files.mv(partial, self._path(name))

    def read(self, name: str) -> IO[bytes] | None:
        with suppress(FileNotFoundError), _as_os_errors():
            self._files.invalidate_cache()
            # As a whole: an error of the network in the middle would look like a damaged file.
            return io.BytesIO(self._files.cat_file(self._path(name)))
        return None

    def remove(self, name: str) -> None:
        for left in (name, f"{name}.partial"):
            with suppress(FileNotFoundError), _as_os_errors():
                self._files.rm(self._path(left))

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"


Storage = Folder | Remote


def place_of(database: URL, wished: str | None) -> Storage:
    """The path or URL that was asked for; else beside an SQLite file, or in the user's own folder for a server."""
    if not wished:
        if database.get_backend_name() != "sqlite":
            return Folder(state_folder() / "checkpoints")
        return Folder(locks.folder(sqlite_path(database)), beside=True)
    if not re.match(r"[A-Za-z][\w+.-]*://", wished):
        return Folder(Path(wished).expanduser().absolute())
    if without_passwords(wished, alone=True) != wished:
        raise UserError(
            "A password in the URL of the checkpoints would be stored with the runs.",
            "Let fsspec read it from its own settings: environment variables, or ~/.config/fsspec.",
        )
    return Folder(Path(wished.removeprefix("file://"))) if wished.startswith("file://") else Remote(wished)


def name_of(run: RunHead, database: URL, wished: str | None) -> str:
    """The name of a run's files, without suffix: its number beside its own SQLite file, else unique among databases."""
    if not wished and database.get_backend_name() == "sqlite":
        return str(run.id)
    return f"{run.key}-{run.attempt}-{re.sub(r'[^0-9]', '', run.created_at)}"


def note(database: URL, wished: str | None) -> str | None:
    """A note for users of a server who may continue runs on several machines."""
    if wished or database.get_backend_name() == "sqlite":
        return None
    return (
        f"checkpoints of {place(database)} are stored in {state_folder() / 'checkpoints'}, for this machine only. To continue "
        "runs elsewhere, name a shared place: --checkpoints or PFLBENCH_CHECKPOINTS, a folder or a URL such as s3://bucket/name."
    )


def state_folder() -> Path:
    """The folder for the user's program state (XDG)."""
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "pflbench"


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """Libraries of cloud storage have exceptions of their own."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(0, f"{type(error).__name__}: {error}") from error
