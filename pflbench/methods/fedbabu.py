"""FedBABU: Towards Enhanced Representation for Federated Image Classification (Oh, Kim, Yun; ICLR 2022; methods.md 1.21)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from pflbench.engine.federation import Federation
from pflbench.engine.flat import put
from pflbench.methods.base import Aggregation, Method, Welcome, aggregated, hyper, method
from pflbench.methods.fedrep import below_head
from pflbench.methods.finetuned import Part, fine_tune, part_of, warn_of_outsiders
from pflbench.spec import TrainSpec


@dataclass(frozen=True)
class FedBABUState:
    w: Tensor  # [P] the global base, and the head of Theta^0, which nobody ever trains
    tested: Tensor  # [N, P] fine-tuned copies of what each client received last, for tests only


@method
class FedBABU(Method):
    """Clients train a common base under a fixed head; a model becomes personal by fine-tuning when it is used."""

    title = "FedBABU"
    authors = "Oh, Kim, Yun"
    venue = "ICLR 2022"
    algorithm = "Algorithm 1"
    category = "personalized FL: model splitting"
    fine_tuned = True
    tested_model = "finetuned"
    random_test = True
    ala_refused = "it fine-tunes the received model, and nothing of a client's own is left that ALA could mix"
    presets = {"pfllib2025": {"evaluate": "global", "finetune_epochs": 10}}

    finetune_epochs: int = hyper(5, "F, epochs of fine-tuning before each test", ge=0)
    finetune: Part = hyper("full", "what is fine-tuned: all of the model, its head, or its body below the head")
    evaluate: Literal["finetuned", "global"] = hyper(
        "finetuned", "test fine-tuned copies, or spare that and test the global model"
    )
    # The authors' own code averages uniformly; PFLlib weights by sample count.
    aggregation: Aggregation = aggregated("weighted")

    def shared(self, fed: Federation) -> slice:
        return below_head(fed, self.title)

    def check(self, train: TrainSpec) -> Iterator[str]:
        return warn_of_outsiders(train) if self.evaluate == "finetuned" else iter(())

    def init(self, fed: Federation) -> FedBABUState:
        self.shared(fed)
        return FedBABUState(w=fed.initial(), tested=fed.everyone(fed.initial()))

    def receive(self, fed: Federation, s: FedBABUState, S: Tensor) -> FedBABUState:
        fed.send(s.w[self.shared(fed)], S)
        if not fed.test_follows:
            return s
        epochs = self.finetune_epochs if self.evaluate == "finetuned" else 0
        return replace(s, tested=put(s.tested, S, fine_tune(fed, s.w, S, epochs, self.finetune)))

    def update(self, fed: Federation, s: FedBABUState, S: Tensor) -> FedBABUState:
        base = self.shared(fed)
        theta_S = fed.sgd(fed.rows(s.w, S), S, columns=base)
        w = s.w.clone()
        w[base] = fed.mean(fed.collect(theta_S[:, base], S, since=s.w[base]), S, self.aggregation)
        return replace(s, w=w)

    def deployed(self, s: FedBABUState) -> Tensor:
        return s.tested

    def welcome(self, fed: Federation, s: FedBABUState, new: Federation) -> Welcome:
        return Welcome(new.everyone(s.w), {"columns": part_of(fed.flat, self.finetune)})

    def series(self, s: FedBABUState) -> dict[str, tuple[Tensor, str]]:
        return {"global": (s.w, "model")}
