"""FedProto: Federated Prototype Learning across Heterogeneous Clients (Tan et al., AAAI 2022; methods.md 1.26)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pflbench.engine.federation import Federation
from pflbench.engine.flat import put
from pflbench.engine.requests import Loss
from pflbench.methods.base import Method, hyper, method
from pflbench.methods.extended import ExtendedModel, Values

FARTHER = 100.0  # a class without a prototype is so much farther away than any other


class Seen(NamedTuple):
    logits: Tensor  # [b, K]
    features: Tensor  # [b, h]
    sums: Tensor  # [K, h + 1], of the features so far, and of the samples
    prototypes: Tensor  # [K, h]
    known: Tensor  # [K], 1 for a class that has a prototype, else 0


class WithPrototypes(ExtendedModel):
    """Columns [net | sums | prototypes | known]; the last two are constants of a round. Tests take the nearest prototype."""

    def __init__(self, net: Any) -> None:
        super().__init__(net)
        self.sums = Values(self.classes, self.width + 1)
        self.prototypes = Values(self.classes, self.width)
        self.known = Values(self.classes)

    def outputs(self, x: Tensor) -> Seen:
        z = self.features(x)
        return Seen(self.classifier(z), z, self.sums.value, self.prototypes.value, self.known.value)

    def forward(self, x: Tensor) -> Tensor:
        z, known = self.features(x), self.known.value
        near = -(z.unsqueeze(-2) - self.prototypes.value).square().mean(-1)
        far = near.amin(-1, keepdim=True) - FARTHER
        return torch.where(known.any(), near.where(known > 0, far), self.classifier(z))


def towards_prototypes(loss: Loss, labels: Tensor, own: Seen, *, lam: float) -> Tensor:
    """CE + lambda * mse(z, the prototypes of the batch's classes); sums grow by each class's features and samples."""
    z = own.features
    target = torch.where(own.known[labels].unsqueeze(1) > 0, own.prototypes[labels], z.detach())
    seen = torch.cat([z, torch.ones_like(z[:, :1])], dim=1).detach()
    # Its value is 0, its gradient in the sums is what they grow by.
    grows = (own.sums[labels] * seen).sum()
    return loss(own.logits, labels) + lam * F.mse_loss(z, target) + (grows - grows.detach())


@dataclass(frozen=True)
class FedProtoState:
    prototypes: Tensor  # [K, h + 1] the global prototypes, and 1 for each class that has one
    theta: Tensor  # [N, P] the clients' models, with the prototypes that each received last


@method
class FedProto(Method):
    """No model travels, only the mean feature of each class: features are pulled towards it, and it classifies."""

    title = "FedProto"
    authors = "Tan, Long, Liu, Zhou, Lu, Jiang, Zhang"
    venue = "AAAI 2022"
    algorithm = "Algorithm 1"
    category = "personalized FL: prototypes"
    own_parts = "K prototypes of h numbers, not trained"
    ala_refused = "its clients receive no model that ALA could mix"
    shared_models = ()

    # The authors' code pulls with weight 1; PFLlib's authors use 10 elsewhere, since mse divides by h.
    lam: float = hyper(1.0, "lambda, weight of the distance to the prototypes", ge=0)
    prototypes: Literal["along", "after"] = hyper("along", "means of the features along local training, or of the trained model")
    weights: Literal["uniform", "samples"] = hyper(
        "uniform", "mean of the clients' prototypes: plain, or by samples of the class"
    )
    keep: bool = hyper(False, "a class that the cohort does not have keeps its last prototype (false: it has none)")
    classes: Literal["all", "own"] = hyper("all", "tests choose among all classes, or among those of the client's training data")

    def model(self, backbone: nn.Module) -> nn.Module:
        return WithPrototypes(backbone)

    def shared(self, fed: Federation) -> slice:
        return slice(0, 0)

    def init(self, fed: Federation) -> FedProtoState:
        first = fed.initial()
        return FedProtoState(first.new_zeros(fed.flat.classes, fed.flat.width + 1), fed.everyone(first))

    def receive(self, fed: Federation, s: FedProtoState, S: Tensor) -> FedProtoState:
        C, known_S = s.prototypes[:, :-1], s.prototypes[:, -1].expand(len(S), -1)
        fed.send(C[:0].flatten(), S, scalars=int(s.prototypes[:, -1].sum()) * C.shape[1])
        if self.classes == "own":
            known_S = known_S * (fed.class_counts(S) > 0)
        own_S = s.theta[S, : fed.flat.columns(["prototypes"]).start]
        theta_S = torch.cat([own_S, C.flatten().expand(len(S), -1), known_S], dim=1)
        return FedProtoState(s.prototypes, put(s.theta, S, theta_S))

    def update(self, fed: Federation, s: FedProtoState, S: Tensor) -> FedProtoState:
        sums, theta_S = fed.flat.columns(["sums"]), s.theta[S]
        theta_S[:, sums] = 0
        objective = partial(towards_prototypes, lam=self.lam)
        theta_S = fed.sgd(theta_S, S, columns=slice(0, sums.stop), summed=sums, objective=objective)
        prototypes = self.aggregate(fed, s.prototypes, S, *self.of_clients(fed, theta_S, S))
        return FedProtoState(prototypes, put(s.theta, S, theta_S))

    def of_clients(self, fed: Federation, theta_S: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
        """Each client's mean features of each class [c, K, h], uploaded, and whether it has any [c, K]."""
        if self.prototypes == "after":
            means, _, counts = fed.class_means(theta_S, S)
        else:
            sums = theta_S[:, fed.flat.columns(["sums"])].view(len(S), fed.flat.classes, -1)
            counts = sums[..., -1]
            means = sums[..., :-1] / counts.clamp(min=1).unsqueeze(-1)
        known = counts > 0
        fed.require_finite(means, S, "upload")
        fed.collect(theta_S[:, :0], S, scalars=fed.flat.width * known.sum(1).cpu().numpy())
        return means, known

    def aggregate(self, fed: Federation, before: Tensor, S: Tensor, means: Tensor, known: Tensor) -> Tensor:
        """The global prototypes, [K, h + 1]: the mean over the clients that sent one."""
        weights = known.to(means)
        if self.weights == "samples":
            weights = weights * fed.class_counts(S)
        total = weights.sum(0).unsqueeze(-1)
        some = total > 0
        C = (weights.unsqueeze(-1) * means).sum(0) / total.where(some, 1)
        found = torch.cat([C, some.to(C)], dim=1)
        return found.where(some, before) if self.keep else found

    def deployed(self, s: FedProtoState) -> Tensor:
        return s.theta

    def series(self, s: FedProtoState) -> dict[str, tuple[Tensor, str]]:
        head = s.theta.clone()
        head[:, -len(s.prototypes) :] = 0  # without prototypes, tests take the head
        return {"head": (head, "model")}
