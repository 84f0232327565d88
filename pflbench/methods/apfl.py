"""APFL: Adaptive Personalized Federated Learning (Deng, Kamani, Mahdavi; arXiv:2003.13461, Algorithm 1; methods.md 1.24)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from pflbench.engine.federation import Federation
from pflbench.engine.flat import put, sgd_step
from pflbench.engine.requests import Grad, StepArguments
from pflbench.methods.base import Aggregation, aggregated, hyper, method
from pflbench.methods.fedavg import FedAvg, FedAvgState


@dataclass(frozen=True)
class APFLState(FedAvgState):
    v: Tensor  # [N, P] the clients' own models
    alpha: Tensor  # [N, 1] the share of the own model in the mixture
    mixed: Tensor  # [N, P] alpha v + (1 - alpha) Theta, which is tested


def mixed_step(
    grad: Grad, *, w: Tensor, v: Tensor, alpha: Tensor, adapts: Tensor, eta: float | Tensor, decay: float
) -> dict[str, Tensor]:
    """w descends on f(w); v and alpha on f(alpha v + (1 - alpha) w), by the chain rule. adapts: 1 where alpha moves, else 0."""
    g_w, G = grad(w), grad(torch.lerp(w, v, alpha), of=1)
    slope = torch.linalg.vecdot(v - w, G).unsqueeze(-1) + decay * alpha
    moved = (alpha - eta * adapts * slope).clamp(0, 1)
    return {"w": sgd_step(w, g_w, eta), "v": sgd_step(v, alpha * G, eta), "alpha": moved}


def step_of_pfllib(
    grad: Grad, *, w: Tensor, v: Tensor, alpha: Tensor, adapts: Tensor, eta: float | Tensor, decay: float
) -> dict[str, Tensor]:
    """w descends on f(w), v on f(v), and then alpha along a mixture of both gradients."""
    g_w, g_v = grad(w), grad(v, of=1)
    w, v = sgd_step(w, g_w, eta), sgd_step(v, g_v, eta)
    slope = torch.linalg.vecdot(v - w, torch.lerp(g_w, g_v, alpha)).unsqueeze(-1) + decay * alpha
    return {"w": w, "v": v, "alpha": (alpha - eta * adapts * slope).clamp(0, 1)}


@method
class APFL(FedAvg):
    """Clients use a mixture of the global model and one of their own, and learn how much of each to take."""

    title = "APFL"
    authors = "Deng, Kamani, Mahdavi"
    venue = "arXiv 2020"
    algorithm = "Algorithm 1"
    category = "personalized FL: personalized aggregation"
    tested_model = "personal"
    optimizer_refused = "its own model descends at the rate lr * alpha, and alpha by SGD"
    presets = {"pfllib2025": {"variant": "pfllib", "alpha": 1.0}}

    alpha: float = hyper(0.5, "share of the own model before round 1", ge=0, le=1)
    adaptive: bool = hyper(True, "learn alpha")
    alpha_every: Literal["round", "batch"] = hyper("round", "alpha moves on a round's first batch, or on every batch")
    # In the authors' code, in PFLlib and in FL-bench, but in no paper; 0 is the method as printed.
    alpha_decay: float = hyper(0.02, "c, added to the gradient of alpha as c alpha", ge=0)
    # Algorithm 1 averages uniformly; PFLlib weights by sample count.
    aggregation: Aggregation = aggregated("weighted")
    variant: Literal["paper", "pfllib"] = hyper(
        "paper", "pfllib: v descends on its own loss, alpha moves on every batch, and v becomes the mixture after each round"
    )

    def init(self, fed: Federation) -> APFLState:
        own = fed.everyone(fed.initial())
        return APFLState(**vars(super().init(fed)), v=own, alpha=own.new_full((fed.size, 1), self.alpha), mixed=own)

    def receive(self, fed: Federation, s: APFLState, S: Tensor) -> APFLState:
        s = super().receive(fed, s, S)
        mixed_S = s.v[S] if self.variant == "pfllib" else torch.lerp(fed.rows(s.start, S), s.v[S], s.alpha[S])
        return replace(s, mixed=put(s.mixed, S, mixed_S))

    def update(self, fed: Federation, s: APFLState, S: Tensor) -> APFLState:
        plan, w_S = fed.batches(S), fed.rows(s.start, S)
        adapts = w_S.new_full((len(S), int(plan.steps().max()), 1), float(self.adaptive))
        if self.variant == "paper" and self.alpha_every == "round":
            adapts[:, 1:] = 0
        step = mixed_step if self.variant == "paper" else step_of_pfllib
        given: StepArguments = {"eta": fed.lr, "decay": self.alpha_decay}
        carry = {"w": w_S, "v": s.v[S], "alpha": s.alpha[S]}
        models = ("model", "personal")
        done = fed.train_by(step, w_S, S, carry=carry, given=given, per_step={"adapts": adapts}, plan=plan, models=models)
        v_S = done["v"] if self.variant == "paper" else torch.lerp(done["w"], done["v"], done["alpha"])
        alpha = put(s.alpha, S, done["alpha"])
        fed.ledger.observe("apfl_alpha", alpha.squeeze(1))
        w = fed.mean(fed.collect(done["w"], S, since=s.w), S, self.aggregation)
        return replace(s, w=w, v=put(s.v, S, v_S), alpha=alpha)

    def deployed(self, s: APFLState) -> Tensor:
        return s.mixed

    def welcome(self, fed: Federation, s: APFLState, new: Federation) -> None:
        """Not defined by its authors, unlike FedAvg's."""

    def series(self, s: APFLState) -> dict[str, tuple[Tensor, str]]:
        return {"global": (s.w, "model")}
