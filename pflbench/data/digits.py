"""The 1,797 handwritten digits, 8 x 8, that come with scikit-learn: nothing to download (demo and tests)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from pflbench.data.base import Arrays, Dataset, Defaults, Finding, Progress


def _load(root: Path, variant: str | None, progress: Progress | None) -> Arrays:
    rows = np.loadtxt(_file(), delimiter=",")  # 64 grey values and the digit
    x = (rows[:, :-1].reshape(-1, 1, 8, 8) / 8 - 1).astype(np.float32)  # grey values are 0..16
    return Arrays(x, rows[:, -1].astype(np.int64), tuple("0123456789"))


def _file() -> Path:
    """Where scikit-learn has them. To import it for its own reader would take longer than to train on them."""
    found = find_spec("sklearn")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).with_name("datasets") / "data" / "digits.csv.gz"


def _verify(root: Path, variant: str | None) -> list[Finding]:
    return [Finding(Path("sklearn.datasets.load_digits"), "ok", "comes with scikit-learn")]


DIGITS = Dataset(
    name="digits",
    title="Digits (scikit-learn)",
    samples=1797,
    classes=10,
    size="embedded",
    url="https://scikit-learn.org/stable/datasets/toy_dataset.html",
    defaults=Defaults("mlp", 0.1, classes_per_client=2, rounds=50, clients=10),
    load=_load,
    verify=_verify,
    test_part=False,
    shape=(1, 8, 8),
)
