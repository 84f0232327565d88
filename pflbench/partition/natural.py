"""A client for each owner of samples, as the data name them (methods.md 3.6)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflbench.errors import UserError
from pflbench.partition.core import Indices
from pflbench.spec import Natural

LEAST = 2  # samples: one to train and one to test


def shares(spec: Natural, owner: NDArray[Any] | None, stream: np.random.RandomState) -> list[Indices]:
    """The samples of each chosen owner, owners in ascending order. owner: of each sample [n].

    Raises UserError if the data do not name owners, or fewer than spec.clients that have enough samples.
    """
    if owner is None:
        raise UserError(
            "The data do not say who owns a sample.",
            "har, leaf:PATH and domains:PATH do, and an array or column `owner` of own data: see docs/data.md.",
        )
    _, at, counts = np.unique(owner, return_inverse=True, return_counts=True)
    least = spec.min_samples or LEAST
    enough = np.flatnonzero(counts >= least)
    if len(enough) < spec.clients:
        raise UserError(
            f"{spec.clients} clients, but {len(enough)} of {len(counts)} owners have {least} samples or more.",
            f"Use --clients {len(enough)}." if len(enough) else "Use a smaller --min-samples.",
        )
    chosen = enough if len(enough) == spec.clients else np.sort(stream.permutation(enough)[: spec.clients])
    return [np.flatnonzero(at == one) for one in chosen]
