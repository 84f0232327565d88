"""LG-FedAvg: Think Locally, Act Globally (Liang, Liu, Ziyin et al.; arXiv:2001.01523, Algorithm 1; methods.md 1.20)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pflbench.engine.federation import Federation
from pflbench.engine.flat import put
from pflbench.methods.base import Aggregation, Method, Welcome, aggregated, hyper, method
from pflbench.methods.fedper import first_of_top


@dataclass(frozen=True)
class LGFedAvgState:
    top: Tensor  # [P_h] the global top blocks
    theta: Tensor  # [N, P] the clients' models: each one's own representation, and the top blocks that it has


@method
class LGFedAvg(Method):
    """Each client learns a representation of its own; the top layers are trained together."""

    title = "LG-FedAvg"
    authors = "Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency"
    venue = "arXiv 2020"
    algorithm = "Algorithm 1"
    category = "personalized FL: model splitting"
    shared_models = ()  # BatchNorm's running statistics belong to the clients' own representations
    ala_refused = "its clients receive the top of the model only, and ALA overwrites what lies below the blocks that it mixes"

    shared_blocks: int = hyper(1, "top blocks that all clients share; 0 is local training", ge=0)
    aggregation: Aggregation = aggregated("weighted")

    def shared(self, fed: Federation) -> slice:
        return slice(first_of_top(fed, self.shared_blocks), fed.flat.size)

    def init(self, fed: Federation) -> LGFedAvgState:
        return LGFedAvgState(top=fed.initial()[self.shared(fed)], theta=fed.everyone(fed.initial()))

    def receive(self, fed: Federation, s: LGFedAvgState, S: Tensor) -> LGFedAvgState:
        own_S = s.theta[S, : self.shared(fed).start]
        theta_S = torch.cat([own_S, fed.rows(fed.send(s.top, S), S)], dim=1)
        return LGFedAvgState(s.top, put(s.theta, S, theta_S))

    def update(self, fed: Federation, s: LGFedAvgState, S: Tensor) -> LGFedAvgState:
        theta_S = fed.sgd(s.theta[S], S)
        top_S = fed.collect(theta_S[:, self.shared(fed)], S, since=s.top)
        return LGFedAvgState(fed.mean(top_S, S, self.aggregation), put(s.theta, S, theta_S))

    def deployed(self, s: LGFedAvgState) -> Tensor:
        return s.theta

    def welcome(self, fed: Federation, s: LGFedAvgState, new: Federation) -> Welcome:
        first = new.initial()
        first[self.shared(fed)] = s.top
        return Welcome(new.everyone(first), statistics=None)
