"""FedProx (Li et al., MLSys 2020, Algorithm 2; methods.md 1.3)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pflbench.engine.federation import Federation
from pflbench.methods.base import hyper, method
from pflbench.methods.fedavg import FedAvg


def proximal(w: Tensor, *, anchor: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    """Gradient and value of (strength / 2) |w - anchor|^2, for a row or for rows.

    The norm is squared, as in the papers; PFLlib reports the plain norm.
    """
    d = w - anchor
    penalty = strength / 2 * torch.linalg.vector_norm(d, dim=-1).square()
    return d.mul_(strength), penalty


@method
class FedProx(FedAvg):
    """FedAvg whose local objective is tied to the downloaded global model."""

    title = "FedProx"
    authors = "Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith"
    venue = "MLSys 2020"
    algorithm = "Algorithm 2"

    mu: float = hyper(0.001, "weight of the proximal term (mu / 2) |w - Theta|^2", ge=0, search=(0.1, 0.01, 0.001, 0.0001))

    def train(self, fed: Federation, s: Any, S: Tensor) -> Tensor:
        return fed.sgd(fed.rows(s.start, S), S, penalty=proximal, anchor=s.w, strength=self.mu)
