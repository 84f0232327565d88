"""Methods that share some columns of the model, the same for all clients; the others never leave their client."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pflbench.engine.federation import Federation
from pflbench.engine.flat import put
from pflbench.methods.base import Aggregation, Method


@dataclass(frozen=True)
class SplitState:
    w: Tensor  # [P'] the columns of the global model that are shared
    theta: Tensor  # [N, P] the clients' models: the shared columns that each has, and its own


class ModelSplitting(Method):
    """The base class of FedPer, LG-FedAvg, FedRep, FedBN, FedRoD and FedCP: what is shared and how it is trained differ."""

    aggregation: Aggregation  # a hyperparameter of each

    def init(self, fed: Federation) -> SplitState:
        return SplitState(w=fed.initial()[self.shared(fed)], theta=fed.everyone(fed.initial()))

    def receive(self, fed: Federation, s: SplitState, S: Tensor) -> SplitState:
        theta_S = s.theta[S]
        # ALA goes only with methods whose own columns lie above the shared ones.
        received = fed.load(fed.send(s.w, S), S, rest=theta_S[:, len(s.w) :])
        theta_S[:, self.shared(fed)] = fed.rows(received, S)
        return SplitState(s.w, put(s.theta, S, theta_S))

    def update(self, fed: Federation, s: SplitState, S: Tensor) -> SplitState:
        theta_S = self.train(fed, s, S)
        w_S = fed.collect(theta_S[:, self.shared(fed)], S, since=s.w)
        return SplitState(fed.mean(w_S, S, self.aggregation), put(s.theta, S, theta_S))

    def train(self, fed: Federation, s: SplitState, S: Tensor) -> Tensor:
        """theta_i for i in S after local training, [c, P]."""
        return fed.sgd(s.theta[S], S)

    def deployed(self, s: SplitState) -> Tensor:
        return s.theta

    def first_models(self, fed: Federation, s: SplitState, new: Federation) -> Tensor:
        """For `welcome`: models with the shared columns, and the others as at the very beginning, [K, P]."""
        first = new.initial()
        first[self.shared(fed)] = s.w
        return new.everyone(first)
