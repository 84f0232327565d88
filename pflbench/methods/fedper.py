"""FedPer: Federated Learning with Personalization Layers (Arivazhagan et al.; arXiv:1912.00818; methods.md 1.19)."""

from __future__ import annotations

import torch

from pflbench.engine.federation import Federation
from pflbench.errors import UserError
from pflbench.methods.base import Aggregation, Welcome, aggregated, hyper, method
from pflbench.methods.splitting import ModelSplitting, SplitState


def first_of_top(fed: Federation, blocks: int) -> int:
    """The first column of the model's top blocks. Raises UserError if it has fewer."""
    if blocks > len(fed.flat.blocks):
        raise UserError(
            f"The model has {len(fed.flat.blocks)} blocks, not {blocks}.", "`pflbench models show` lists the blocks of a model."
        )
    return fed.flat.blocks[blocks - 1].start if blocks else fed.flat.size


@method
class FedPer(ModelSplitting):
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

    def init(self, fed: Federation) -> SplitState:
        personal = torch.ones(fed.flat.size, dtype=torch.bool)
        personal[self.shared(fed)] = personal[fed.flat.outside_batch_norm] = False
        if personal.any() and fed.protocol.bn_buffers != "local":
            raise UserError(
                f"The personal blocks have BatchNorm layers, which excludes --bn-buffers {fed.protocol.bn_buffers}.",
                "Leave out --bn-buffers, or choose fewer personal_blocks.",
            )
        return super().init(fed)

    def welcome(self, fed: Federation, s: SplitState, new: Federation) -> Welcome:
        return Welcome(self.first_models(fed, s, new))
