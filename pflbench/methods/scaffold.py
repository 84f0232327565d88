"""SCAFFOLD: Stochastic Controlled Averaging for Federated Learning (Karimireddy et al., ICML 2020; methods.md 1.25)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pflbench.engine.batches import Plan
from pflbench.engine.federation import Federation
from pflbench.engine.flat import put, sgd_step
from pflbench.engine.requests import Grad, StepArguments
from pflbench.methods.base import Aggregation, Method, Welcome, aggregated, hyper, method


@dataclass(frozen=True)
class SCAFFOLDState:
    x: Tensor  # [P] the global model
    c: Tensor  # [P] the server's control variate, the mean of the clients'
    c_i: Tensor  # [N, P] the clients' control variates


def step(grad: Grad, *, y: Tensor, drift: Tensor, eta: float | Tensor) -> dict[str, Tensor]:
    """One mini-batch. drift: c - c_i."""
    return {"y": sgd_step(y, grad(y) + drift, eta)}


def add_gradient(grad: Grad, *, total: Tensor, x: Tensor, share: Tensor) -> dict[str, Tensor]:
    """Adds a batch's gradient at x, by its share of the client's samples."""
    return {"total": total + share * grad(x)}


@method
class SCAFFOLD(Method):
    """FedAvg whose local steps are corrected by how far a client's mean gradient is from everyone's."""

    title = "SCAFFOLD"
    authors = "Karimireddy, Kale, Mohri, Reddi, Stich, Suresh"
    venue = "ICML 2020"
    algorithm = "Algorithm 1"
    category = "traditional FL"
    optimizer_refused = "a client's control variate is the mean of its gradients only after plain SGD"
    ala_refused = "a client's control variate is made of what training changes, which would hold ALA's mixing, too"

    eta_g: float = hyper(1.0, "the server moves by eta_g times the mean change", gt=0)
    option: int = hyper(
        2, "a control variate is the gradient at x over all samples (1) or the mean of the steps' (2)", ge=1, le=2
    )
    aggregation: Aggregation = aggregated("uniform")

    def init(self, fed: Federation) -> SCAFFOLDState:
        zero = torch.zeros_like(fed.initial())
        return SCAFFOLDState(x=fed.initial(), c=zero, c_i=fed.everyone(zero))

    def receive(self, fed: Federation, s: SCAFFOLDState, S: Tensor) -> SCAFFOLDState:
        fed.send(s.x, S, models=2)
        return s

    def update(self, fed: Federation, s: SCAFFOLDState, S: Tensor) -> SCAFFOLDState:
        plan, x_S = fed.batches(S), fed.rows(s.x, S)
        given: StepArguments = {"drift": s.c - s.c_i[S], "eta": fed.lr}
        dy_S = fed.train_by(step, x_S, S, carry={"y": x_S}, given=given, plan=plan)["y"] - x_S
        dc_S = self.control(fed, s, S, plan, dy_S) - s.c_i[S]
        dy_S = fed.collect(dy_S, S, since=0.0)
        # c_i moves by what was sent, so that the next change contains the rest.
        dc_S = fed.collect(dc_S, S, since=0.0, error_feedback=False)
        x = s.x + self.eta_g * fed.mean(dy_S, S, self.aggregation)
        return SCAFFOLDState(x, s.c + dc_S.sum(0) / len(fed.candidates()), put(s.c_i, S, s.c_i[S] + dc_S))

    def control(self, fed: Federation, s: SCAFFOLDState, S: Tensor, plan: Plan, dy_S: Tensor) -> Tensor:
        """c_i^+ of the cohort, [c, P]. A client without steps keeps its own."""
        steps = torch.from_numpy(plan.steps()).to(dy_S).unsqueeze(1)
        mean = s.c_i[S] - s.c - dy_S / (steps.clamp(min=1) * fed.lr)
        found = _gradient(fed, fed.rows(s.x, S), S) if self.option == 1 else mean
        return found.where(steps > 0, s.c_i[S])

    def deployed(self, s: SCAFFOLDState) -> Tensor:
        return s.x

    def welcome(self, fed: Federation, s: SCAFFOLDState, new: Federation) -> Welcome:
        return Welcome(new.everyone(s.x))


def _gradient(fed: Federation, x_S: Tensor, S: Tensor) -> Tensor:
    """The gradient at x over each client's samples, [c, P]."""
    plan = fed.batches(S, 1, shuffle=False, drop_last="never")
    share = x_S.new_zeros(len(S), int(plan.steps().max()), 1)
    for i, sizes in enumerate(plan.sizes):
        share[i, : len(sizes), 0] = torch.from_numpy(sizes / sizes.sum())
    with fed.inner_loop(S, plan, x_S) as loop:
        carry = {"total": torch.zeros_like(x_S)}
        return fed.scan(add_gradient, loop, carry=carry, given={"x": x_S}, per_step={"share": share}).carry["total"]
