"""The 1,797 handwritten digits, 8 x 8, that come with scikit-learn: nothing to download (demo and tests)."""

from __future__ import annotations

from importlib.metadata import distribution
from pathlib import Path

import numpy as np

from pflbench.data.base import Arrays, Dataset, Defaults, Progress


class Digits(Dataset):
    def files(self, root: Path, variant: str | None) -> list[Path]:
        """In scikit-learn. To import it for its own reader would take longer than to train on them."""
        return [Path(str(distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")))]

    def read(self, root: Path, variant: str | None, progress: Progress | None) -> Arrays:
        rows = np.loadtxt(self.files(root, variant)[0], delimiter=",")  # 64 grey values and the digit
        x = (rows[:, :-1].reshape(-1, 1, 8, 8) / 8 - 1).astype(np.float32)  # grey values are 0..16
        return Arrays(x, rows[:, -1].astype(np.int64), tuple("0123456789"))

    def fetch(self, root: Path, variant: str | None, progress: Progress | None) -> None:
        """They are there."""


DIGITS = Digits(
    name="digits",
    title="Digits (scikit-learn)",
    samples=1797,
    classes=10,
    size="embedded",
    url="https://scikit-learn.org/stable/datasets/toy_dataset.html",
    defaults=Defaults("mlp", 0.1, classes_per_client=2, rounds=50, clients=10),
    test_part=False,
    shape=(1, 8, 8),
)
