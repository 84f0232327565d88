"""IID partition (methods.md 3.3): shuffled equal shares, or the reference code's unequal ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflbench.partition.core import Indices, least_samples
from pflbench.partition.pathological import deal
from pflbench.spec import IID


def shares(spec: IID, labels: NDArray[np.integer[Any]], classes: int, stream: np.random.RandomState) -> list[Indices]:
    """One index array per client; sizes differ by one at most, except with the reference's shares."""
    if spec.shares == "reference":
        everyone = [list(range(spec.clients))] * classes
        return deal(everyone, spec.clients, labels, least_samples(len(labels), spec.clients), stream)
    return np.array_split(stream.permutation(len(labels)), spec.clients)
