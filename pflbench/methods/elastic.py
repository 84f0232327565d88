"""Elastic Aggregation (Chen, Li, Xiao, Jin; CVPR 2023, poster, Algorithm 1; methods.md 1.16)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from pflbench.engine import rng
from pflbench.engine.federation import Federation
from pflbench.engine.flat import Flat
from pflbench.engine.requests import Grad, Loss, Output, StepArguments
from pflbench.methods.base import Method, Welcome, hyper, method


@dataclass(frozen=True)
class ElasticState:
    theta: Tensor  # [P] the server's model


def squared_norm(loss: Loss, labels: Tensor, own: Output) -> Tensor:
    """|F(theta; x)|^2, the mean over the batch: labels are not used."""
    return own.logits.square().sum(-1).mean()


def measure(grad: Grad, *, Omega: Tensor, theta: Tensor, mu: float) -> dict[str, Tensor]:
    """One mini-batch of B_k."""
    return {"Omega": torch.lerp(grad(theta).abs(), Omega, mu)}


@method
class Elastic(Method):
    """FedAvg whose server moves the parameters less to which the clients' predictions are sensitive, and the others more."""

    title = "Elastic"
    authors = "Chen, Li, Xiao, Jin"
    venue = "CVPR 2023"
    algorithm = "Algorithm 1"
    category = "traditional FL"
    ala_refused = "its server weighs how far clients moved from the global model, and with ALA they would not begin there"

    # The poster gives no values; these are FL-bench's.
    tau: float = hyper(0.5, "a layer's zeta is 1 + tau - Omega / max(Omega)", ge=0)
    mu: float = hyper(0.95, "weight of the earlier batches in the sensitivities", ge=0, le=1)
    eta_s: float = hyper(1.0, "eta, the server's rate", ge=0)
    holdout: float = hyper(0.3, "share of B_k, on which sensitivity is measured, in a client's training data", ge=0, lt=1)

    def init(self, fed: Federation) -> ElasticState:
        return ElasticState(theta=fed.initial())

    def receive(self, fed: Federation, s: ElasticState, S: Tensor) -> ElasticState:
        return replace(s, theta=fed.send(s.theta, S))

    def update(self, fed: Federation, s: ElasticState, S: Tensor) -> ElasticState:
        B, D = zip(*(self.split(fed, client) for client in S.tolist()), strict=True)
        n = fed.n.new_tensor([len(D_k) for D_k in D])
        Omega = self._sensitivity(fed, s, S, B, n)
        theta_S = fed.sgd(fed.rows(s.theta, S), S, plan=fed.batches(S, samples=D))
        theta_S = fed.collect(theta_S, S, since=s.theta)
        # The poster's Delta_k = theta_k - theta, subtracted, would lead away from the clients.
        Delta = s.theta - (n / n.sum()) @ theta_S
        return replace(s, theta=s.theta - self.eta_s * elasticity(fed.flat, Omega, self.tau) * Delta)

    def deployed(self, s: ElasticState) -> Tensor:
        return s.theta

    def welcome(self, fed: Federation, s: ElasticState, new: Federation) -> Welcome:
        return Welcome(new.everyone(s.theta))

    def split(self, fed: Federation, client: int) -> tuple[np.ndarray, np.ndarray]:
        """B_k and D_k of a client, the same in all rounds. D_k is never empty, B_k is if int(holdout * n) is 0."""
        mine = fed.train_indices[client]
        chosen = rng.stream(fed.seed, "holdout", 1, client).permutation(len(mine))[: int(self.holdout * len(mine))]
        return mine[np.sort(chosen)], np.delete(mine, chosen)

    def _sensitivity(self, fed: Federation, s: ElasticState, S: Tensor, B: tuple[np.ndarray, ...], n: Tensor) -> Tensor:
        """Omega [P]: the mean of the clients' Omega_k, by |D_k|, over those that could measure any."""
        plan = fed.batches(S, 1, purpose="sensitivity", samples=B, drop_last="never")
        theta = fed.rows(s.theta, S)
        with fed.inner_loop(S, plan, theta) as loop:
            carry = {"Omega": torch.zeros_like(theta)}
            given: StepArguments = {"theta": theta, "mu": self.mu}
            Omega_S = fed.scan(measure, loop, carry=carry, given=given, objective=squared_norm).carry["Omega"]
        weights = n * torch.from_numpy(plan.steps() > 0).to(n)
        Omega = (weights / weights.sum().clamp(min=1)) @ fed.collect(Omega_S, S)
        fed.observe("sensitivities", Omega)
        return Omega


def elasticity(flat: Flat, Omega: Tensor, tau: float) -> Tensor:
    """zeta [P], from tau (most sensitive of its tensor) to 1 + tau; 1 in a tensor without any sensitivity."""
    tensors = [Omega[e.start : e.stop] for e in flat.parameters]
    return torch.cat([torch.where(x.max() > 0, 1 + tau - x / x.max(), 1.0) for x in tensors])
