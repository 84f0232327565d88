"""Practical partition Dir(beta): each class is spread over the clients by a Dirichlet draw.

methods.md 3.2; Lin et al., NeurIPS 2020, with the cap of the FedALA authors' code: a client that already holds its even
share n_total / N receives nothing of the classes that follow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflbench.errors import UserError
from pflbench.partition.core import Indices, least_samples
from pflbench.spec import Dirichlet

MAX_TRIES = 1000


def shares(spec: Dirichlet, labels: NDArray[np.integer[Any]], classes: int, stream: np.random.RandomState) -> list[Indices]:
    """One index array per client, none shorter than `spec.min_samples`.

    The default is the reference's; if MAX_TRIES draws fail to give every client so many, half of it is tried, and so on to 1.
    Raises UserError if MAX_TRIES draws fail with 1, or with a given minimum.
    """
    least = least_samples(len(labels), spec.clients) if spec.min_samples is None else spec.min_samples
    if least * spec.clients > len(labels):
        raise UserError(
            f"{spec.clients} clients cannot hold at least {least} of {len(labels)} samples each.",
            f"Use at most {len(labels) // least} clients (--clients), or a smaller --min-samples.",
        )
    by_class = [np.flatnonzero(labels == k) for k in range(classes)]
    while True:
        for _ in range(MAX_TRIES):
            result = _draw(spec, by_class, len(labels) / spec.clients, stream)
            if min(len(share) for share in result) >= least:
                return result
        if spec.min_samples is not None or least <= 1:
            raise _hopeless(spec, f"gave every client at least {least} samples in {MAX_TRIES} draws", least)
        least //= 2


def _draw(spec: Dirichlet, by_class: list[Indices], even_share: float, stream: np.random.RandomState) -> list[Indices]:
    held: list[list[Indices]] = [[] for _ in range(spec.clients)]
    totals = np.zeros(spec.clients)
    for samples in by_class:
        shuffled = samples.copy()
        stream.shuffle(shuffled)
        p = _proportions(spec, totals < even_share, stream)
        pieces = np.split(shuffled, (np.cumsum(p) * len(shuffled)).astype(np.int64)[:-1])
        for client, piece in enumerate(pieces):
            held[client].append(piece)
            totals[client] += len(piece)
    return [np.concatenate(pieces) for pieces in held]


def _proportions(spec: Dirichlet, admissible: NDArray[np.bool_], stream: np.random.RandomState) -> NDArray[np.float64]:
    """Dir(beta) over the admissible clients; drawn again if it puts everything on the others, or underflows."""
    for _ in range(MAX_TRIES):
        p = np.where(admissible, stream.dirichlet(np.full(spec.clients, spec.beta)), 0.0)
        if p.sum() > 0 or not admissible.any():  # nobody is admissible only when all samples are handed out
            return p / p.sum() if p.sum() > 0 else p
    raise _hopeless(spec, f"gave a client with room left any share in {MAX_TRIES} draws")


def _hopeless(spec: Dirichlet, failure: str, least: int | None = None) -> UserError:
    smaller = "" if least in (None, 1) else f", or --min-samples below {least}"
    return UserError(
        f"No Dir({spec.beta:g}) partition over {spec.clients} clients {failure}.",
        f"Use a larger --beta, fewer --clients{smaller}.",
    )
