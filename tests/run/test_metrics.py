"""AUC, balanced accuracy and macro-F1: small cases by hand, and scikit-learn's own averages where all classes occur."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics import f1_score, recall_score, roc_auc_score

from pflbench.run.metrics import measures


def test_of_some_classes_and_with_ties_they_are_scikit_learns() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        n, K = rng.integers(2, 30), rng.integers(2, 8)
        logits, labels = rng.integers(3, size=(n, K)).astype(np.float64), rng.integers(K, size=n)
        scores, occur = softmax(logits, axis=1), np.unique(labels)
        areas = [roc_auc_score(labels == k, scores[:, k]) for k in occur] if len(occur) > 1 else [np.nan]
        recall = recall_score(labels, logits.argmax(1), labels=occur, average="macro", zero_division=0)
        f1 = f1_score(labels, logits.argmax(1), average="macro", zero_division=0)
        assert measures(logits, labels) == pytest.approx((np.mean(areas), recall, f1), nan_ok=True)


def test_by_hand_for_a_client_that_lacks_classes() -> None:
    """Of four classes the client has 0 and 2; one sample of 0 is taken for 3."""
    labels = np.array([0, 0, 2, 2])
    logits = np.log(np.array([[0.7, 0.1, 0.1, 0.1], [0.2, 0.1, 0.3, 0.4], [0.3, 0.1, 0.5, 0.1], [0.1, 0.1, 0.6, 0.2]]))
    # Class 0: 0.7 and 0.2 against 0.3 and 0.1: three of four pairs in order; class 2: 0.5 and 0.6 against 0.1 and 0.3: all.
    assert measures(logits, labels) == pytest.approx(((3 / 4 + 1) / 2, (1 / 2 + 1) / 2, (2 / 3 + 1 + 0) / 3))


def test_of_one_class_there_is_no_auc() -> None:
    auc, *others = measures(np.array([[0.0, 1], [1, 0]]), np.array([1, 1]))
    assert np.isnan(auc)
    assert others == pytest.approx([0.5, (2 / 3 + 0) / 2])


def test_logits_too_large_for_an_exponential() -> None:
    assert measures(np.array([[1e4, 0], [0, 1e4]]), np.array([0, 1])) == (1, 1, 1)


def test_sure_predictions_in_single_precision_are_no_ties() -> None:
    logits = np.zeros((4, 2), dtype=np.float32)
    logits[:, 1] = [18, 20, 25, 30]
    assert measures(logits, np.array([0, 0, 1, 1]))[0] == 1


def test_a_run_without_these_measures_imports_no_scipy() -> None:
    code = "import sys, pflbench.cli.run, pflbench.run.training; print({'scipy', 'sklearn', 'pandas'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
