"""FedAvg with fine-tuning before each test, the baseline of many papers (methods.md 1.33)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from pflbench.engine.federation import Federation
from pflbench.engine.flat import put
from pflbench.methods.base import Welcome, hyper, method
from pflbench.methods.fedavg import FedAvg
from pflbench.methods.finetuned import FineTunedState, Part, fine_tune, part_of, warn_of_outsiders
from pflbench.spec import TrainSpec


@method
class FedAvgFT(FedAvg):
    """FedAvg whose clients fine-tune the global model before they use it; nothing of that is uploaded."""

    title = "FedAvg-FT"
    algorithm = "in many papers, as a baseline"
    category = "baseline: fine-tuning"
    fine_tuned = True
    ala_refused = "it fine-tunes the received model where ALA would mix it"
    tested_model = "finetuned"
    random_test = True

    finetune_epochs: int = hyper(1, "F, epochs of fine-tuning before each test", ge=0)
    finetune: Part = hyper("full", "what is fine-tuned: all of the model, its head, or its body below the head")

    def check(self, train: TrainSpec) -> Iterator[str]:
        return warn_of_outsiders(train)

    def init(self, fed: Federation) -> FineTunedState:
        part_of(fed.flat, self.finetune)
        return FineTunedState(w=fed.initial(), theta=fed.everyone(fed.initial()))

    def receive(self, fed: Federation, s: FineTunedState, S: Tensor) -> FineTunedState:
        fed.send(s.w, S)
        return replace(s, theta=put(s.theta, S, fine_tune(fed, s.w, S, self.finetune_epochs, self.finetune)))

    def train(self, fed: Federation, s: FineTunedState, S: Tensor) -> Tensor:
        return fed.sgd(fed.rows(s.w, S), S)

    def deployed(self, s: FineTunedState) -> Tensor:
        return s.theta

    def welcome(self, fed: Federation, s: FineTunedState, new: Federation) -> Welcome:
        return Welcome(new.everyone(s.w), {"columns": part_of(fed.flat, self.finetune)})

    def series(self, s: FineTunedState) -> dict[str, tuple[Tensor, str]]:
        return {"global": (s.w, "model")}
