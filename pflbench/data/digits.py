"""The 1,797 handwritten digits, 8 x 8, that come with scikit-learn: nothing to download (demo and tests)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pflbench.data.base import Arrays, Dataset, Defaults, Finding, Progress


def _load(root: Path, variant: str | None, progress: Progress | None) -> Arrays:
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = (digits.images[:, None] / 8 - 1).astype(np.float32)  # grey values are 0..16
    return Arrays(x, digits.target.astype(np.int64), tuple(str(name) for name in digits.target_names))


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
