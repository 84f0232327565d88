"""Partitions: labels -> index lists per client (methods.md 3). `.pfllib` reads the folders that PFLlib wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pflbench import spec as specs
from pflbench.errors import UserError
from pflbench.partition import dirichlet, groups, iid, natural, pathological
from pflbench.partition.core import Indices, Partition, split

__all__ = ["SCHEMES", "Partition", "make"]

Scheme = Callable[[Any, NDArray[np.integer[Any]], int, np.random.RandomState], list[Indices]]

SCHEMES: dict[str, Scheme] = {
    "pathological": pathological.shares,
    "dirichlet": dirichlet.shares,
    "iid": iid.shares,
    "groups": groups.shares,
}


def make(
    spec: specs.Pathological | specs.Dirichlet | specs.IID | specs.Groups | specs.Natural,
    labels: ArrayLike,
    classes: int,
    owner: NDArray[Any] | None = None,
) -> Partition:
    """The partition that `spec` describes of samples with `labels` (integers in 0..classes-1, [n]) and perhaps owners [n].

    One legacy random stream runs through the scheme and then the split: so seed 1 reproduces the published MNIST files.
    Raises UserError if the partition is impossible.
    """
    labels = np.asarray(labels)
    if 2 * spec.clients > len(labels):
        raise UserError(
            f"{spec.clients} clients are too many for {len(labels)} samples: each needs one to train and one to test.",
            f"Use at most {len(labels) // 2} clients.",
        )
    stream = np.random.RandomState(spec.seed)
    if isinstance(spec, specs.Natural):
        shares = natural.shares(spec, owner, stream)
    else:
        shares = SCHEMES[spec.scheme](spec, labels, classes, stream)
    by_class = [share[np.argsort(labels[share], kind="stable")] for share in shares]
    return split(by_class, spec.test_share, stream)
