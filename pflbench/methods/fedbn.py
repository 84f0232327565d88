"""FedBN: Federated Learning on Non-IID Features via Local Batch Normalization (Li et al., ICLR 2021; methods.md 1.23)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pflbench.engine.federation import Federation
from pflbench.engine.flat import put
from pflbench.errors import UserError
from pflbench.methods.base import Aggregation, Method, Welcome, aggregated, method
from pflbench.spec import TrainSpec


@dataclass(frozen=True)
class FedBNState:
    w: Tensor  # [P - P_BN] the global model without its BatchNorm layers
    theta: Tensor  # [N, P] the clients' models: what each received last, and its own BatchNorm layers


@method
class FedBN(Method):
    """FedAvg whose clients keep their BatchNorm layers: weights, biases and running statistics."""

    title = "FedBN"
    authors = "Li, Jiang, Zhang, Kamp, Dou"
    venue = "ICLR 2021"
    algorithm = "Algorithm 1"
    category = "personalized FL: local normalisation"
    shared_models = ()
    ala_refused = "ALA's top blocks may hold BatchNorm layers, which its clients do not receive"

    # The authors' own code averages uniformly; PFLlib weights by sample count.
    aggregation: Aggregation = aggregated("weighted")

    def check(self, train: TrainSpec) -> Iterator[str]:
        if train.bn_buffers != "local":
            raise UserError(
                f"FedBN keeps BatchNorm's running statistics with the clients, which excludes --bn-buffers {train.bn_buffers}.",
                "Leave out --bn-buffers.",
            )
        yield from ()

    def travelling(self, fed: Federation) -> Tensor:
        """The columns that travel, [P - P_BN]: they need not lie side by side."""
        return fed.flat.outside_batch_norm.to(fed.device)

    def init(self, fed: Federation) -> FedBNState:
        return FedBNState(w=fed.initial()[self.travelling(fed)], theta=fed.everyone(fed.initial()))

    def receive(self, fed: Federation, s: FedBNState, S: Tensor) -> FedBNState:
        if not fed.flat.has_batch_norm:
            fed.ledger.note("no BatchNorm", "the model has no BatchNorm layers: FedBN is FedAvg.")
        received = fed.rows(fed.send(s.w, S), S)
        return FedBNState(s.w, put(s.theta, S, s.theta[S].index_copy_(1, self.travelling(fed), received)))

    def update(self, fed: Federation, s: FedBNState, S: Tensor) -> FedBNState:
        theta_S = fed.sgd(s.theta[S], S)
        w_S = fed.collect(theta_S[:, self.travelling(fed)], S, since=s.w)
        return FedBNState(fed.mean(w_S, S, self.aggregation), put(s.theta, S, theta_S))

    def deployed(self, s: FedBNState) -> Tensor:
        return s.theta

    def welcome(self, fed: Federation, s: FedBNState, new: Federation) -> Welcome:
        everyone = torch.arange(fed.size, device=fed.device)
        mean = fed.mean(s.theta, everyone)
        return Welcome(new.everyone(mean.index_copy(0, self.travelling(fed), s.w)))
