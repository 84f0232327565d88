"""Paths as the database stores them: relative to its folder or the home, so that they do not name the user or machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import URL

from pflbench.store.failures import sqlite_path


def kept(path: str, database: URL) -> str:
    """The path as "./..." if it lies in the database's folder, as "~/..." if it lies in the home, else as it is."""
    folder = _folder(database)
    if folder is not None and Path(path) == folder:
        return f"./../{folder.name}"  # tables show the last part
    for start, before in ((folder, "./"), (Path.home(), "~/")):
        if start is not None and Path(path).is_relative_to(start):
            return f"{before}{Path(path).relative_to(start)}"
    return path


def kept_or_named(path: str, database: URL) -> str:
    """As `kept`; of a path elsewhere only the last part."""
    short = kept(path, database)
    return Path(path).name if short == path else short


def found(path: str, database: URL) -> str:
    """The inverse of `kept`. Absolute paths stay, and so do names of installed datasets."""
    folder = _folder(database)
    if folder is not None and path.startswith("./"):
        return str(folder / path)
    return str(Path(path).expanduser()) if path.startswith("~/") else path


def moved(path: str, source: URL, target: URL, keep: Callable[[str, URL], str] = kept) -> str:
    """A stored path of database `source` as `target` stores it: only paths relative to the source's folder change."""
    return keep(found(path, source), target) if path.startswith("./") else path


def in_spec(value: Any, change: Callable[[str], str]) -> Any:
    """The JSON of a specification with `change` applied to its paths."""
    if isinstance(value, dict):
        return {k: change(v) if k == "path" and isinstance(v, str) else in_spec(v, change) for k, v in value.items()}
    return value


def _folder(database: URL) -> Path | None:
    file = sqlite_path(database)
    return None if file is None else file.absolute().parent
