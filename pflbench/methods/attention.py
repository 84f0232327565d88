"""Distances, cosines and mixtures of models for FedAMP, HeurFedAMP (methods.md 1.9) and FedFomo, in float64."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

AT_ONCE, ON_A_GPU = 1 << 16, 1 << 22  # numbers of all models in one block of columns: within a core's cache, or filling a GPU
FEWEST = 512  # columns of a block: with many clients, pairs fill the cache


def squared_distances(w: Tensor) -> Tensor:
    """|w_i - w_j|^2 for all pairs of rows, [c, c], from the products of the rows' deviations from their mean.

    Products of the rows themselves would lose the digits of close models; here rounding is about 1e-16 of the largest distance.
    """
    inner = torch.zeros(len(w), len(w), dtype=torch.float64, device=w.device)
    for (block,) in _columns(w):
        exact = block.double()
        apart = exact - exact.mean(dim=0)
        inner.addmm_(apart, apart.T)
    squares = inner.diagonal()
    return (squares + squares.unsqueeze(1) - 2 * inner).clamp_(min=0).fill_diagonal_(0)


def distances(w: Tensor, v: Tensor) -> Tensor:
    """|w_i - v_j| for all rows of one and of the other, [c, d]. From differences: it is 0 exactly where models are equal."""
    squares = torch.zeros(len(w), len(v), dtype=torch.float64, device=w.device)
    for ours, theirs in _columns(w, v):
        squares += torch.cdist(ours.double(), theirs.double(), compute_mode="donot_use_mm_for_euclid_dist").square()
    return squares.sqrt()


def cosines(w: Tensor) -> Tensor:
    """cos(w_i, w_j) for all pairs of rows, [c, c]; 0 where one of them is the zero vector."""
    inner = torch.zeros(len(w), len(w), dtype=torch.float64, device=w.device)
    for (block,) in _columns(w):
        exact = block.double()
        inner += exact @ exact.T
    length = inner.diagonal().sqrt()
    length = length.where(length > 0, 1)
    return inner / length / length.unsqueeze(1)


def mixed(own: Tensor, w: Tensor, others: Tensor) -> Tensor:
    """xi_ii own_i + sum_j others_ij w_j with xi_ii = 1 - sum_j others_ij, [c, P]; others [c, c] has a diagonal of 0.

    Written as own_i + sum_j others_ij (w_j - own_i), with differences from one of the models: the weights are in the ten
    thousands where models are close, and multiplied with the models themselves would leave nothing of what tells them apart.
    """
    u, total = torch.empty_like(own), others.sum(dim=1, keepdim=True)
    for to, mine, theirs in _columns(u, own, w):
        origin = theirs[0].double()
        pull = others @ (theirs - origin)
        to.copy_(pull.addcmul_(total, mine - origin, value=-1).add_(mine))
    return u


def _columns(*of: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Corresponding blocks of columns of several matrices [..., P]."""
    width = max(FEWEST, (AT_ONCE if of[0].device.type == "cpu" else ON_A_GPU) // max(map(len, of)))
    return zip(*(torch.split(x, width, 1) for x in of), strict=True)
