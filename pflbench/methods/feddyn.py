"""FedDyn: Federated Learning Based on Dynamic Regularization (Acar et al., ICLR 2021, Algorithm 1; methods.md 1.34)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pflbench.engine.federation import Federation
from pflbench.engine.flat import put
from pflbench.methods.base import Aggregation, Method, Welcome, aggregated, hyper, method


@dataclass(frozen=True)
class FedDynState:
    w: Tensor  # [P] the global model
    drift: Tensor  # [N, P] the sum of a client's theta_i - Theta over its rounds; the paper's g_i is -alpha_i times that
    mean_drift: Tensor  # [P] over all clients; the paper's h is -alpha times that


def dynamic(w: Tensor, *, anchor: Tensor, drift: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient and value of strength * (<drift, w - anchor> + |w - anchor|^2 / 2)."""
    d = w - anchor
    value = strength.squeeze(-1) * torch.linalg.vecdot(d / 2 + drift, d)
    return (d + drift).mul_(strength), value


@method
class FedDyn(Method):
    """FedAvg whose local objectives get a linear term, so that their stationary points agree with the global one's."""

    title = "FedDyn"
    authors = "Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama"
    venue = "ICLR 2021"
    algorithm = "Algorithm 1"
    category = "traditional FL: regularisation"
    ala_refused = "the linear term is made of theta_i - Theta, which would hold ALA's mixing, too"
    presets = {"pfllib2025": {"alpha": 1.0}}

    alpha: float = hyper(0.01, "weight of the linear and the quadratic term", gt=0, search=(0.1, 0.01, 0.001))
    scale: bool = hyper(False, "as in the authors' code: alpha_i = alpha * (mean n) / n_i in a client's steps")
    aggregation: Aggregation = aggregated("uniform")

    def init(self, fed: Federation) -> FedDynState:
        zero = torch.zeros_like(fed.initial())
        return FedDynState(w=fed.initial(), drift=fed.everyone(zero), mean_drift=zero)

    def receive(self, fed: Federation, s: FedDynState, S: Tensor) -> FedDynState:
        fed.send(s.w, S)
        return s

    def update(self, fed: Federation, s: FedDynState, S: Tensor) -> FedDynState:
        clients = len(fed.candidates())
        n_S = fed.n[S].unsqueeze(1)
        strength = self.alpha * (fed.n.sum() / clients / n_S if self.scale else torch.ones_like(n_S))
        theta_S = fed.sgd(fed.rows(s.w, S), S, penalty=dynamic, anchor=s.w, drift=s.drift[S], strength=strength)
        theta_S = fed.collect(theta_S, S, since=s.w)
        change_S = theta_S - s.w
        mean_drift = s.mean_drift + change_S.sum(0) / clients
        w = fed.mean(theta_S, S, self.aggregation) + mean_drift
        return FedDynState(w, put(s.drift, S, s.drift[S] + change_S), mean_drift)

    def deployed(self, s: FedDynState) -> Tensor:
        return s.w

    def welcome(self, fed: Federation, s: FedDynState, new: Federation) -> Welcome:
        return Welcome(new.everyone(s.w))
