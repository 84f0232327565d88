"""MOON: Model-Contrastive Federated Learning (Li, He, Song; CVPR 2021, Algorithm 1; methods.md 1.27)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from pflbench.engine.federation import Federation
from pflbench.engine.flat import put
from pflbench.engine.requests import Loss, Output
from pflbench.methods.base import Aggregation, aggregated, hyper, method
from pflbench.methods.fedavg import FedAvg, FedAvgState

SMALLEST = 1e-8  # norm of a feature vector, as in torch.nn.functional.cosine_similarity


@dataclass(frozen=True)
class MOONState(FedAvgState):
    theta: Tensor  # [N, P] what each client trained last; Theta^0 at first


def contrast(z: Tensor, received: Tensor, previous: Tensor, tau: float) -> Tensor:
    """Mean over a batch of features [b, h] of -log of e^(cos(z, received) / tau) over the sum of that and of previous's."""
    # The difference of directions is exactly 0 for equal references, as in round 1: then nothing is added to the gradient.
    away = _direction(previous) - _direction(received)
    return F.softplus((_direction(z) * away).sum(-1) / tau).mean()


def with_contrast(
    loss: Loss, labels: Tensor, own: Output, received: Output, previous: Output, *, mu: float, tau: float
) -> Tensor:
    """CE + mu * contrast."""
    return loss(own.logits, labels) + mu * contrast(own.features, received.features, previous.features, tau)


def _direction(z: Tensor) -> Tensor:
    """z / |z|; 0 and without a gradient where z is 0."""
    return torch.where(z.any(-1, keepdim=True), z / torch.linalg.vector_norm(z, dim=-1, keepdim=True).clamp(min=SMALLEST), 0)


@method
class MOON(FedAvg):
    """FedAvg whose features are pulled towards the global model's, away from those of the client's previous model."""

    title = "MOON"
    authors = "Li, He, Song"
    venue = "CVPR 2021"
    algorithm = "Algorithm 1"
    category = "traditional FL: regularisation"
    presets = {"pfllib2025": {"tau": 1.0}}

    mu: float = hyper(1.0, "weight of the contrastive term", ge=0, search=(0.1, 1, 5, 10))
    tau: float = hyper(0.5, "temperature of the contrastive term", gt=0)
    aggregation: Aggregation = aggregated("weighted")

    def init(self, fed: Federation) -> MOONState:
        return MOONState(**vars(super().init(fed)), theta=fed.everyone(fed.initial()))

    def update(self, fed: Federation, s: MOONState, S: Tensor) -> MOONState:
        objective = partial(with_contrast, mu=self.mu, tau=self.tau)
        theta_S = fed.sgd(fed.rows(s.start, S), S, objective=objective, references=(fed.rows(s.w, S), s.theta[S]))
        w = fed.mean(fed.collect(theta_S, S, since=s.w), S, self.aggregation)
        return replace(s, w=w, theta=put(s.theta, S, theta_S))
