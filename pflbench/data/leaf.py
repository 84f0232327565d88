"""leaf:PATH - the folder that LEAF's preprocess.sh writes: data/train/*.json and data/test/*.json, owned by LEAF's users.

x is 784 numbers (FEMNIST, as images 1 x 28 x 28), other numbers (LEAF's synthetic data), or texts of one length with the next
character as y (Shakespeare). Numbers are taken as is. Files in order of their names, training files first.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pflbench.data import cache, npz
from pflbench.data.base import Arrays, Defaults, Progress, Source
from pflbench.data.content import checksum
from pflbench.errors import UserError

PARTS = ("train", "test")
# LEAF's ALL_LETTERS, in its order. Token and class 0 are all other characters.
LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
CHARACTERS = ("other", "newline", "space", *LETTERS[2:])
TOKENS = np.zeros(128, np.int64)  # of ASCII codes
TOKENS[[ord(letter) for letter in LETTERS]] = np.arange(1, len(CHARACTERS))
PIXELS, IMAGE = 784, (1, 28, 28)
HINT = "Expected data/train/*.json and data/test/*.json, as LEAF's preprocess.sh writes them."
KINDS = "Of LEAF's datasets, pflbench reads FEMNIST, Shakespeare and the synthetic one."

Numbers = npt.NDArray[np.float32] | npt.NDArray[np.int64]


def files(path: Path) -> dict[str, list[Path]]:
    """The JSON files of the training and the test part. Raises UserError where there are none."""
    place = path / "data" if (path / "data").is_dir() else path
    found = {part: sorted((place / part).glob("*.json")) for part in PARTS}
    for part, names in found.items():
        if not names:
            raise UserError(f"{place / part} holds no JSON files.", HINT)
    return found


def read(path: Path, progress: Progress | None = None) -> Arrays:
    """All samples. Raises UserError naming a file that is not as LEAF's are."""
    parts, held = files(path), []
    for i, file in enumerate(every := [file for names in parts.values() for file in names], 1):
        held.append(_samples(file))
        if progress:
            progress(f"reading the JSON files of {path.name}", i, len(every))
    xs, ys, owners = zip(*held, strict=True)
    if len({(x.dtype, x.shape[1:]) for x in xs}) > 1:
        raise UserError(f"The JSON files of {path} differ in the length or the kind of their samples.", HINT)
    x, y, owner = np.concatenate(xs), np.concatenate(ys), np.concatenate(owners)
    train_size = sum(map(len, ys[: len(parts[PARTS[0]])]))
    if x.dtype == np.int64:
        return Arrays(x, y, CHARACTERS, len(CHARACTERS), train_size, owner)
    y, classes = npz.labelled(str(path), y, None)
    return Arrays(x.reshape(-1, *IMAGE) if x.shape[1] == PIXELS else x, y, classes, None, train_size, owner)


def _samples(file: Path) -> tuple[Numbers, npt.NDArray[np.int64], npt.NDArray[np.str_]]:
    """Samples, labels and users of one file, by its own list of users."""
    try:
        held = json.loads(file.read_bytes())
        users = [str(user) for user in held["users"]]
        data = [(held["user_data"][user]["x"], held["user_data"][user]["y"]) for user in users]
        counts = [len(x) for x, _ in data]
        if counts != [len(y) for _, y in data]:
            raise ValueError("a user has other numbers of x and y")
        x = _tokens_or_numbers([sample for samples, _ in data for sample in samples])
        y = _labels([label for _, labels in data for label in labels], text=x.dtype == np.int64)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as e:
        reason = f"it has no {e}" if isinstance(e, KeyError) else str(e)
        raise UserError(f"{file} cannot be read: {reason}.", f"{HINT} {KINDS}") from e
    return x, y, np.repeat(np.array(users, str), counts)


def _tokens_or_numbers(samples: list[Any]) -> Numbers:
    """Token ids [n, positions], or numbers [n, d]. Raises ValueError for anything else."""
    if not samples:
        raise ValueError("it has no samples")
    if isinstance(samples[0], str):
        return _tokens(samples)
    numbers = np.array(samples, np.float32)
    if numbers.ndim != 2 or not np.isfinite(numbers).all():
        raise ValueError("x is neither texts nor lists of finite numbers")
    return numbers


def _tokens(texts: list[str]) -> npt.NDArray[np.int64]:
    """Ids [n, positions] of the characters of texts of one length."""
    lengths = set(map(len, texts))
    if len(lengths) > 1 or 0 in lengths:
        raise ValueError(f"it has texts of {min(lengths)} to {max(lengths)} characters")
    codes = np.array(texts, str).view(np.uint32).reshape(len(texts), -1)
    return TOKENS[np.minimum(codes, len(TOKENS) - 1)]


def _labels(labels: list[Any], text: bool) -> npt.NDArray[np.int64]:
    if text:
        if not all(isinstance(label, str) and len(label) == 1 for label in labels):
            raise ValueError("y is not one character for each text")
        return _tokens(labels)[:, 0]
    y = np.array(labels)
    if y.ndim != 1 or not (y == y.astype(np.int64)).all():
        raise ValueError("y is not a whole number for each sample")
    return y.astype(np.int64)


def _fingerprint(path: Path) -> str:
    return cache.fingerprint(file for names in files(path).values() for file in names)


def _content(path: Path, root: Path) -> str:
    """Of all bytes in order, and of the part of each file. Users are in the files."""

    def compute() -> str:
        held = [f"{part} {checksum(file)}" for part, names in files(path).items() for file in names]
        return hashlib.sha256("\n".join(held).encode()).hexdigest()

    return cache.remembered(root, f"{_fingerprint(path)}.leaf.sha256", compute)


def _load(path: Path, root: Path, progress: Progress | None) -> Arrays:
    """As `read`, which takes minutes for the whole of FEMNIST."""
    return cache.arrays(root, f"{_fingerprint(path)}.leaf2.npz", lambda: read(path, progress))


def _defaults(path: Path, root: Path) -> Defaults:
    arrays = _load(path, root, None)
    return Defaults("charlstm", 0.8, 2) if arrays.vocabulary is not None else npz.defaults_of(arrays.x.shape)


LEAF = Source(
    "leaf",
    "a folder written by LEAF's preprocess.sh: FEMNIST, Shakespeare, synthetic",
    content=lambda path, root, progress: _content(path, root),
    load=_load,
    defaults=_defaults,
)
