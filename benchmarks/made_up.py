"""Data of the sizes of MNIST, CIFAR-10, Tiny-ImageNet and AG News, made up: for timings on a machine that has none of them.

    python benchmarks/made_up.py FOLDER [--scale 1.0]

How long a round takes hangs on the shapes, not on the pixels. Each class has a pattern of its own below noise, so that training
goes somewhere; accuracies mean nothing. It writes mnist.npz, cifar10.npz, tiny.npz (100,000 images) and texts.csv (127,600 texts
over some 98,000 words), which `pflbench` takes as npz:FOLDER/mnist.npz and so on. --scale: of the numbers of samples.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

IMAGES = {"mnist": (70_000, (28, 28), 10), "cifar10": (60_000, (32, 32, 3), 10), "tiny": (100_000, (64, 64, 3), 200)}
TEXTS, TOPICS, WORDS, LONGEST = 127_600, 4, 98_000, 120


def images(path: Path, count: int, shape: tuple[int, ...], classes: int, rng: np.random.Generator) -> None:
    y = rng.integers(classes, size=count)
    x = rng.integers(0, 128, (count, *shape), dtype=np.uint8)
    x += rng.integers(0, 128, (classes, *shape), dtype=np.uint8)[y]
    np.savez(path, x=x, y=y)


def texts(path: Path, count: int, rng: np.random.Generator) -> None:
    """Frequencies fall as those of words do; every topic has its own order of them."""
    orders = [rng.permutation(WORDS) for _ in range(TOPICS)]
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(("label", "text"))
        for topic in rng.integers(TOPICS, size=count):
            ranks = (rng.zipf(1.3, rng.integers(10, LONGEST)) - 1) % WORDS
            lines.writerow((topic, " ".join(f"w{word}" for word in orders[topic][ranks])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name, (count, shape, classes) in IMAGES.items():
        images(options.folder / f"{name}.npz", int(options.scale * count), shape, classes, rng)
    texts(options.folder / "texts.csv", int(options.scale * TEXTS), rng)


if __name__ == "__main__":
    main()
