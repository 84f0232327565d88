"""FedBN: Federated Learning on Non-IID Features via Local Batch Normalization (Li et al., ICLR 2021; methods.md 1.23)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pflbench.engine.federation import Federation
from pflbench.errors import UserError
from pflbench.methods.base import Aggregation, Welcome, aggregated, method
from pflbench.methods.splitting import ModelSplitting, SplitState
from pflbench.spec import TrainSpec


@method
class FedBN(ModelSplitting):
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

    def shared(self, fed: Federation) -> Tensor:
        """[P - P_BN]."""
        return fed.flat.outside_batch_norm.to(fed.device)

    def receive(self, fed: Federation, s: SplitState, S: Tensor) -> SplitState:
        if not fed.flat.has_batch_norm:
            fed.ledger.note("no BatchNorm", "the model has no BatchNorm layers: FedBN is FedAvg.")
        return super().receive(fed, s, S)

    def welcome(self, fed: Federation, s: SplitState, new: Federation) -> Welcome:
        everyone = torch.arange(fed.size, device=fed.device)
        mean = fed.mean(s.theta, everyone)
        return Welcome(new.everyone(mean.index_copy(0, self.shared(fed), s.w)))
