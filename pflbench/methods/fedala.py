"""FedALA (Zhang et al., AAAI 2023, Algorithm 1; methods.md 1.14)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from pflbench.engine.federation import Federation
from pflbench.engine.flat import put, take
from pflbench.methods.ala import ALA, AlaState
from pflbench.methods.base import method
from pflbench.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedALAState:
    w: Tensor  # [P] the global model
    # [N, P] each client's model after its last own training; for the cohort, from reception to training, the initialised one
    theta: Tensor
    ala: AlaState


@method
class FedALA(ALA, FedAvg):
    """FedAvg in which each client starts training from a learned element-wise mix of the global and its own model."""

    title = "FedALA"
    authors = "Zhang, Hua, Wang, Song, Xue, Ma, Guan"
    venue = "AAAI 2023"
    algorithm = "Algorithm 1"
    category = "personalized FL: personalized aggregation"
    ala_refused = "FedALA is FedAvg with ALA already"
    random_test = True

    def init(self, fed: Federation) -> FedALAState:
        return FedALAState(w=fed.initial(), theta=fed.everyone(fed.initial()), ala=self.first(fed))

    def receive(self, fed: Federation, s: FedALAState, S: Tensor) -> FedALAState:
        A = fed.all_trainable() if self.ala_all else S
        received = fed.rows(fed.send(s.w, A), A)
        hat_A, ala = self.initialise(fed, s.ala, A, received, take(s.theta, A))
        return replace(s, theta=put(s.theta, A, hat_A), ala=ala)

    def update(self, fed: Federation, s: FedALAState, S: Tensor) -> FedALAState:
        theta_S = fed.sgd(take(s.theta, S), S)
        w = fed.mean(fed.collect(theta_S, S, since=s.w), S)
        return replace(s, w=w, theta=put(s.theta, S, theta_S), ala=s.ala.after_training(S))

    def deployed(self, s: FedALAState) -> Tensor:
        return s.theta
