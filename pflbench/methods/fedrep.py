"""FedRep: Exploiting Shared Representations for Personalized Federated Learning.

Collins, Hassani, Mokhtari, Shakkottai; ICML 2021, Algorithm 1; methods.md 1.6.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pflbench.engine.federation import Federation
from pflbench.engine.flat import put
from pflbench.errors import UserError
from pflbench.methods.base import Aggregation, Method, Welcome, aggregated, hyper, method


@dataclass(frozen=True)
class FedRepState:
    phi: Tensor  # [P_b] the global representation: everything below the head
    theta: Tensor  # [N, P] the clients' models: the representation that each has, and its own head


def below_head(fed: Federation, title: str) -> slice:
    """The columns below the head. Raises UserError if there are none."""
    if fed.flat.head.start == 0:
        raise UserError(f"{title} shares what lies below the head, but this model is a head alone.", "Choose a deeper --model.")
    return slice(0, fed.flat.head.start)


@method
class FedRep(Method):
    """A representation that all clients train together, and a head per client that never leaves it."""

    title = "FedRep"
    authors = "Collins, Hassani, Mokhtari, Shakkottai"
    venue = "ICML 2021"
    algorithm = "Algorithm 1"
    category = "personalized FL: global representation, local head"

    # The paper's "number of local updates" of the head; PFLlib counts them in epochs.
    tau: int = hyper(5, "epochs of training the head, before those of the representation", ge=1, search=tuple(range(1, 11)))

    # Algorithm 1 averages uniformly; the authors' own code and the FedALA paper's protocol weight by sample count.
    aggregation: Aggregation = aggregated("weighted")

    def shared(self, fed: Federation) -> slice:
        return below_head(fed, self.title)

    def init(self, fed: Federation) -> FedRepState:
        return FedRepState(phi=fed.initial()[self.shared(fed)], theta=fed.everyone(fed.initial()))

    def receive(self, fed: Federation, s: FedRepState, S: Tensor) -> FedRepState:
        phi = fed.load(fed.send(s.phi, S), S, rest=s.theta[S, fed.flat.head])
        return replace(s, theta=put(s.theta, S, torch.cat([fed.rows(phi, S), s.theta[S, fed.flat.head]], dim=1)))

    def update(self, fed: Federation, s: FedRepState, S: Tensor) -> FedRepState:
        base = self.shared(fed)
        theta_S = fed.sgd(s.theta[S], S, columns=fed.flat.head, plan=fed.batches(S, self.tau, purpose="batches/head"))
        theta_S = fed.sgd(theta_S, S, columns=base)
        phi = fed.mean(fed.collect(theta_S[:, base], S, since=s.phi), S, self.aggregation)
        return FedRepState(phi, put(s.theta, S, theta_S))

    def deployed(self, s: FedRepState) -> Tensor:
        return s.theta

    def welcome(self, fed: Federation, s: FedRepState, new: Federation) -> Welcome:
        first = new.initial()
        first[self.shared(fed)] = s.phi
        return Welcome(new.everyone(first), {"columns": fed.flat.head})
