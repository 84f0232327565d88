"""Measures that papers report beside accuracy: AUC, balanced accuracy and F1, from logits (methods.md 2.9)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pflbench.engine.federation import Federation
from pflbench.methods.base import Method
from pflbench.run import round
from pflbench.store.measures import COLUMNS


def measures(logits: NDArray[np.floating], labels: NDArray[np.integer]) -> tuple[float, float, float]:
    """AUC, balanced accuracy and macro-F1, each in [0, 1], NaN if not defined. logits: [n, K]; labels: [n].

    AUC: of each class against the others, the mean over classes that some samples have and some have not. Balanced accuracy:
    the mean recall of the classes that occur. Macro-F1: the mean over the classes that occur or are predicted.
    """
    K = logits.shape[1]
    confusion = np.bincount(labels * K + logits.argmax(1), minlength=K * K).reshape(K, K)
    of_class, predicted, right = confusion.sum(1), confusion.sum(0), confusion.diagonal()
    occurs, seen = of_class > 0, of_class + predicted > 0
    recall, f1 = right[occurs] / of_class[occurs], 2 * right[seen] / (of_class + predicted)[seen]
    return _auc(logits, labels, np.flatnonzero(occurs)), float(recall.mean()), float(f1.mean())


def _auc(logits: NDArray[np.floating], labels: NDArray[np.integer], classes: NDArray[np.integer]) -> float:
    """By ranks (Mann and Whitney), of softmax probabilities in float64: in float32 many are exactly 1."""
    from scipy.special import softmax  # here, since importing SciPy is a third of what a run takes to start
    from scipy.stats import rankdata

    if len(classes) < 2:
        return np.nan
    exact = logits.astype(np.float64)
    scores = softmax(exact, axis=1)[:, classes]
    mine = labels[:, None] == classes
    positive = mine.sum(0)
    above = np.where(mine, rankdata(scores, axis=0), 0).sum(0) - positive * (positive + 1) / 2
    return float((above / (positive * (len(labels) - positive))).mean())


def measure(method: Method, fed: Federation, before: Any, received: Any, S: Tensor) -> NDArray[np.float64]:
    """Measures of a test, as `round.evaluate` makes it, as an array of its round: [1 + N, 3].

    Row 0 is of all test samples together, row 1 + i of client i. NaN: not tested, or not defined. Columns: COLUMNS.
    """
    tested = round.logits(method, fed, before, received, S)
    labels = {client: fed.labels[fed.test_indices[client]] for client in tested}
    found = np.full((1 + fed.size, len(COLUMNS)), np.nan)
    if tested:
        found[0] = measures(np.concatenate(list(tested.values())), np.concatenate(list(labels.values())))
    for client, rows in tested.items():
        found[1 + client] = measures(rows, labels[client])
    return found
