"""AG News (Zhang et al., NIPS 2015): 127,600 news texts of 4 classes, as two CSV files (methods.md 5).

The variant `test` is the test file alone, 7,600 texts with a vocabulary of their own.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from pflbench.data import cache, table, text
from pflbench.data import content as contents
from pflbench.data.base import Arrays, Dataset, Finding, Progress, fetch_command, missing
from pflbench.data.content import Content
from pflbench.data.hashing import md5
from pflbench.errors import UserError

URL = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/"
MD5 = {"train.csv": "b1a00f826fdfbd249f79597b59e1dc12", "test.csv": "d52ea96a97a2d943681189a97654912d"}
SIZE = "31 MB"
CLASSES = ("World", "Sports", "Business", "Sci/Tech")


def _files(variant: str | None) -> list[str]:
    return ["test.csv"] if variant == "test" else list(MD5)


def _folder(root: Path) -> Path:
    inside = root / "agnews" / "ag_news_csv"
    return inside if inside.is_dir() else root / "ag_news_csv"


def _verify(root: Path, variant: str | None) -> list[Finding]:
    findings = []
    for name in _files(variant):
        path = _folder(root) / name
        if not path.is_file():
            findings.append(Finding(path, "missing", f"{SIZE} to download"))
            continue
        try:
            texts = read([path]).texts
            findings.append(Finding(path, "ok", f"{len(texts):,} texts"))
        except UserError as e:
            findings.append(Finding(path, "corrupt", e.message))
    return findings


def _whole(root: Path, variant: str | None) -> list[Path]:
    """The files. Raises UserError where one is missing."""
    paths = [_folder(root) / name for name in _files(variant)]
    absent = [path for path in paths if not path.is_file()]
    if absent:
        error = missing("agnews", SIZE, root, absent)
        if variant is None and len(absent) < len(paths):
            error = UserError(error.message, f"{error.hint} (the test file alone: 'agnews:test')")
        raise error
    return paths


def _content(root: Path, variant: str | None, progress: Progress | None) -> Content:
    """Of class and text of each sample: token ids would depend on all texts together."""
    paths = _whole(root, variant)

    def of_files() -> Content:
        held = _read(root, paths)
        found = contents.of_samples((text.encode() for text in held.texts), held.y, held.classes, held.train_size)
        return Content(*found, official=all(md5(path) == MD5[path.name] for path in paths))

    fingerprint = cache.fingerprint([path.name for path in paths], str(_folder(root)))
    return contents.remembered(root, fingerprint, of_files)


def _load(root: Path, variant: str | None, progress: Progress | None) -> Arrays:
    paths = _whole(root, variant)
    key = hashlib.sha256("".join(map(md5, paths)).encode()).hexdigest()
    return text.load(root, key, lambda: _read(root, paths), progress)


def _read(root: Path, paths: list[Path]) -> text.Labelled:
    try:
        return read(paths)
    except UserError as e:
        again = fetch_command("agnews", root)
        raise UserError(e.message, f"Get it anew: {again}. Texts of another layout are own data: csv:PATH.") from e


def read(paths: list[Path]) -> text.Labelled:
    """All texts of the files, title and description joined; labels 1..4 become 0..3. Of two files the first is for training.

    Raises UserError naming file and line where one is cut off or unlike the published ones.
    """
    labels: list[int] = []
    texts: list[str] = []
    starts = []
    for path in paths:
        starts.append(len(texts))
        for line, cells in table.rows(path):
            if len(cells) != 3 or cells[0] not in ("1", "2", "3", "4"):
                raise UserError(f"{path} is corrupt at line {line}: expected a class 1 to 4, a title and a description.")
            labels.append(int(cells[0]) - 1)
            texts.append(table.joined(cells[1:]))
    return text.Labelled(texts, np.array(labels, np.int64), CLASSES, train_size=starts[1] if len(starts) == 2 else None)


def _download(root: Path, variant: str | None, progress: Progress | None) -> None:
    from pflbench.data.fetch import fetch

    for name in _files(variant):
        fetch([URL + name], _folder(root) / name, MD5[name], progress)


AGNEWS = Dataset(
    name="agnews",
    title="AG News",
    samples=127_600,
    classes=4,
    size=SIZE,
    url=URL,
    defaults=text.DEFAULTS,
    load=_load,
    verify=_verify,
    content=_content,
    download=_download,
    variants=("test",),
)
