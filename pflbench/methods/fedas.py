"""FedAS: Bridging Inconsistency in Personalized Federated Learning (Yang, Huang, Ye; CVPR 2024, Algorithm 1; methods.md 1.32)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from pflbench.engine.federation import Federation
from pflbench.engine.flat import put, sgd_step
from pflbench.engine.requests import Grad, Loss
from pflbench.methods.base import Method, hyper, method
from pflbench.methods.extended import ClassTargets, Targeted
from pflbench.methods.fedrep import below_head


@dataclass(frozen=True)
class FedASState:
    base: Tensor  # [P_b] the global base
    theta: Tensor  # [N, P] the clients' models as trained last
    start: Tensor  # [N, P] the aligned base of each client's last reception, its own head, and its targets then


def to_own_means(loss: Loss, labels: Tensor, own: Targeted) -> Tensor:
    """Sum over the batch's classes of the mean squared distance of a class's features to its target."""
    of_same_class = (labels.unsqueeze(1) == labels).sum(1)
    return ((own.features - own.targets[labels]).square().mean(1) / of_same_class).sum()


def align(grad: Grad, *, base: Tensor, rate: float) -> dict[str, Tensor]:
    """One step of plain SGD, whatever the protocol's optimizer is."""
    return {"base": sgd_step(base, grad(base), rate)}


def add_square(grad: Grad, *, total: Tensor, theta: Tensor) -> dict[str, Tensor]:
    """Adds the squared norm of a batch's gradient."""
    return {"total": total + grad(theta).square().sum(-1, keepdim=True)}


@method
class FedAS(Method):
    """FedPer that first aligns the received base with the client's own features, and weighs clients by Fisher information."""

    title = "FedAS"
    authors = "Yang, Huang, Ye"
    venue = "CVPR 2024"
    algorithm = "Algorithm 1"
    category = "personalized FL: model splitting"
    shared_models = ()  # the model that is tested is the client's own
    own_parts = "K class means of h numbers, not trained"
    ala_refused = "the alignment of the received base is its own initialisation"

    align_lr: float = hyper(0.01, "rate of the alignment, which is plain SGD", ge=0)
    align_epochs: int = hyper(1, "epochs of the alignment", ge=0)
    align_batch: int = hyper(16, "batch size of the alignment", ge=1)
    weights: Literal["fisher", "samples"] = hyper(
        "fisher", "weigh clients by the trace of their Fisher information, or by samples"
    )
    evaluate: Literal["own", "aligned"] = hyper("own", "test the model as trained last, or with the received and aligned base")

    def model(self, backbone: nn.Module) -> nn.Module:
        return ClassTargets(backbone)

    def shared(self, fed: Federation) -> slice:
        return below_head(fed, self.title)

    def init(self, fed: Federation) -> FedASState:
        theta = fed.everyone(fed.initial())
        return FedASState(base=fed.initial()[self.shared(fed)], theta=theta, start=theta)

    def receive(self, fed: Federation, s: FedASState, S: Tensor) -> FedASState:
        """The features' means are those of the client's own model; BatchNorm's new statistics are thrown away."""
        base, targets = self.shared(fed), fed.flat.columns(["targets"])
        start_S = s.theta[S]
        start_S[:, targets] = fed.class_means(start_S, S)[0].flatten(1)
        start_S[:, base] = fed.send(s.base, S)
        plan = fed.batches(S, self.align_epochs, purpose="batches/align", batch_size=self.align_batch)
        with fed.inner_loop(S, plan, start_S, columns=base) as loop:
            carry = {"base": start_S[:, base]}
            done = fed.scan(align, loop, carry=carry, given={"rate": self.align_lr}, objective=to_own_means)
        return replace(s, start=put(s.start, S, torch.cat([done.carry["base"], start_S[:, base.stop :]], dim=1)))

    def update(self, fed: Federation, s: FedASState, S: Tensor) -> FedASState:
        theta_S, fisher = fed.sgd(s.start[S], S, columns=fed.flat.columns(["net"])), self.weights == "fisher"
        base_S = fed.collect(theta_S[:, self.shared(fed)], S, scalars=int(fisher), since=s.base)
        shares = fed.shares(S)
        if fisher:
            traces = self.traces(fed, theta_S, S)
            shares = torch.where(traces.any(), traces / traces.sum(), shares)
        return replace(s, base=shares @ base_S, theta=put(s.theta, S, theta_S))

    def traces(self, fed: Federation, theta_S: Tensor, S: Tensor) -> Tensor:
        """Traces of the Fisher information: sums over an epoch's batches of |gradient|^2, [c]."""
        net = fed.flat.columns(["net"])
        with fed.inner_loop(S, fed.batches(S, 1, purpose="batches/fisher"), theta_S, columns=net) as loop:
            carry = {"total": theta_S.new_zeros(len(S), 1)}
            return fed.scan(add_square, loop, carry=carry, given={"theta": theta_S[:, net]}).carry["total"].squeeze(1)

    @property
    def random_test(self) -> bool:  # type: ignore[override]
        return self.evaluate == "aligned"

    def deployed(self, s: FedASState) -> Tensor:
        return s.theta if self.evaluate == "own" else s.start
