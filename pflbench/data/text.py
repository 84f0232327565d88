"""Texts to token ids by torchtext's basic_english tokeniser and vocabulary (methods.md 5). torchtext's only use."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pflbench.data.base import Arrays, Defaults, Progress
from pflbench.data.cache import cached

LENGTH = 200
REPORT = 2000  # texts between two calls of progress
DEFAULTS = Defaults("fasttext", 0.1, classes_per_client=2)


def tokenize(text: str) -> list[str]:
    """Lower-case words and punctuation: torchtext's "basic_english"."""
    from torchtext.data import get_tokenizer

    tokens: list[str] = get_tokenizer("basic_english")(text)
    return tokens


def encode(texts: Sequence[str], progress: Progress | None = None) -> tuple[npt.NDArray[np.int32], int]:
    """Token ids int32 [n, 200], cut or padded with 0, and the size of the vocabulary over all these texts.

    Id 0 is <unk>; the others are by descending frequency, ties alphabetical.
    """
    from torchtext.vocab import Vocab

    tokens = []
    for i, text in enumerate(texts, 1):
        tokens.append([sys.intern(token) for token in tokenize(text)])  # one object per word, not per occurrence
        if progress and (i % REPORT == 0 or i == len(texts)):
            progress("tokenising texts", i, len(texts))
    index = dict(Vocab(Counter(chain.from_iterable(tokens)), specials=["<unk>"]).stoi)
    ids = np.zeros((len(texts), LENGTH), np.int32)
    for row, words in zip(ids, tokens, strict=True):
        cut = words[:LENGTH]
        row[: len(cut)] = [index[word] for word in cut]
    return ids, len(index)


@dataclass(frozen=True, eq=False)
class Labelled:
    """Texts with labels y, int64 [n], the names of the classes, and train_size and owner as in Arrays."""

    texts: Sequence[str]
    y: npt.NDArray[np.int64]
    classes: tuple[str, ...]
    train_size: int | None = None
    owner: npt.NDArray[Any] | None = None


def load(root: Path, key: str, read: Callable[[], Labelled], progress: Progress | None) -> Arrays:
    """The texts that `read` gives, encoded. `key`, a hash of the files behind them, names the cache."""

    def build(path: Path) -> None:
        held = read()
        ids, size = encode(held.texts, progress)
        train_size = np.array([] if held.train_size is None else [held.train_size], np.int64)
        with path.open("wb") as file:
            parts: dict[str, Any] = {"classes": np.array(held.classes), "vocabulary": np.array(size), "train_size": train_size}
            parts |= {} if held.owner is None else {"owner": held.owner}
            np.savez(file, x=ids, y=held.y, **parts)

    def from_cache(path: Path) -> Arrays:
        with np.load(path, allow_pickle=False) as z:
            train_size = next(map(int, z["train_size"]), None)
            owner = z.get("owner")
            return Arrays(z["x"].astype(np.int64), z["y"], tuple(map(str, z["classes"])), int(z["vocabulary"]), train_size, owner)

    # Files `.text.npz` are those of a version that knew no owners.
    return cached(root, f"{key[:32]}.text2.npz", from_cache, build)
