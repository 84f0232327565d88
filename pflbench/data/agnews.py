"""AG News (Zhang et al., NIPS 2015): 127,600 news texts of 4 classes, as two CSV files (methods.md 5).

The variant `test` is the test file alone, 7,600 texts with a vocabulary of their own.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from pflbench.data import cache, table, text
from pflbench.data import content as contents
from pflbench.data.base import Arrays, Damaged, Dataset, Progress
from pflbench.data.content import Content, checksum
from pflbench.data.fetch import fetch

URL = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/"
MD5 = {"train.csv": "b1a00f826fdfbd249f79597b59e1dc12", "test.csv": "d52ea96a97a2d943681189a97654912d"}
CLASSES = ("World", "Sports", "Business", "Sci/Tech")


class AGNews(Dataset):
    def files(self, root: Path, variant: str | None) -> list[Path]:
        inside = root / "agnews" / "ag_news_csv"
        folder = inside if inside.is_dir() else root / "ag_news_csv"
        return [folder / name for name in (["test.csv"] if variant == "test" else MD5)]

    def read(self, root: Path, variant: str | None, progress: Progress | None) -> Arrays:
        paths = self.files(root, variant)
        key = hashlib.sha256("".join(checksum(path, "md5") for path in paths).encode()).hexdigest()
        return text.load(root, key, lambda: read(paths), progress)

    def content(self, root: Path, variant: str | None, progress: Progress | None) -> Content:
        """Of class and text of each sample: token ids would depend on all texts together."""
        paths = self.files(root, variant)

        def of_files() -> Content:
            held = read(paths)
            found = contents.of_samples((text.encode() for text in held.texts), held.y, held.classes, held.train_size)
            return Content(*found, official=all(checksum(path, "md5") == MD5[path.name] for path in paths))

        return contents.remembered(root, cache.fingerprint(paths), of_files)

    def fetch(self, root: Path, variant: str | None, progress: Progress | None) -> None:
        for path in self.files(root, variant):
            fetch([URL + path.name], path, MD5[path.name], progress)


def read(paths: list[Path]) -> text.Labelled:
    """All texts of the files, title and description joined; labels 1..4 become 0..3. Of two files the first is for training.

    Raises `Damaged` naming file and line where one is cut off or unlike the published ones.
    """
    labels: list[int] = []
    texts: list[str] = []
    starts = []
    for path in paths:
        starts.append(len(texts))
        for line, cells in table.rows(path):
            if len(cells) != 3 or cells[0] not in ("1", "2", "3", "4"):
                raise Damaged(f"{path}, line {line}: expected a class 1 to 4, a title and a description.")
            labels.append(int(cells[0]) - 1)
            texts.append(" ".join(cells[1:]))
    return text.Labelled(texts, np.array(labels, np.int64), CLASSES, train_size=starts[1] if len(starts) == 2 else None)


AGNEWS = AGNews(
    name="agnews",
    title="AG News",
    samples=127_600,
    classes=len(CLASSES),
    size="31 MB",
    url=URL,
    defaults=text.DEFAULTS,
    variants={"test": len(CLASSES)},
)
