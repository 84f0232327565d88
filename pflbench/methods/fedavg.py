"""FedAvg (McMahan et al., AISTATS 2017, Algorithm 1; methods.md 1.2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from pflbench.engine.federation import Federation
from pflbench.methods.base import Method, Welcome, method


@dataclass(frozen=True)
class FedAvgState:
    w: Tensor  # [P] the global model
    # The models after reception: [P], the same for all, or [N, P] with ALA. Without ALA it is w: this field and `fed.load` are
    # only there so that ALA can be plugged in.
    start: Tensor


@method
class FedAvg(Method):
    """Clients train the global model on their data; the server averages their models by sample count."""

    title = "FedAvg"
    authors = "McMahan, Moore, Ramage, Hampson, Agüera y Arcas"
    venue = "AISTATS 2017"
    algorithm = "Algorithm 1"
    category = "traditional FL"

    def init(self, fed: Federation) -> Any:
        return FedAvgState(w=fed.initial(), start=fed.load(fed.initial(), fed.all_trainable()))

    def receive(self, fed: Federation, s: Any, S: Tensor) -> Any:
        return replace(s, start=fed.load(fed.send(s.w, S), S))

    def update(self, fed: Federation, s: Any, S: Tensor) -> Any:
        theta_S = self.train(fed, s, S)
        return replace(s, w=fed.mean(fed.collect(theta_S, S, since=s.w), S))

    def train(self, fed: Federation, s: Any, S: Tensor) -> Tensor:
        """theta_i for i in S: E epochs from the received model, [c, P]."""
        return fed.sgd(fed.rows(s.start, S), S)

    def deployed(self, s: Any) -> Tensor:
        start: Tensor = s.start
        return start

    def welcome(self, fed: Federation, s: Any, new: Federation) -> Welcome | None:
        return Welcome(new.everyone(s.w))
