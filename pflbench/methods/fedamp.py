"""FedAMP: Personalized Cross-Silo Federated Learning on Non-IID Data (Huang et al., AAAI 2021, Algorithm 1; methods.md 1.9)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from pflbench.engine.federation import Federation
from pflbench.engine.flat import put
from pflbench.errors import UserError
from pflbench.methods.attention import mixed, squared_distances
from pflbench.methods.base import Method, hyper, method
from pflbench.methods.fedprox import proximal
from pflbench.spec import TrainSpec

ROUNDING = 1e-9  # of weights that sum to 1


@dataclass(frozen=True)
class AMPState:
    w: Tensor  # [N, P] the personal models, as they were uploaded last
    u: Tensor  # [N, P] the cloud models, as they were downloaded last
    start: Tensor  # [N, P] the models that local training starts from: w, or after reception the cloud models


@method
class MessagePassing(Method):
    """The base class of FedAMP and HeurFedAMP, which differ in their attention."""

    authors = "Huang, Chu, Zhou, Wang, Liu, Pei, Zhang"
    venue = "AAAI 2021"
    category = "personalized FL: personalized aggregation"
    upload_refused = "its server and its clients have one copy of each client's model"
    depends_on_cohort = True
    ala_decides = {"start": "cloud"}
    shared_models = ()  # a client's BatchNorm buffers belong to its personal model, which no other client gets

    alpha_k: float = hyper(1000.0, "step size of the server on the attention term", gt=0, search=(10000, 1000, 100, 10, 1, 0.1))
    alpha_decay: float = hyper(1.0, "alpha_k is multiplied by this every alpha_every rounds", gt=0, le=1)
    alpha_every: int = hyper(30, "see alpha_decay", ge=1)
    lam: float = hyper(1.0, "lambda, of the penalty (lambda / (2 alpha_k)) |w - u|^2", ge=0, search=(100, 10, 1, 0.1, 0.01))
    # PFLlib starts from the client's own model, FLGo from the cloud model.
    start: Literal["own", "cloud"] = hyper("own", "local training starts from the client's own model, or from its cloud model")
    partial: bool = hyper(False, "allow a join ratio below 1, not defined by the paper: a cohort's clouds are made of its models")

    @abstractmethod
    def attention(self, w: Tensor, t: int) -> Tensor:
        """xi_ij for j != i, and 0 on the diagonal, [c, c] in float64, of models w [c, P] in round t. xi_ii is the rest of 1."""

    def step_size(self, t: int) -> float:
        """alpha_k of round t = 1, 2, ..."""
        return self.alpha_k * self.alpha_decay ** ((t - 1) // self.alpha_every)

    def check(self, train: TrainSpec) -> Iterator[str]:
        if not train.everyone_joins and not self.partial:
            raise UserError(
                f"{self.title} is a cross-silo method: all clients take part in every round, "
                f"but the join ratio is {train.join_ratio_low or train.join_ratio:g}.",
                f"Use --join-ratio 1, or --set {self.title.lower()}.partial=true: "
                "then each round's clients attend to one another only.",
            )
        if train.optimizer == "adamw":  # its steps do not grow with the penalty
            return
        # Of w - u, a step of the penalty leaves 1 - pull. Momentum bears 1 + momentum times as much.
        of_round = {t: train.lr_of(t) * self.lam / self.step_size(t) for t in range(1, train.rounds + 1)}
        t = max(of_round, key=lambda t: (of_round[t], t))
        pull = of_round[t] / (1 + (train.momentum or 0))
        if pull >= 2:
            raise UserError(
                f"{self.title} with lr * lam / alpha_k = {pull:.3g} in round {t} cannot converge: "
                "each step moves further beyond the cloud model.",
                "Choose them so that it is at most 1" + (", or fewer rounds." if self.alpha_decay < 1 else "."),
            )
        if pull > 1:
            yield f"lr * lam / alpha_k = {pull:.3g} is above 1 in round {t}: steps go beyond the cloud model"

    def init(self, fed: Federation) -> AMPState:
        w = fed.everyone(fed.initial())
        return AMPState(w=w, u=w, start=w)

    def receive(self, fed: Federation, s: AMPState, S: Tensor) -> AMPState:
        # Nothing has been uploaded before round 1: every cloud model is Theta^0.
        u_S = fed.send(s.w[S], S) if fed.t == 1 else self.clouds(fed, s, S)
        start = fed.load(u_S, S, others=s.w) if self.start == "cloud" else s.w
        return AMPState(w=s.w, u=put(s.u, S, u_S), start=start)

    def update(self, fed: Federation, s: AMPState, S: Tensor) -> AMPState:
        w_S = fed.sgd(s.start[S], S, penalty=proximal, anchor=s.u[S], strength=self.lam / self.step_size(fed.t))
        w = put(s.w, S, fed.collect(w_S, S))
        return replace(s, w=w, start=w)

    def clouds(self, fed: Federation, s: AMPState, S: Tensor) -> Tensor:
        """u_i = sum_j xi_ij w_j over the cohort, [c, P]."""
        w_S = s.w[S]
        return fed.send(mixed(w_S, w_S, self.observed(fed, S, w_S)), S)

    def observed(self, fed: Federation, S: Tensor, w_S: Tensor) -> Tensor:
        """The attention. Keeps for figures: min xi_ii, the share of clients that attend to no other, xi [N, N], NaN outside S."""
        others = self.attention(w_S, fed.t)
        own = 1 - others.sum(dim=1)
        fed.ledger.observe("attention_self_min", own.min())
        if own.min() < -ROUNDING:
            fed.ledger.note(
                "no convex combination",
                f"from round {fed.t} on clouds are no convex combinations of the clients' models, but beyond the others': "
                f"the smallest own weight xi_ii is {own.min():.3g}.",
            )
        fed.ledger.observe("attention_zero_rows", (others == 0).all(dim=1).double().mean())
        xi = torch.full((fed.size, fed.size), torch.nan, dtype=torch.float64, device=fed.device)
        xi[S.unsqueeze(1), S] = others + own.diag()
        fed.observe("attention", xi)
        return others

    def deployed(self, s: AMPState) -> Tensor:
        return s.w


@method
class FedAMP(MessagePassing):
    """Each client is drawn to a cloud model of its own, to which others' models contribute the more the closer they are."""

    title = "FedAMP"
    algorithm = "Algorithm 1"
    # With the published values this diverges in round 3.
    presets = {"fedala2022": {"self_term": "prev_cloud"}}
    # Its clients train on from their own model: ALA's result takes its place, as if W = 0 became W = 1 and began to learn.
    ala_decides = {"start": "cloud", "xi_clip": True}

    sigma: float = hyper(0.1, "scale of A(x) = 1 - exp(-x / sigma)", gt=0, search=(1, 0.5, 0.1, 0.05, 0.01))
    self_term: Literal["own", "prev_cloud"] = hyper("own", "xi_ii weighs w_i, or as in PFLlib of 2022 the previous u_i")
    # With the paper's values xi_ij is up to 10^4: clouds of close models are extrapolations. The weak pull forgives it.
    xi_clip: bool = hyper(False, "scale the others' weights down where they sum to more than 1")

    def check(self, train: TrainSpec) -> Iterator[str]:
        yield from super().check(train)
        if self.self_term == "prev_cloud" and not self.xi_clip:
            yield (
                "self_term=prev_cloud, as in PFLlib of 2022, diverges in round 3 on CIFAR-10 with the published values: "
                "it cannot be what made the paper's 88.70"
            )

    def attention(self, w: Tensor, t: int) -> Tensor:
        """alpha_k A'(|w_i - w_j|^2)."""
        # As printed: the factor 2 in the gradient of |w_i - w_j|^2 counts as part of alpha_k.
        xi = self.step_size(t) / self.sigma * torch.exp(-squared_distances(w) / self.sigma)
        xi.fill_diagonal_(0)
        return xi / xi.sum(dim=1, keepdim=True).clamp(min=1) if self.xi_clip else xi

    def clouds(self, fed: Federation, s: AMPState, S: Tensor) -> Tensor:
        if self.self_term == "own":
            return super().clouds(fed, s, S)
        # The server sends the others' part and xi_ii; the client adds its own.
        return fed.send(mixed(s.u[S], s.w[S], self.observed(fed, S, s.w[S])), S, scalars=1)
