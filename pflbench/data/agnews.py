"""AG News (Zhang et al., NIPS 2015): 127,600 news texts of 4 classes, as two CSV files (methods.md 5).

The variant `test` is the test file alone, 7,600 texts with a vocabulary of their own.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from pflbench.data import table, text
from pflbench.data.base import Arrays, Dataset, Finding, Progress, corrupt, missing
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
        elif (found := md5(path)) != MD5[name]:
            findings.append(Finding(path, "corrupt", f"its MD5 is {found}, expected {MD5[name]}"))
        else:
            findings.append(Finding(path, "ok", "MD5"))
    return findings


def _load(root: Path, variant: str | None, progress: Progress | None) -> Arrays:
    findings = _verify(root, variant)
    absent = [f.file for f in findings if f.state == "missing"]
    if absent:
        error = missing("agnews", SIZE, root, absent)
        if variant is None and len(absent) < len(findings):
            error = UserError(error.message, f"{error.hint} (the test file alone: 'agnews:test')")
        raise error
    for finding in findings:
        if finding.state == "corrupt":
            raise corrupt("agnews", root, finding)
    paths = [f.file for f in findings]
    key = hashlib.sha256("".join(MD5[path.name] for path in paths).encode()).hexdigest()
    return text.load(root, key, lambda: read(paths), progress)


def read(paths: list[Path]) -> text.Labelled:
    """All texts of the files, title and description joined; labels 1..4 become 0..3. Of two files the first is for training."""
    labels: list[int] = []
    texts: list[str] = []
    starts = []
    for path in paths:
        starts.append(len(texts))
        for line, cells in table.rows(path):
            if len(cells) != 3 or cells[0] not in ("1", "2", "3", "4"):
                raise UserError(f"{path}, line {line}: expected a class 1 to 4, a title and a description.")
            labels.append(int(cells[0]) - 1)
            texts.append(table.joined(cells[1:]))
    return text.Labelled(texts, np.array(labels, np.int64), CLASSES, train_size=starts[1] if len(starts) == 2 else None)


def _download(root: Path, variant: str | None, progress: Progress | None) -> None:
    from pflbench.data.fetch import fetch

    for finding in _verify(root, variant):
        if finding.state != "ok":
            fetch(URL + finding.file.name, finding.file, MD5[finding.file.name], progress)


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
    download=_download,
    variants=("test",),
)
