"""GPFL: Simultaneously Learning Global and Personalized Feature Information (Zhang et al.; ICCV 2023; methods.md 1.29)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pflbench.engine.federation import Federation
from pflbench.engine.flat import put
from pflbench.engine.requests import Loss
from pflbench.methods.base import Aggregation, Method, aggregated, hyper, method
from pflbench.methods.extended import ExtendedModel, Values, base_with

SHARED = ("gce", "cov")  # class embeddings and valve travel with the base


class Valve(nn.Module):
    """The conditional valve (CoV): scales and shifts features [b, h] by what it makes of a condition [h]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma, self.beta = (nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.LayerNorm(width)) for _ in range(2))

    def forward(self, z: Tensor, condition: Tensor) -> Tensor:
        return F.relu(z * (self.gamma(condition) + 1) + self.beta(condition))


class Guided(NamedTuple):
    logits: Tensor  # [b, K], the head's, of the personal features
    cosines: Tensor  # [b, K], of the generic features and the class embeddings
    generic: Tensor  # [b, h], the generic features
    anchors: Tensor  # [K, h], the class embeddings as they were received


class GuidedNet(ExtendedModel):
    """Columns [net | class embeddings | valve | anchors | personal and generic condition]; from the anchors on untrained."""

    def __init__(self, net: Any) -> None:
        super().__init__(net)
        self.gce = Values(self.classes, self.width)
        nn.init.normal_(self.gce.value)
        self.cov = Valve(self.width)
        self.anchors = Values(self.classes, self.width)
        self.personal, self.generic = Values(self.width), Values(self.width)

    def outputs(self, x: Tensor) -> Guided:
        z = self.features(x)
        generic = self.cov(z, self.generic.value)
        cosines = F.normalize(generic, dim=-1) @ F.normalize(self.gce.value, dim=-1).mT
        return Guided(self.classifier(self.cov(z, self.personal.value)), cosines, generic, self.anchors.value)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.cov(self.features(x), self.personal.value))
        return logits


def guided(loss: Loss, labels: Tensor, own: Guided, *, lam: float) -> Tensor:
    """The personal features' loss, and for the generic ones that of the cosines and the distance to their classes' anchors."""
    distance: Tensor = torch.linalg.vector_norm(own.generic - own.anchors[labels])  # of the whole batch
    return loss(own.logits, labels) + loss(own.cosines, labels) + lam * distance


def decay(w: Tensor, *, mu: float, start: int, stop: int) -> tuple[Tensor, Tensor]:
    """Gradient and value of mu / 2 * |w|^2 over the columns from start to stop."""
    gradient = torch.zeros_like(w)
    gradient[..., start:stop] = mu * w[..., start:stop]
    return gradient, (gradient * w).sum(-1) / 2


@dataclass(frozen=True)
class GPFLState:
    w: Tensor  # [P_b + P_x] the base, the class embeddings and the valve
    theta: Tensor  # [N, P] what each client received last, its head, and the conditions of the embeddings that it trained last
    trained: Tensor  # [N] whether a client has trained yet


@method
class GPFL(Method):
    """A valve makes generic features, guided by shared class embeddings, and personal ones, on which an own head trains."""

    title = "GPFL"
    authors = "Zhang, Hua, Wang, Song, Xue, Ma, Cao, Guan"
    venue = "ICCV 2023"
    algorithm = "Algorithm 1"
    category = "personalized FL: model splitting"
    own_parts = "class embeddings and a valve, K h + 2 h² + 6 h parameters, shared"
    ala_refused = "its parts that travel do not lie side by side, and ALA's loss is that of a model without its valve"

    lam: float = hyper(0.01, "weight of the generic features' distance to their classes' embeddings", ge=0)
    mu: float = hyper(0.1, "weight decay of class embeddings and valve", ge=0)
    conditions: Literal["own", "received"] = hyper(
        "own", "conditions of the valve from the class embeddings that the client trained last, or that it received"
    )
    aggregation: Aggregation = aggregated("weighted")

    def model(self, backbone: nn.Module) -> nn.Module:
        return GuidedNet(backbone)

    def shared(self, fed: Federation) -> Tensor:
        """The base, the class embeddings and the valve."""
        return base_with(fed, *SHARED)

    def init(self, fed: Federation) -> GPFLState:
        trained = torch.zeros(fed.size, dtype=torch.bool, device=fed.device)
        return GPFLState(fed.initial()[self.shared(fed)], fed.everyone(fed.initial()), trained)

    def receive(self, fed: Federation, s: GPFLState, S: Tensor) -> GPFLState:
        gce, anchors, theta_S = fed.flat.columns(["gce"]), fed.flat.columns(["anchors"]), s.theta[S]
        theta_S[:, self.shared(fed)] = fed.send(s.w, S)
        theta_S[:, anchors] = theta_S[:, gce]
        # A client that has not trained yet has no embeddings of its own; in round 1 its conditions are 0.
        anew = ~s.trained[S, None] & (fed.t > 1) | (self.conditions == "received")
        theta_S[:, anchors.stop :] = torch.where(anew, means(fed, theta_S, S), theta_S[:, anchors.stop :])
        return replace(s, theta=put(s.theta, S, theta_S))

    def update(self, fed: Federation, s: GPFLState, S: Tensor) -> GPFLState:
        extra, anchors = fed.flat.columns(SHARED), fed.flat.columns(["anchors"])
        objective, penalty = partial(guided, lam=self.lam), partial(decay, mu=self.mu, start=extra.start, stop=extra.stop)
        theta_S = fed.sgd(s.theta[S], S, columns=slice(0, extra.stop), objective=objective, penalty=penalty)
        w = fed.mean(fed.collect(theta_S[:, self.shared(fed)], S, since=s.w), S, self.aggregation)
        theta_S[:, anchors.stop :] = means(fed, theta_S, S)
        return GPFLState(w, put(s.theta, S, theta_S), put(s.trained, S, torch.ones_like(s.trained[S])))

    def deployed(self, s: GPFLState) -> Tensor:
        return s.theta


def means(fed: Federation, rows: Tensor, S: Tensor) -> Tensor:
    """Conditions from the rows' class embeddings, [c, 2h]: their means by the client's class counts, and over all classes."""
    embeddings = rows[:, fed.flat.columns(["gce"])].reshape(len(rows), -1, fed.flat.width)
    counts = fed.class_counts(S).unsqueeze(2)
    by_counts = (counts * embeddings).sum(dim=1) / counts.sum(dim=1).clamp(min=1)
    return torch.cat([by_counts, embeddings.mean(dim=1)], dim=1)
