"""FedPer: Federated Learning with Personalization Layers (Arivazhagan et al.; arXiv:1912.00818; methods.md 1.19)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pflbench.engine.federation import Federation
from pflbench.engine.flat import put
from pflbench.errors import UserError
from pflbench.methods.base import Aggregation, Method, Welcome, aggregated, hyper, method


@dataclass(frozen=True)
class FedPerState:
    base: Tensor  # [P_b] the global part of the model: everything below the clients' own blocks
    theta: Tensor  # [N, P] the clients' models: the base that each has, and its own blocks


def first_of_top(fed: Federation, blocks: int) -> int:
    """The first column of the model's top blocks. Raises UserError if it has fewer."""
    if blocks > len(fed.flat.blocks):
        raise UserError(
            f"The model has {len(fed.flat.blocks)} blocks, not {blocks}.", "`pflbench models show` lists the blocks of a model."
        )
    return fed.flat.blocks[blocks - 1].start if blocks else fed.flat.size


@method
class FedPer(Method):
    """A base that all clients train together, and top layers that stay with their client; both are trained at once."""

    title = "FedPer"
    authors = "Arivazhagan, Aggarwal, Singh, Choudhary"
    venue = "arXiv 2019"
    algorithm = "Algorithm 1"
    category = "personalized FL: model splitting"

    personal_blocks: int = hyper(1, "top blocks that stay with the client; 0 is FedAvg", ge=0)
    aggregation: Aggregation = aggregated("weighted")

    def shared(self, fed: Federation) -> slice:
        return slice(0, first_of_top(fed, self.personal_blocks))

    def init(self, fed: Federation) -> FedPerState:
        personal = torch.ones(fed.flat.size, dtype=torch.bool)
        personal[self.shared(fed)] = personal[fed.flat.outside_batch_norm] = False
        if personal.any() and fed.protocol.bn_buffers != "local":
            raise UserError(
                f"The personal blocks have BatchNorm layers, which excludes --bn-buffers {fed.protocol.bn_buffers}.",
                "Leave out --bn-buffers, or choose fewer personal_blocks.",
            )
        return FedPerState(base=fed.initial()[self.shared(fed)], theta=fed.everyone(fed.initial()))

    def receive(self, fed: Federation, s: FedPerState, S: Tensor) -> FedPerState:
        own_S = s.theta[S, self.shared(fed).stop :]
        base = fed.load(fed.send(s.base, S), S, rest=own_S)
        return FedPerState(s.base, put(s.theta, S, torch.cat([fed.rows(base, S), own_S], dim=1)))

    def update(self, fed: Federation, s: FedPerState, S: Tensor) -> FedPerState:
        theta_S = fed.sgd(s.theta[S], S)
        base_S = fed.collect(theta_S[:, self.shared(fed)], S, since=s.base)
        return FedPerState(fed.mean(base_S, S, self.aggregation), put(s.theta, S, theta_S))

    def deployed(self, s: FedPerState) -> Tensor:
        return s.theta

    def welcome(self, fed: Federation, s: FedPerState, new: Federation) -> Welcome:
        first = new.initial()
        first[self.shared(fed)] = s.base
        return Welcome(new.everyone(first))
