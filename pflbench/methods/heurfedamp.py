"""HeurFedAMP: FedAMP with a heuristic attention for deep networks (Huang et al., AAAI 2021, Section 5; methods.md 1.9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from pflbench.methods.attention import cosines
from pflbench.methods.base import Share, hyper, method
from pflbench.methods.fedamp import MessagePassing
from pflbench.spec import RunSpec, Value


@method
class HeurFedAMP(MessagePassing):
    """FedAMP whose clouds are convex combinations: a fixed share of the own model, the others by their cosine similarity."""

    title = "HeurFedAMP"
    algorithm = "Algorithm 1, with heuristic weights"
    # As in its authors' code.
    presets = {"heurfedamp2021": {"alpha_k": 10_000.0, "alpha_decay": 0.1, "alpha_every": 30, "sigma": 25.0}}

    # With FedAMP's alpha_k the pull to a cloud model that is not started from is nothing: HeurFedAMP would be Local.
    start: Literal["own", "cloud"] = hyper("cloud", "local training starts from the client's own model, or from its cloud model")
    # The FedALA paper has no HeurFedAMP: alpha_k and lambda are those of FedAMP, sigma is that of an old script in PFLlib.
    sigma: float = hyper(10.0, "how much more the similar models count", ge=0)
    xi_ii: Share | Literal["1/N"] = hyper("1/N", "the own model's share of the cloud; 1/N: as much as all have on average")

    def attention(self, w: Tensor, t: int) -> Tensor:
        """(1 - xi_ii) exp(sigma cos(w_i, w_j)) / sum over h != i of exp(sigma cos(w_i, w_h))."""
        if len(w) == 1:
            return w.new_zeros(1, 1, dtype=torch.float64)
        own = 1 / len(w) if self.xi_ii == "1/N" else self.xi_ii
        return (1 - own) * torch.softmax((self.sigma * cosines(w)).fill_diagonal_(-torch.inf), dim=1)

    def canonical_values(self, spec: RunSpec) -> Mapping[str, Value]:
        return {"xi_ii": "1/N"} if spec.train.everyone_joins and self.xi_ii == 1 / spec.training_clients else {}
