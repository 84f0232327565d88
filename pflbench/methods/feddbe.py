"""FedDBE: Eliminating Domain Bias in Representation Space (Zhang et al., NeurIPS 2023; methods.md 1.28)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pflbench.engine.federation import Federation
from pflbench.engine.flat import put
from pflbench.engine.requests import Loss
from pflbench.methods.base import Aggregation, Method, aggregated, hyper, method
from pflbench.methods.extended import ExtendedModel, Values


class Biased(NamedTuple):
    logits: Tensor  # [b, K], with the client's offset
    features: Tensor  # [b, h], without it
    mean: Tensor  # [h], of the features so far: a running mean
    consensus: Tensor  # [h]


class WithOffset(ExtendedModel):
    """Columns [net | mean | offset | consensus]: the running mean is a sum over the steps, the consensus a constant."""

    def __init__(self, net: Any) -> None:
        super().__init__(net)
        self.mean, self.offset, self.consensus = (Values(self.width) for _ in range(3))

    def outputs(self, x: Tensor) -> Biased:
        z = self.features(x)
        return Biased(self.classifier(z + self.offset.value), z, self.mean.value, self.consensus.value)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x) + self.offset.value)
        return logits


def towards_consensus(loss: Loss, labels: Tensor, own: Biased, *, kappa: float, momentum: float) -> Tensor:
    """CE + (kappa / 2) * the mean square of (running mean - consensus), through which the gradient reaches this batch alone."""
    mean = (1 - momentum) * own.mean.detach() + momentum * own.features.mean(0)
    # Its value is 0, its gradient in the running mean is what that changes by.
    moves = (own.mean * (mean - own.mean).detach()).sum()
    return loss(own.logits, labels) + kappa / 2 * (mean - own.consensus).square().mean() + (moves - moves.detach())


@dataclass(frozen=True)
class FedDBEState:
    w: Tensor  # [P_g] the global model
    theta: Tensor  # [N, P] the model that each client received last, its offset, and the consensus
    consensus: Tensor  # [h] the mean of all clients' features, found before round 1


@method
class FedDBE(Method):
    """FedAvg whose clients learn an offset of their features, while the mean of the features is held at everyone's."""

    title = "FedDBE"
    authors = "Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan"
    venue = "NeurIPS 2023"
    algorithm = "Algorithm 1"
    category = "personalized FL: representation"
    own_parts = "an offset of the features, h parameters"
    ala_refused = "ALA's weights are learned with the global model's loss alone, and its module has an offset"

    # The authors' command for the 4-layer CNN on Fashion-MNIST; their code's defaults, and PFLlib's, are 0 and 0.1.
    kappa: float = hyper(50.0, "weight of the distance to the consensus", ge=0)
    momentum: float = hyper(1.0, "nu, share of a new batch in the running mean of the features", gt=0, le=1)
    aggregation: Aggregation = aggregated("weighted")

    def model(self, backbone: nn.Module) -> nn.Module:
        return WithOffset(backbone)

    def shared(self, fed: Federation) -> slice:
        return fed.flat.columns(["net"])

    def init(self, fed: Federation) -> FedDBEState:
        first = fed.initial()
        return FedDBEState(first[self.shared(fed)], fed.everyone(first), first[fed.flat.columns(["consensus"])])

    def receive(self, fed: Federation, s: FedDBEState, S: Tensor) -> FedDBEState:
        if fed.t == 1:
            s = replace(s, consensus=self.find_consensus(fed, s.theta))
        theta_S, consensus = s.theta[S], fed.flat.columns(["consensus"])
        theta_S[:, self.shared(fed)] = fed.send(s.w, S)
        theta_S[:, consensus] = s.consensus
        return replace(s, theta=put(s.theta, S, theta_S))

    def find_consensus(self, fed: Federation, theta: Tensor) -> Tensor:
        """[h]. Before round 1 all clients train once, for the mean of their features; nothing else of that is kept."""
        aside, S, mean = fed.scratch_copy(), fed.all_trainable(), fed.flat.columns(["mean"])
        plan = aside.batches(S, purpose="batches/consensus")
        some = torch.from_numpy(plan.steps() > 0).to(fed.device)
        objective = partial(towards_consensus, kappa=0.0, momentum=self.momentum)
        trained = aside.sgd(theta[S], S, plan=plan, columns=slice(0, mean.stop), summed=mean, objective=objective)[some]
        fed.collect(trained[:, :0], S[some], scalars=mean.stop - mean.start)
        fed.send(trained[:, :0], S, scalars=mean.stop - mean.start)
        return fed.mean(trained[:, mean], S[some])

    def update(self, fed: Federation, s: FedDBEState, S: Tensor) -> FedDBEState:
        mean, consensus, theta_S = fed.flat.columns(["mean"]), fed.flat.columns(["consensus"]), s.theta[S]
        theta_S[:, mean] = 0
        objective = partial(towards_consensus, kappa=self.kappa, momentum=self.momentum)
        theta_S = fed.sgd(theta_S, S, columns=slice(0, consensus.start), summed=mean, objective=objective)
        w = fed.mean(fed.collect(theta_S[:, self.shared(fed)], S, since=s.w), S, self.aggregation)
        return replace(s, w=w, theta=put(s.theta, S, theta_S))

    def deployed(self, s: FedDBEState) -> Tensor:
        return s.theta

    def series(self, s: FedDBEState) -> dict[str, tuple[Tensor, str]]:
        return {"global": (nn.functional.pad(s.w, (0, s.theta.shape[1] - len(s.w))), "model")}
