"""LG-FedAvg: Think Locally, Act Globally (Liang, Liu, Ziyin et al.; arXiv:2001.01523, Algorithm 1; methods.md 1.20)."""

from __future__ import annotations

from pflbench.engine.federation import Federation
from pflbench.methods.base import Aggregation, Welcome, aggregated, hyper, method
from pflbench.methods.fedper import first_of_top
from pflbench.methods.splitting import ModelSplitting, SplitState


@method
class LGFedAvg(ModelSplitting):
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

    def welcome(self, fed: Federation, s: SplitState, new: Federation) -> Welcome:
        return Welcome(self.first_models(fed, s, new), statistics=None)
