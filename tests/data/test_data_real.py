"""The real datasets, where PFLBENCH_TEST_DATA names a folder that has them."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from support.real_data import ROOT, real

from pflbench import data
from pflbench.data import folder
from pflbench.spec import DataSpec


def test_mnist() -> None:
    """Class sizes of methods.md 3.2, the first test labels, and the mean and deviation that are commonly used."""
    real("mnist/MNIST/raw")
    arrays = data.load(data.parse("mnist", Path(ROOT)), Path(ROOT))
    assert arrays.x.shape == (70_000, 1, 28, 28)
    assert np.bincount(arrays.y).tolist() == [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]
    assert arrays.y[60_000:60_005].tolist() == [7, 2, 1, 0, 4]
    assert arrays.x[:60_000].mean() / 255 == pytest.approx(0.1307, abs=5e-5)
    assert arrays.x[:60_000].std() / 255 == pytest.approx(0.3081, abs=5e-5)


def test_cifar10_folder_is_listed_whole_and_train_first() -> None:
    listing = folder.listing(real("cifar10-jpeg"))
    assert listing.classes[:3] == ("airplane", "automobile", "bird")
    assert np.bincount(listing.y[:50_000]).tolist() == [5000] * 10
    assert np.bincount(listing.y[50_000:]).tolist() == [1000] * 10
    assert all(name.startswith("train/") for name in listing.files[:50_000])
    assert all(f"/{listing.classes[k]}/" in name for name, k in zip(listing.files, listing.y, strict=True))


@pytest.mark.slow
def test_all_of_tiny(tmp_path: Path) -> None:
    (tmp_path / "tiny-imagenet-200").symlink_to(real("tiny-imagenet-200").resolve())
    spec = data.parse("tiny", tmp_path)
    assert spec == DataSpec(name="tiny"), "the official content"
    arrays = data.load(spec, tmp_path)
    assert arrays.x.shape == (100_000, 3, 64, 64)
    assert np.bincount(arrays.y).tolist() == [500] * 200
    assert list(arrays.classes) == sorted(arrays.classes)


def by_the_rules(text: str) -> list[str]:
    """methods.md 5, without a regular expression."""
    text = text.lower()
    for sign in "'.,()!?":
        text = text.replace(sign, f" {sign} ")
    for sign in ("<br />", ";", ":"):
        text = text.replace(sign, " ")
    return text.replace('"', "").split()


def test_agnews_test_file(tmp_path: Path) -> None:
    (tmp_path / "ag_news_csv").symlink_to(real("ag_news_csv").resolve())
    arrays = data.load(data.parse("agnews:test", tmp_path), tmp_path)
    with (tmp_path / "ag_news_csv" / "test.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert np.bincount(arrays.y).tolist() == [1900] * 4
    assert arrays.y.tolist() == [int(row[0]) - 1 for row in rows]
    words = [by_the_rules(f"{title} {description}") for _, title, description in rows]
    counts = Counter(word for line in words for word in line)
    ranked = ["<unk>", *sorted(counts, key=lambda word: (-counts[word], word))]
    assert arrays.vocabulary == len(ranked) == 25_271
    index = {word: i for i, word in enumerate(ranked)}
    expected = np.zeros((7600, 200), np.int64)
    for row, line in zip(expected, words, strict=True):
        row[: len(line)] = [index[word] for word in line[:200]]
    np.testing.assert_array_equal(arrays.x, expected)
