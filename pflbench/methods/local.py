"""Local-only training: no federation (methods.md 1.1). The baseline that every personalized method has to beat."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from pflbench.engine.federation import Federation
from pflbench.engine.flat import put
from pflbench.methods.base import Method, Welcome, method


@dataclass(frozen=True)
class LocalState:
    theta: Tensor  # [N, P] each client's own model


@method
class Local(Method):
    """Every client trains its own model on its own data; nothing is sent."""

    title = "Local"
    authors = ""
    venue = "baseline"
    algorithm = "plain SGD on each client"
    category = "baseline"
    ala_refused = "its clients receive nothing that could be mixed"
    shared_models = ()

    def init(self, fed: Federation) -> LocalState:
        return LocalState(theta=fed.everyone(fed.initial()))

    def receive(self, fed: Federation, s: LocalState, S: Tensor) -> LocalState:
        return s

    def update(self, fed: Federation, s: LocalState, S: Tensor) -> LocalState:
        return replace(s, theta=put(s.theta, S, fed.sgd(s.theta[S], S)))

    def deployed(self, s: LocalState) -> Tensor:
        return s.theta

    def welcome(self, fed: Federation, s: LocalState, new: Federation) -> Welcome:
        return Welcome(new.everyone(new.initial()), statistics=None)
