"""FedRep: Exploiting Shared Representations for Personalized Federated Learning.

Collins, Hassani, Mokhtari, Shakkottai; ICML 2021, Algorithm 1; methods.md 1.6.
"""

from __future__ import annotations

from torch import Tensor

from pflbench.engine.federation import Federation
from pflbench.errors import UserError
from pflbench.methods.base import Aggregation, Welcome, aggregated, hyper, method
from pflbench.methods.splitting import ModelSplitting, SplitState


def below_head(fed: Federation, title: str) -> slice:
    """The columns below the head. Raises UserError if there are none."""
    if fed.flat.head.start == 0:
        raise UserError(f"{title} shares what lies below the head, but this model is a head alone.", "Choose a deeper --model.")
    return slice(0, fed.flat.head.start)


@method
class FedRep(ModelSplitting):
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

    def train(self, fed: Federation, s: SplitState, S: Tensor) -> Tensor:
        """The head, then the representation."""
        theta_S = fed.sgd(s.theta[S], S, columns=fed.flat.head, plan=fed.batches(S, self.tau, purpose="batches/head"))
        return fed.sgd(theta_S, S, columns=self.shared(fed))

    def welcome(self, fed: Federation, s: SplitState, new: Federation) -> Welcome:
        return Welcome(self.first_models(fed, s, new), {"columns": fed.flat.head})
