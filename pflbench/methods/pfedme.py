"""pFedMe: Personalized Federated Learning with Moreau Envelopes (T. Dinh, Tran, Nguyen; NeurIPS 2020; methods.md 1.7)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from pflbench.engine.federation import Federation
from pflbench.engine.flat import put
from pflbench.engine.requests import Argument, Grad
from pflbench.errors import UserError
from pflbench.methods.base import Aggregation, Welcome, aggregated, hyper, method
from pflbench.methods.fedavg import FedAvg, FedAvgState
from pflbench.methods.fedprox import proximal
from pflbench.spec import TrainSpec


@dataclass(frozen=True)
class PFedMeState(FedAvgState):
    personal: Tensor  # [N, P] theta_i (or w_i, see `evaluate`) as the client's last own round left it


def moreau(
    grad: Grad, *, theta: Tensor, w: Tensor, eta: float | Tensor, eta_p: float, lam: float, c2: float, K: int, reset: bool
) -> dict[str, Tensor]:
    """One mini-batch: K steps of theta on f(theta) + (lambda / 2) |theta - w|^2 + (c2 / 2) |theta|^2, then one of w.

    The gradients, written out: theta <- theta - eta_p (grad f(theta) + lambda (theta - w) + c2 theta), K times, and then
    w <- w - eta lambda (w - theta), where lambda (w - theta) is the gradient in w of the envelope's (lambda / 2) |theta - w|^2.
    """
    theta, pull = (w if reset else theta), (eta_p * lam) * w
    for _ in range(K):
        pulled = torch.add(pull, theta, alpha=1 - eta_p * (lam + c2))
        theta = pulled.sub_(grad(theta), alpha=eta_p)
    return {"theta": theta, "w": torch.lerp(w, theta, eta * lam)}


@method
class PFedMe(FedAvg):
    """Clients learn personal models theta_i near their w_i; the w_i follow them and are averaged.

    Only the cohort trains; in the authors' own code all clients do in every round, and the cohort's models are averaged.
    """

    title = "pFedMe"
    authors = "T. Dinh, Tran, Nguyen"
    venue = "NeurIPS 2020"
    algorithm = "Algorithm 1"
    category = "personalized FL: additional personal model"
    optimizer_refused = "w follows theta by the gradient of the Moreau envelope, and theta has a rate of its own"
    presets = {"fedala2022": {"evaluate": "w"}}

    eta_p: float = hyper(0.01, "step size of the personal model", gt=0, search=(0.1, 0.01, 0.001, 0.0001))
    beta: float = hyper(1.0, "the server moves this share of the way to the mean of the w_i", gt=0, search=(0.1, 0.5, 0.9, 1.0))
    lam: float = hyper(15.0, "lambda, weight of (lambda / 2) |theta - w|^2", ge=0, search=(0, 0.1, 1, 5, 10, 15, 20, 50))
    K: int = hyper(5, "steps of the personal model on every batch", ge=1, search=(1, 5, 10, 20))
    # In the authors' code, in PFLlib and in FL-bench, but in no paper; 0 is the method as printed.
    c2: float = hyper(0.001, "weight of (c2 / 2) |theta|^2", ge=0)
    theta_reset: Literal["round", "batch"] = hyper("round", "theta starts from w once a round, or anew for every batch")
    # In the authors' code and in PFLlib theta_i shares its memory with the model that w_i then overwrites: PFLlib so tested w_i.
    evaluate: Literal["theta", "w"] = hyper("theta", "the personal model: theta_i, or w_i as PFLlib tested in 2022")
    # Algorithm 1 averages uniformly; the FedALA paper's protocol weights by sample count.
    aggregation: Aggregation = aggregated("weighted")

    def check(self, train: TrainSpec) -> Iterator[str]:
        step = train.lr * self.lam
        if step >= 2:
            raise UserError(
                f"pFedMe with lr * lam = {step:g} cannot converge: w <- w - lr * lam * (w - theta) moves away from theta.",
                "Choose lr and lam so that their product is at most 1; 2 or more is refused.",
            )
        if step > 1:
            yield f"lr * lam = {step:g} is above 1: w steps beyond theta (methods.md 1.7)"
        if step == 0:
            yield "with lam = 0 the global model never moves"

    def init(self, fed: Federation) -> PFedMeState:
        return PFedMeState(**vars(super().init(fed)), personal=fed.everyone(fed.initial()))

    def update(self, fed: Federation, s: PFedMeState, S: Tensor) -> PFedMeState:
        w = fed.rows(s.start, S)
        constants: dict[str, Argument] = {"eta": fed.lr, "eta_p": self.eta_p, "lam": self.lam, "c2": self.c2, "K": self.K}
        done = fed.train_by(moreau, w, S, carry={"theta": w, "w": w}, given={**constants, "reset": self.theta_reset == "batch"})
        mean = fed.mean(fed.collect(done["w"], S, since=s.w), S, self.aggregation)
        return replace(
            s,
            w=(1 - self.beta) * s.w + self.beta * mean,
            personal=put(s.personal, S, done[self.evaluate]),
        )

    def deployed(self, s: PFedMeState) -> Tensor:
        return s.personal

    def welcome(self, fed: Federation, s: PFedMeState, new: Federation) -> Welcome:
        near = {"penalty": proximal, "anchor": s.w, "strength": self.lam}
        return Welcome(new.everyone(s.w), {"lr": self.eta_p, **near})

    def series(self, s: PFedMeState) -> dict[str, tuple[Tensor, str]]:
        return {"global": (s.w, "model")}
