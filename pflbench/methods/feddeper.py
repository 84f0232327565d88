"""FedDeper: Depersonalized Federated Learning (Zhou, Li, Tang, Wang; arXiv:2210.03444, Algorithm 1; methods.md 1.17)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pflbench.engine.federation import Federation
from pflbench.engine.flat import put, sgd_step
from pflbench.engine.requests import Grad, StepArguments
from pflbench.methods.base import Aggregation, Method, Welcome, aggregated, hyper, method


@dataclass(frozen=True)
class FedDeperState:
    x: Tensor  # [P] the global model
    v: Tensor  # [N, P] the personal models


def step(grad: Grad, *, y: Tensor, v: Tensor, x: Tensor, eta: float | Tensor, rho: float) -> dict[str, Tensor]:
    """Lines 7 and 8, on the same mini-batch: SGD on f(y) + rho / (2 eta) |v + y - 2x|^2 with v fixed, and on f(v)."""
    descended = sgd_step(y, grad(y), eta)
    return {"y": descended.sub_((v + y).sub_(x, alpha=2), alpha=rho), "v": sgd_step(v, grad(v, of=1), eta)}


@method
class FedDeper(Method):
    """FedAvg whose clients keep a personal model beside and hold the uploaded one on the other side of the global model."""

    title = "FedDeper"
    authors = "Zhou, Li, Tang, Wang"
    venue = "arXiv 2022"
    algorithm = "Algorithm 1"
    category = "traditional FL"
    optimizer_refused = "its penalty moves y by rho beside SGD's step, whatever the learning rate"
    ala_refused = "it keeps a client's own past out of what it trains and uploads, and ALA would mix it in"

    # The values of the authors' experiments are not known.
    rho: float = hyper(0.01, "penalty that keeps y away from v", ge=0, lt=1, search=(0.001, 0.003, 0.01, 0.03, 0.1))
    lam: float = hyper(0.5, "lambda, mixing rate: v begins the next round as (1 - lambda) v + lambda y", ge=0.5, le=1)
    aggregation: Aggregation = aggregated("uniform")

    def init(self, fed: Federation) -> FedDeperState:
        return FedDeperState(x=fed.initial(), v=fed.everyone(fed.initial()))

    def receive(self, fed: Federation, s: FedDeperState, S: Tensor) -> FedDeperState:
        return FedDeperState(x=fed.send(s.x, S), v=s.v)

    def update(self, fed: Federation, s: FedDeperState, S: Tensor) -> FedDeperState:
        y_S, plan = fed.rows(s.x, S), fed.batches(S)
        reach = self.rho * int(plan.steps().max())
        if reach > 1:
            # With a constant gradient g, v is -j eta g from x after j steps: if rho j > 1 the penalty outweighs y's own step.
            fed.ledger.note(
                "uphill",
                f"rho x steps = {reach:.3g} is above 1 in round {fed.t}, where a client makes {plan.steps().max()} steps: the "
                "penalty then outweighs the gradient, and uploads can point uphill. A rho below 1 / steps avoids it.",
            )
        given: StepArguments = {"x": s.x, "eta": fed.lr, "rho": self.rho}
        done = fed.train_by(step, y_S, S, carry={"y": y_S, "v": s.v[S]}, given=given, plan=plan, models=("model", "personal"))
        v_S = (1 - self.lam) * done["v"] + self.lam * done["y"]
        change = fed.collect(done["y"] - s.x, S, since=0.0)
        return FedDeperState(x=s.x + fed.mean(change, S, self.aggregation), v=put(s.v, S, v_S))

    def deployed(self, s: FedDeperState) -> Tensor:
        return s.x

    def welcome(self, fed: Federation, s: FedDeperState, new: Federation) -> Welcome:
        return Welcome(new.everyone(s.x))

    def series(self, s: FedDeperState) -> dict[str, tuple[Tensor, str]]:
        return {"personal": (s.v, "personal")}
