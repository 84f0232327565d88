"""NewMethod: say here what it is and where it is from - authors, venue, number of the algorithm.

As it stands, this is FedAvg in which clients do not start from the global model w, but from a mix of it and their own:
theta_i <- alpha w + (1 - alpha) theta_i. alpha = 1 is FedAvg, alpha = 0 local training.

In shapes, N is the number of clients, c that of the cohort S (ids of those who join the round), P that of a model's parameters:
a model is a row, so that the server's rules are linear algebra.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from pflbench.engine.federation import Federation
from pflbench.engine.flat import put
from pflbench.methods.base import Method, hyper, method
from pflbench.spec import TrainSpec


@dataclass(frozen=True)
class NewMethodState:
    """All that is carried from round to round: tensors, whose shapes never change. It is the checkpoint."""

    w: Tensor  # [P] the global model
    theta: Tensor  # [N, P] what each client trained last; for the cohort, from reception to training, the mix


@method
class NewMethod(Method):
    """Each client starts from a mix of the global model and its own."""

    title = "NewMethod"
    authors = "You"
    venue = "unpublished"
    algorithm = "Algorithm 1"
    category = "personalized FL: personalized aggregation"
    version = 1  # raise it whenever a change alters results: it is part of a run's key

    # Hyperparameters: a type, a default, what it means, limits. `run --set new-method.alpha=0.3` sets it.
    alpha: float = hyper(0.5, "weight of the global model in what a client starts from", ge=0, le=1)

    def check(self, train: TrainSpec) -> Iterator[str]:
        """Warnings before anything runs; what cannot work is a pflbench.errors.UserError."""
        if self.alpha == 1:
            yield "with alpha = 1 this is FedAvg."

    def init(self, fed: Federation) -> NewMethodState:
        """Before round 1: everyone has the same initial model."""
        return NewMethodState(w=fed.initial(), theta=fed.everyone(fed.initial()))

    def receive(self, fed: Federation, s: NewMethodState, S: Tensor) -> NewMethodState:
        """Server -> clients. What `deployed` says after this is evaluated.

        `send` counts what travels. `load` is where "local model <- received model" happens: here ALA steps in, as new-method+ala.
        """
        received = fed.rows(fed.load(fed.send(s.w, S), S), S)
        mix_S = self.alpha * received + (1 - self.alpha) * s.theta[S]
        return replace(s, theta=put(s.theta, S, mix_S))  # a new state: a state is never changed in place

    def update(self, fed: Federation, s: NewMethodState, S: Tensor) -> NewMethodState:
        """Local training, upload, aggregation.

        `sgd` trains rows by SGD, or what --optimizer says; a penalty goes in by `penalty=`, as in FedProx; other inner loops are
        `fed.train_by` and `fed.scan`. `collect` counts what travels, and refuses what is not finite. `mean` weights by number of
        samples. For chance, take pflbench.engine.rng.stream(fed.seed, "purpose", fed.t, client), never a global generator.
        """
        theta_S = fed.sgd(s.theta[S], S)
        w = fed.mean(fed.collect(theta_S, S), S)
        return replace(s, w=w, theta=put(s.theta, S, theta_S))

    def deployed(self, s: NewMethodState) -> Tensor:
        """The models that clients would use now: [N, P], or [P] where all use the same."""
        return s.theta

    def series(self, s: NewMethodState) -> dict[str, tuple[Tensor, str]]:
        """Further models to evaluate beside those: name -> (models, which BatchNorm statistics go with them)."""
        return {"global": (s.w, "model")}
