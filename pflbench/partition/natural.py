"""A client for each owner of samples, as the data name them (methods.md 3.6)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflbench.errors import UserError
from pflbench.partition.core import Indices
from pflbench.spec import Natural

LEAST = 2  # samples: one to train and one to test


def owners(owner: NDArray[Any] | None, min_samples: int | None) -> tuple[Indices, Indices]:
    """The number of each sample's owner [n], and the owners that have min_samples (default LEAST) samples or more.

    owner: of each sample [n]. Raises UserError if the data do not name owners, or none has enough samples.
    """
    if owner is None:
        raise UserError(
            "The data do not say who owns a sample, as --partition natural needs.",
            "har, leaf:PATH and domains:PATH say it; so do an array `owner` with an integer or a name per sample (npz, FILE.py) "
            "and a column `owner` with a name in every line (csv).",
        )
    _, at, counts = np.unique(owner, return_inverse=True, return_counts=True)
    enough = np.flatnonzero(counts >= (least := min_samples or LEAST))
    if not len(enough):
        raise UserError(f"None of {len(counts)} owners has {least} samples or more.", "Use a smaller --min-samples.")
    return at, enough


def shares(spec: Natural, owner: NDArray[Any] | None, stream: np.random.RandomState) -> list[Indices]:
    """The samples of each chosen owner, owners in ascending order.

    Raises UserError as `owners`, and if fewer than spec.clients have enough samples.
    """
    at, enough = owners(owner, spec.min_samples)
    if len(enough) < spec.clients:
        raise UserError(
            f"{spec.clients} clients, but only {len(enough)} of {at.max() + 1} owners have enough samples.",
            f"Use --clients {len(enough)}, or a smaller --min-samples.",
        )
    chosen = enough if len(enough) == spec.clients else np.sort(stream.permutation(enough)[: spec.clients])
    return [np.flatnonzero(at == one) for one in chosen]
