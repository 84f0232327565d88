"""What the datasets of torchvision have in common: where they lie, whether they are whole, reading and downloading."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any

from pflbench.data import cache
from pflbench.data import content as contents
from pflbench.data.base import Arrays, Finding, Progress, corrupt, missing
from pflbench.data.content import Content, Facts, Published
from pflbench.errors import UserError


@dataclass(frozen=True)
class Reader:
    """A class of torchvision.datasets.

    `files` (relative to its root) and `check` say when the data are whole; `parts` merges training and test set. published: of
    a variant; `more` adds to the facts what it is compared with. beside: other files that this depends on.
    """

    name: str
    size: str
    cls: str
    files: Callable[[str | None], list[str]]
    check: Callable[[Path], Finding]
    parts: Callable[[list[Any], str | None], Arrays]
    published: Callable[[str | None], Published]
    more: Callable[[list[Path]], dict[str, Any]] = lambda files: {}
    beside: tuple[str, ...] = ()


def _places(reader: Reader, root: Path) -> tuple[Path, Path]:
    return root / reader.name, root


def _place(reader: Reader, root: Path, variant: str | None) -> Path | None:
    """torchvision's root: the first place that has any of the files."""
    files = reader.files(variant)
    return next((p for p in _places(reader, root) if any((p / f).is_file() for f in files)), None)


def verify(reader: Reader, root: Path, variant: str | None) -> list[Finding]:
    """One finding per file."""
    place = _place(reader, root, variant) or _places(reader, root)[0]
    return [
        reader.check(place / f) if (place / f).is_file() else Finding(place / f, "missing", f"{reader.size} to download")
        for f in reader.files(variant)
    ]


def load(reader: Reader, root: Path, variant: str | None, progress: Progress | None) -> Arrays:
    """Training and test data merged. Raises UserError where a file is missing or corrupt."""
    place = _whole(reader, root, variant)
    for finding in verify(reader, root, variant):
        if finding.state != "ok":
            raise corrupt(reader.name, root, finding)
    try:
        arrays = reader.parts([_open(reader, place, variant, train=train) for train in (True, False)], variant)
    except (RuntimeError, ValueError, TypeError, AssertionError, KeyError) as e:
        raise UserError(f"The data of '{reader.name}' in {place} cannot be read: {e}.") from e
    if len(arrays.x) != len(arrays.y):
        raise UserError(f"'{reader.name}' in {place} has {len(arrays.x)} images and {len(arrays.y)} labels.")
    return arrays


def content(reader: Reader, root: Path, variant: str | None, progress: Progress | None) -> Content:
    """What the files hold. Raises UserError where one is missing or corrupt."""
    place = _whole(reader, root, variant)
    files = [place / file for file in reader.files(variant)]
    beside = [file for name in reader.beside if (file := files[0].parent / name).is_file()]

    def read() -> Facts:
        return replace(contents.of_arrays(load(reader, root, variant, progress)), **reader.more([*files, *beside]))

    fingerprint = cache.fingerprint([str(file.relative_to(place)) for file in (*files, *beside)], str(place))
    return reader.published(variant).judge(contents.remembered(root, fingerprint, read))


def _whole(reader: Reader, root: Path, variant: str | None) -> Path:
    """The place that has all files. Raises UserError where one is missing."""
    place = _place(reader, root, variant)
    if place is None:
        first = reader.files(variant)[0]
        raise missing(reader.name, reader.size, root, [p / first for p in _places(reader, root)])
    for file in reader.files(variant):
        if not (place / file).is_file():
            raise missing(reader.name, reader.size, root, [place / file])
    return place


def download(reader: Reader, root: Path, variant: str | None, progress: Progress | None) -> None:
    """Lets torchvision fetch, check and unpack what is not whole. Raises UserError where that fails."""
    findings = verify(reader, root, variant)
    if all(f.state == "ok" for f in findings):
        return
    place = _place(reader, root, variant) or _places(reader, root)[0]
    try:
        for finding in findings:
            if finding.state == "corrupt":
                finding.file.unlink()  # torchvision looks only whether an IDX file exists
        place.mkdir(parents=True, exist_ok=True)
        _open(reader, place, variant, train=True, download=True)
    except PermissionError as e:
        raise UserError(f"{e.filename} cannot be written: {e.strerror}.", "Name a folder that can: --data-dir PATH.") from e
    except (OSError, RuntimeError, EOFError, HTTPException, tarfile.TarError, zipfile.BadZipFile) as e:
        lines = " ".join(str(e).split()) or type(e).__name__
        raise UserError(
            f"'{reader.name}' could not be downloaded: {lines}",
            f"Run it again, or put the files into {place} yourself.",
        ) from e
    for finding in verify(reader, root, variant):
        if finding.state != "ok":
            raise UserError(f"{finding.file} is {finding.state} after the download: {finding.detail}.")


def _open(reader: Reader, place: Path, variant: str | None, **options: Any) -> Any:
    from pflbench._torchvision import torchvision

    cls = getattr(torchvision().datasets, reader.cls)
    return cls(place, **({"split": variant} if variant else {}), **options)
