"""Per-FedAvg (Fallah, Mokhtari, Ozdaglar; NeurIPS 2020, Algorithm 1; methods.md 1.5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from pflbench.engine.batches import Plan
from pflbench.engine.federation import Federation
from pflbench.engine.flat import put, sgd_step
from pflbench.engine.requests import Argument, Grad
from pflbench.methods.base import Aggregation, Rate, Welcome, aggregated, hyper, method
from pflbench.methods.fedavg import FedAvg, FedAvgState
from pflbench.spec import RunSpec, TrainSpec, Value


@dataclass(frozen=True)
class PerFedAvgState(FedAvgState):
    adapted: Tensor  # [N, P] start after a step on the client's own data, for tests only; as of the client's last reception


def descend(grad: Grad, *, w: Tensor, rate: Tensor) -> dict[str, Tensor]:
    """One step of SGD with a rate of its own."""
    return {"w": torch.addcmul(w, -rate, grad(w))}


def first_order(grad: Grad, *, w: Tensor, alpha: float, beta: float | Tensor) -> dict[str, Tensor]:
    """FO: the meta-gradient without its second-order term. Batches D, D'."""
    adapted = w.sub(grad(w), alpha=alpha)
    return {"w": sgd_step(w, grad(adapted, part=1), beta)}


def hessian_free(grad: Grad, *, w: Tensor, alpha: float, beta: float | Tensor, delta: float) -> dict[str, Tensor]:
    """HF: the Hessian at w times u, by a central difference. Batches D, D', D''."""
    u = grad(w - alpha * grad(w), part=1)
    d = (grad(w + delta * u, part=2) - grad(w - delta * u, part=2)) / (2 * delta)
    return {"w": w - beta * (u - alpha * d)}


@method
class PerFedAvg(FedAvg):
    """MAML: the global model is trained to be good after one step of SGD on a client's own data.

    adapt_on=test2022 is how PFLlib evaluated in 2022, perhaps for the FedALA paper's tables. It learns from test labels, so
    the preset fedala2022 does not include it; the user must set it.
    """

    title = "Per-FedAvg"
    authors = "Fallah, Mokhtari, Ozdaglar"
    venue = "NeurIPS 2020"
    algorithm = "Algorithm 1"
    category = "personalized FL: global model and fine-tuning"
    tested_model = "adapted"
    random_test = True
    optimizer_refused = "its meta-step follows one of SGD through the gradient"
    presets_on_test_labels = {"fedala2022": {"adapt_on": "test2022"}}

    hessian: Literal["fo", "hf"] = hyper("fo", "the second-order term: left out (FO), or by finite differences (HF)")
    alpha: Rate | Literal["lr"] = hyper("lr", "rate of the adaptation step; lr: the local learning rate")
    beta: Rate | Literal["lr"] = hyper("lr", "rate of the meta-step; lr: the local learning rate")
    delta: float = hyper(0.001, "HF: step of the finite difference, in gradients", gt=0)
    # The reference walks the data twice, so that there are as many meta-steps as FedAvg has steps; FL-bench once.
    passes: int = hyper(2, "passes over the data per local epoch, each in chunks of 2 batches (HF: 3)", ge=1)
    aggregation: Aggregation = aggregated("weighted")
    adapt_on: Literal["train", "test2022"] = hyper("train", "tested after a step on a train batch, or after two on test batches")

    def check(self, train: TrainSpec) -> Iterator[str]:
        if self.uses_test_labels():
            yield "clients adapt on labelled test data before they are tested (adapt_on=test2022): its accuracy is no test."

    def init(self, fed: Federation) -> PerFedAvgState:
        return PerFedAvgState(**vars(super().init(fed)), adapted=fed.everyone(fed.initial()))

    def receive(self, fed: Federation, s: PerFedAvgState, S: Tensor) -> PerFedAvgState:
        start = fed.load(fed.send(s.w, S), S)
        if not fed.test_follows:
            return replace(s, start=start)
        return replace(s, start=start, adapted=put(s.adapted, S, self._adapt(fed, fed.rows(start, S), S)))

    def update(self, fed: Federation, s: PerFedAvgState, S: Tensor) -> PerFedAvgState:
        w_S = fed.collect(self.train(fed, s, S), S, since=s.w)
        return replace(s, w=fed.mean(w_S, S, self.aggregation))

    def train(self, fed: Federation, s: PerFedAvgState, S: Tensor) -> Tensor:
        """The meta-steps."""
        step, parts = (first_order, 2) if self.hessian == "fo" else (hessian_free, 3)
        alpha, beta = self._rates(fed)
        given: dict[str, Argument] = {"alpha": alpha, "beta": beta, **({"delta": self.delta} if self.hessian == "hf" else {})}
        w_S = fed.rows(s.start, S)
        plan = fed.batches(S, self.passes * fed.protocol.local_epochs, parts=parts)
        return fed.train_by(step, w_S, S, carry={"w": w_S}, given=given, plan=plan, parts=parts)["w"]

    def deployed(self, s: PerFedAvgState) -> Tensor:
        return s.adapted

    def welcome(self, fed: Federation, s: PerFedAvgState, new: Federation) -> Welcome:
        return Welcome(new.everyone(s.w), {"lr": self._rates(fed)[0]})

    def series(self, s: PerFedAvgState) -> dict[str, tuple[Tensor, str]]:
        return {"global": (s.w, "model")}

    def uses_test_labels(self) -> bool:
        return self.adapt_on == "test2022"

    def canonical_values(self, spec: RunSpec) -> Mapping[str, Value]:
        rates: dict[str, Value] = {"alpha": self.alpha, "beta": self.beta}
        follows = ("alpha", "beta") if spec.train.lr_schedule == "constant" else ("alpha",)  # beta as "lr" follows a schedule
        return {name: "lr" for name in follows if rates[name] == spec.train.lr}

    def _rates(self, fed: Federation) -> tuple[float, float | Tensor]:
        """alpha, with which the model is trained and tested alike, and beta, which a schedule changes."""
        alpha = fed.protocol.lr if isinstance(self.alpha, str) else self.alpha
        return alpha, fed.lr if isinstance(self.beta, str) else self.beta

    def _adapt(self, fed: Federation, rows: Tensor, S: Tensor) -> Tensor:
        """One step with alpha on a random train batch; test2022: then one with beta, and on test batches."""
        alpha, beta = self._rates(fed)
        if self.adapt_on == "train":
            rates, plan = [alpha], fed.batches(S, 1, purpose="batches/adapted")
        else:
            # The reference fails for a client that has a single test batch; here it takes the first step only.
            tests = [fed.test_indices[client] for client in S.tolist()]
            rates, plan = [alpha, float(beta)], fed.batches(S, 1, purpose="batches/adapted", samples=tests, drop_last="never")
        each = {"rate": rows.new_tensor(rates).view(1, -1, 1).expand(len(S), -1, -1)}
        return fed.train_by(
            descend, rows, S, carry={"w": rows}, per_step=each, plan=_first(plan, len(rates)), save_statistics_to=("adapted",)
        )["w"]


def _first(plan: Plan, steps: int) -> Plan:
    """The first `steps` steps of each client."""
    sizes = tuple(s[:steps] for s in plan.sizes)
    return Plan(tuple(order[: s.sum()] for order, s in zip(plan.order, sizes, strict=True)), sizes)
