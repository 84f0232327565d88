"""FedPHP: Federated Personalization with Inherited Private Models (Li, Zhan, Shao, Li, Song; ECML PKDD 2021; methods.md 1.10)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from pflbench.engine.federation import Federation
from pflbench.engine.flat import put
from pflbench.engine.requests import Loss, Output
from pflbench.methods.base import hyper, method
from pflbench.methods.fedavg import FedAvg

Kernel = Literal["fixed", "adaptive"]


@dataclass(frozen=True)
class FedPHPState:
    w: Tensor  # [P] the global model
    start: Tensor  # the models that training starts from: [P] or [N, P]; fedala2022: theta_i until the next reception
    p: Tensor  # [N, P] the inherited private models; fedala2022: none, [N, 0]
    z: Tensor  # [N] participations


def mmd(H: Tensor, H_p: Tensor, kernel: Kernel) -> Tensor:
    """Biased estimate of the squared maximum mean discrepancy between two batches of features [B, h], with Gaussian kernels."""
    B, Z = len(H), torch.cat([H, H_p])
    # From differences, not as xx + yy - 2xy: that can be negative, and identical features would not be at distance 0.
    d2 = torch.cdist(Z, Z, compute_mode="donot_use_mm_for_euclid_dist").square()
    bw = (d2.detach().sum() / (4 * B * B - 2 * B) + 1e-8) / 4
    widths = (20, 30, 40, 100) if kernel == "fixed" else [bw * 2**k for k in range(5)]
    K = torch.stack([d2 / -width for width in widths]).exp().sum(0)
    return (K[:B, :B] + K[B:, B:] - 2 * K[:B, B:]).mean()


def with_mmd(loss: Loss, labels: Tensor, own: Output, reference: Output, *, lam: float, kernel: Kernel) -> Tensor:
    """(1 - lambda) * CE + lambda * MMD to the features of a frozen model."""
    return (1 - lam) * loss(own.logits, labels) + lam * mmd(own.features, reference.features, kernel)


@method
class FedPHP(FedAvg):
    """Clients inherit a moving average of the models that they trained, and train towards its features.

    Variant fedala2022 averages the received and the client's own model before training instead, which is what the FedALA
    paper describes and PFLlib did in 2022.
    """

    title = "FedPHP"
    authors = "Li, Zhan, Shao, Li, Song"
    venue = "ECML PKDD 2021"
    algorithm = "Algorithm 1"
    category = "personalized FL: rule-based aggregation"
    presets = {"fedala2022": {"variant": "fedala2022"}}

    variant: Literal["paper", "fedala2022"] = hyper("paper", "an inherited private model, or moving-average initialisation")
    mu: float = hyper(0.9, "final weight of the client's own past", ge=0, le=1, search=tuple(k / 10 for k in range(11)))
    lam: float = hyper(0.01, "lambda, weight of the MMD term", ge=0, le=1, search=(0.1, 0.05, 0.01, 0.005, 0.001))
    # The authors' own code has the adaptive kernel, PFLlib the fixed one.
    kernel: Kernel = hyper("fixed", "bandwidths of the MMD kernels: constants, or from the batch's mean distance")

    def init(self, fed: Federation) -> FedPHPState:
        z = torch.zeros(fed.size, dtype=torch.int64, device=fed.device)
        if self.variant == "paper":
            return FedPHPState(**vars(super().init(fed)), p=fed.everyone(fed.initial()), z=z)
        return FedPHPState(w=fed.initial(), start=fed.everyone(fed.initial()), p=z.new_empty(fed.size, 0), z=z)

    def receive(self, fed: Federation, s: FedPHPState, S: Tensor) -> FedPHPState:
        Theta = fed.send(s.w, S)
        if self.variant == "paper":
            return replace(s, start=fed.load(Theta, S))
        mu_R = self.mu * (fed.t - 1) / fed.protocol.rounds
        return replace(s, start=fed.load((1 - mu_R) * Theta + mu_R * s.start[S], S, others=s.start))

    def update(self, fed: Federation, s: FedPHPState, S: Tensor) -> FedPHPState:
        reference = s.p[S] if self.variant == "paper" else fed.rows(s.w, S)
        objective = partial(with_mmd, lam=self.lam, kernel=self.kernel)
        w_S = fed.sgd(fed.rows(s.start, S), S, objective=objective, references=(reference,))
        after = replace(s, w=fed.mean(fed.collect(w_S, S, since=s.w), S), z=put(s.z, S, s.z[S] + 1))
        if self.variant == "fedala2022":
            return replace(after, start=put(s.start, S, w_S))
        mu_t = self._memory(fed, s.z[S]).unsqueeze(1)
        return replace(after, p=put(s.p, S, mu_t * s.p[S] + (1 - mu_t) * w_S))

    def _memory(self, fed: Federation, z: Tensor) -> Tensor:
        """mu_t: grows with each participation, from 0 to mu at the expected number of participations."""
        expected = max(int(fed.protocol.mean_join_ratio * fed.protocol.rounds), 1)
        return (self.mu * z.to(fed.dtype) / expected).clamp(0, self.mu)

    def deployed(self, s: FedPHPState) -> Tensor:
        return s.p if self.variant == "paper" else s.start

    def welcome(self, fed: Federation, s: FedPHPState, new: Federation) -> None:
        """Not defined by its authors, unlike FedAvg's."""
