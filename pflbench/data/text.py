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

from pflbench.data import cache
from pflbench.data.base import Arrays, Defaults, Progress

LENGTH = 200
REPORT = 2000  # texts between two calls of progress
DEFAULTS = Defaults("fasttext", 0.1, classes_per_client=2)


def tokenize(text: str) -> list[str]:
    """Lower-case words and punctuation: torchtext's "basic_english"."""
    from torchtext.data import get_tokenizer

    tokens: list[str] = get_tokenizer("basic_english")(text)
    return tokens


def encode(texts: Sequence[str], progress: Progress | None = None) -> tuple[npt.NDArray[np.int64], int]:
    """Token ids [n, 200], cut or padded with 0, and the size of the vocabulary over all these texts.

    Id 0 is <unk>; the others are by descending frequency, ties alphabetical.
    """
    from torchtext.vocab import Vocab

    tokens = []
    for i, text in enumerate(texts, 1):
        tokens.append([sys.intern(token) for token in tokenize(text)])  # one object per word, not per occurrence
        if progress and (i % REPORT == 0 or i == len(texts)):
            progress("tokenising texts", i, len(texts))
    index = dict(Vocab(Counter(chain.from_iterable(tokens)), specials=["<unk>"]).stoi)
    ids = np.zeros((len(texts), LENGTH), np.int64)
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

    def encoded() -> Arrays:
        held = read()
        ids, size = encode(held.texts, progress)
        return Arrays(ids, held.y, held.classes, size, held.train_size, held.owner)

    return cache.arrays(root, f"{key[:32]}.text3.npz", encoded)
