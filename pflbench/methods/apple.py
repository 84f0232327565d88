"""APPLE: Adaptive Personalized Cross-Silo Federated Learning (Luo and Wu, IJCAI 2022, Algorithm 1; methods.md 1.12)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from pflbench.engine.federation import Federation
from pflbench.engine.flat import Flat, put, sgd_step
from pflbench.engine.requests import Argument, Grad, Shared
from pflbench.errors import UserError
from pflbench.methods.base import Count, Method, hyper, method
from pflbench.spec import RunSpec, TrainSpec, Value


@dataclass(frozen=True)
class APPLEState:
    cores: Tensor  # [N, P] the core models w_j
    p: Tensor  # [N, N] directed relationships: row i is the client's p_i
    personal: Tensor  # [N, P] sum_j p_ij w_j as rebuilt at the end of each client's last round


def personal_model(p: Tensor, core: Tensor, own: Tensor, cores: Tensor) -> Tensor:
    """sum_j p_ij w_j. own [..., N] marks the client itself, whose core has moved on from its row of `cores` [N, P]."""
    return torch.addcmul(p.masked_fill(own, 0) @ cores, of_own(p, own), core)


def of_own(p: Tensor, own: Tensor) -> Tensor:
    """p_ii, [..., 1]."""
    return (p * own).sum(-1, keepdim=True)


def step(
    grad: Grad,
    *,
    core: Tensor,
    p: Tensor,
    own: Tensor,
    cores: Tensor,
    p_0: Tensor,
    eta_1: float | Tensor,
    eta_2: float,
    pull: Tensor,
    weigh: Tensor | None = None,
    momentum: float = 0.0,
    velocity: Tensor | None = None,
) -> dict[str, Tensor]:
    """One mini-batch: the client's core and its relationships descend at once. pull: lambda(r) * mu, [..., 1]."""
    G = grad(personal_model(p, core, own, cores))
    D = G if weigh is None else G * weigh
    slope = torch.where(own, torch.linalg.vecdot(D, core).unsqueeze(-1), D @ cores.T)
    # A client without data has no part in anything: its relationship begins at 0 and stays there.
    after = {"p": p - eta_2 * (slope + pull * (p - p_0)).where(p_0 > 0, 0)}
    if velocity is None:
        return {"core": torch.addcmul(core, -eta_1 * of_own(p, own), G), **after}
    after["velocity"] = torch.addcmul(momentum * velocity, of_own(p, own), G)
    return {"core": sgd_step(core, after["velocity"], eta_1), **after}


@method
class APPLE(Method):
    """Each client learns how much of every client's core model its personal model takes, and only its own core with it."""

    title = "APPLE"
    authors = "Luo, Wu"
    venue = "IJCAI 2022"
    algorithm = "Algorithm 1"
    category = "personalized FL: learned aggregation"
    upload_refused = "its server and its clients have one copy of each client's model"
    ala_refused = "its clients download several models, and ALA mixes one with the local model"
    optimizer_refused = "cores and relationships descend at once; momentum is a hyperparameter of its own, apple.momentum"
    # The buffers are those of the personal model, which does not travel.
    shared_models = ()

    eta_2: float = hyper(0.01, "rate of the relationships p", ge=0, search=(0.1, 0.05, 0.01, 0.005, 0.001))
    mu: float = hyper(0.1, "weight of (mu / 2) |p - p_0|^2", ge=0, search=(1, 0.5, 0.1, 0.05, 0.01, 0.005, 0.001))
    L: float = hyper(0.2, "share of rounds until lambda(r) has fallen to 0", ge=0, le=1, search=tuple(k / 10 for k in range(11)))
    scheduler: Literal["cos", "exp"] = hyper("cos", "how lambda(r) falls: half a cosine, or 0.001^(r / R_L)")
    M: Count | Literal["all"] = hyper(
        "all", "core models that a client downloads in a round: all N, and no other number is defined"
    )
    # As in PFLlib, since p_ii, with which the rate is multiplied, is about 1 / N; the FedALA paper does not say.
    scale_lr: bool = hyper(True, "eta_1 = N * lr for the core models, else lr")
    # PFLlib's mean is orders of magnitude smaller: for where <G, w_j>, which grows with the model, is unstable.
    p_grad: Literal["inner", "mean"] = hyper("inner", "gradient of p_ij: <G, w_j>, or its mean within and then over the tensors")
    p_init: Literal["size", "uniform"] = hyper("size", "p begins at p_0, by sample count, or at 1 / N")
    momentum: float = hyper(0.0, "momentum of the core model's SGD, anew in each round (the authors' code: 0.9)", ge=0, lt=1)

    def check(self, train: TrainSpec) -> Iterator[str]:
        if not train.everyone_joins:
            raise UserError(
                "APPLE is a cross-silo method: all clients take part in every round, "
                f"but the join ratio is {train.join_ratio_low or train.join_ratio}.",
                "Use --join-ratio 1.",
            )
        yield from ()

    def init(self, fed: Federation) -> APPLEState:
        if self.M not in ("all", fed.size):
            raise UserError(f"M = {self.M}, but APPLE's clients download the core models of all {fed.size}.", "Use M=all.")
        p = fed.n / fed.n.sum()
        if self.p_init == "uniform":
            p = torch.full_like(p, 1 / len(fed.candidates())).where(p > 0, 0)
        return APPLEState(cores=fed.everyone(fed.initial()), p=fed.everyone(p), personal=fed.everyone(fed.initial()))

    def receive(self, fed: Federation, s: APPLEState, S: Tensor) -> APPLEState:
        fed.send(s.cores, S, models=len(fed.candidates()))
        if self.scale_lr and (rate := fed.protocol.lr * fed.size) >= 1:
            fed.ledger.note(
                "large rate",
                f"the core models' rate is N * lr = {rate:.3g}: from 1 on training has been seen to diverge. "
                "A smaller --lr, or --set apple.scale_lr=false, avoids that.",
            )
        return s

    def update(self, fed: Federation, s: APPLEState, S: Tensor) -> APPLEState:
        core_S, p_S = s.cores[S], s.p[S]
        own = S.unsqueeze(1) == torch.arange(fed.size, device=fed.device)
        given: dict[str, Argument] = {
            "own": own,
            "cores": Shared(s.cores),
            "p_0": fed.n / fed.n.sum(),
            "eta_1": fed.lr * (fed.size if self.scale_lr else 1),
            "eta_2": self.eta_2,
            "pull": p_S.new_full((len(S), 1), self.lambda_(fed) * self.mu),  # no constant: a captured step would be a new one
        }
        carry = {"core": core_S, "p": p_S}
        if self.p_grad == "mean":
            given["weigh"] = mean_of_means(fed.flat).to(core_S)
        if self.momentum:
            given["momentum"], carry["velocity"] = self.momentum, torch.zeros_like(core_S)
        done = fed.train_by(step, core_S, S, carry=carry, given=given)
        personal_S = personal_model(done["p"], done["core"], own, s.cores)
        p = put(s.p, S, done["p"])
        fed.ledger.observe("relationships_max", p.abs().amax(1))
        fed.observe("relationships", p)
        return replace(
            s,
            cores=put(s.cores, S, fed.collect(done["core"], S)),
            p=p,
            personal=put(s.personal, S, personal_S),
        )

    def deployed(self, s: APPLEState) -> Tensor:
        return s.personal

    def canonical_values(self, spec: RunSpec) -> Mapping[str, Value]:
        return {"M": "all"} if spec.training_clients == self.M else {}

    def lambda_(self, fed: Federation) -> float:
        """lambda(r) in round r = t - 1."""
        r, R_L = fed.t - 1, self.L * fed.protocol.rounds
        if r >= R_L:
            return 0.0
        return (math.cos(math.pi * r / R_L) + 1) / 2 if self.scheduler == "cos" else 0.001 ** (r / R_L)


def mean_of_means(flat: Flat) -> Tensor:
    """[P]: with these weights a sum over all parameters is the mean over the tensors of each tensor's mean."""
    sizes = torch.tensor([e.stop - e.start for e in flat.parameters])
    return (1 / (len(sizes) * sizes.double())).repeat_interleave(sizes)
