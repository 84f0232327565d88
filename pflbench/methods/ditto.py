"""Ditto (Li et al., ICML 2021, Algorithm 1; methods.md 1.8)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from pflbench.engine.federation import Federation
from pflbench.engine.flat import put
from pflbench.methods.base import Aggregation, Welcome, aggregated, hyper, method
from pflbench.methods.fedavg import FedAvg, FedAvgState
from pflbench.methods.fedprox import proximal


@dataclass(frozen=True)
class DittoState(FedAvgState):
    v: Tensor  # [N, P] the personal models


@method
class Ditto(FedAvg):
    """A personal model per client, pulled towards the global one, beside an unchanged FedAvg."""

    title = "Ditto"
    authors = "Li, Hu, Beirami, Smith"
    venue = "ICML 2021"
    algorithm = "Algorithm 1"
    category = "personalized FL: additional personal model"
    tested_model = "personal"

    lam: float = hyper(0.1, "lambda, weight of (lambda / 2) |v - Theta|^2", ge=0, search=(0.0001, 0.001, 0.01, 0.1, 1, 10))
    personal_epochs: int = hyper(2, "s, epochs of the personal branch", ge=1, search=tuple(range(1, 11)))
    # The authors' own code averages uniformly; the FedALA paper's protocol weights by sample count.
    aggregation: Aggregation = aggregated("weighted")

    def init(self, fed: Federation) -> DittoState:
        return DittoState(**vars(super().init(fed)), v=fed.everyone(fed.initial()))

    def update(self, fed: Federation, s: DittoState, S: Tensor) -> DittoState:
        centre = fed.rows(s.start, S)
        v_S = fed.sgd(
            s.v[S], S, epochs=self.personal_epochs, model="personal", penalty=proximal, anchor=centre, strength=self.lam
        )
        w_S = fed.collect(self.train(fed, s, S), S, since=s.w)
        return replace(s, w=fed.mean(w_S, S, self.aggregation), v=put(s.v, S, v_S))

    def deployed(self, s: DittoState) -> Tensor:
        return s.v

    def welcome(self, fed: Federation, s: DittoState, new: Federation) -> Welcome:
        return Welcome(new.everyone(s.w), {"penalty": proximal, "anchor": s.w, "strength": self.lam})

    def series(self, s: DittoState) -> dict[str, tuple[Tensor, str]]:
        return {"global": (s.w, "model")}
