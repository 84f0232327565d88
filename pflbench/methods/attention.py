"""How FedAMP and HeurFedAMP compare models and mix them by weights (methods.md 1.9): in float64, some columns at a time."""

from __future__ import annotations

import torch
from torch import Tensor

COLUMNS = 65536  # that are in float64 at once


def squared_distances(w: Tensor) -> Tensor:
    """|w_i - w_j|^2 for all pairs of rows, [c, c]. From differences: xx + yy - 2xy would lose the digits of close models."""
    between = torch.zeros(len(w) * (len(w) - 1) // 2, dtype=torch.float64, device=w.device)
    for block in torch.split(w, COLUMNS, 1):
        between += torch.pdist(block.double()).square()
    i, j = torch.triu_indices(len(w), len(w), 1, device=w.device)
    half = torch.zeros(len(w), len(w), dtype=torch.float64, device=w.device)
    half[i, j] = between
    return half + half.T


def cosines(w: Tensor) -> Tensor:
    """cos(w_i, w_j) for all pairs of rows, [c, c]; 0 where one of them is the zero vector."""
    inner = torch.zeros(len(w), len(w), dtype=torch.float64, device=w.device)
    for block in torch.split(w, COLUMNS, 1):
        inner += block.double() @ block.double().T
    length = inner.diagonal().sqrt()
    length = length.where(length > 0, 1)
    return inner / length / length.unsqueeze(1)


def mixed(own: Tensor, w: Tensor, others: Tensor) -> Tensor:
    """xi_ii own_i + sum_j others_ij w_j with xi_ii = 1 - sum_j others_ij, [c, P]; others [c, c] has a diagonal of 0.

    Written as own_i + sum_j others_ij (w_j - own_i), with differences from one of the models: the weights are in the ten
    thousands where models are close, and multiplied with the models themselves would leave nothing of what tells them apart.
    """
    u, total = torch.empty_like(own), others.sum(dim=1, keepdim=True)
    for to, mine, theirs in zip(*(torch.split(x, COLUMNS, 1) for x in (u, own, w)), strict=True):
        origin = theirs[0].double()
        to.copy_(mine + others @ (theirs - origin) - total * (mine - origin))
    return u
