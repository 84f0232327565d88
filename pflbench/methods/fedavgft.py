"""FedAvg with fine-tuning before each test, the baseline of many papers (methods.md 1.33)."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from pflbench.engine.federation import Federation
from pflbench.engine.flat import put
from pflbench.methods.base import Welcome, hyper, method
from pflbench.methods.finetuned import FineTuned, FineTunedState, Part, fine_tune, part_of


@method
class FedAvgFT(FineTuned):
    """FedAvg whose clients fine-tune the global model before they use it; nothing of that is uploaded."""

    title = "FedAvg-FT"
    algorithm = "in many papers, as a baseline"

    finetune_epochs: int = hyper(1, "F, epochs of fine-tuning before each test", ge=0)
    finetune: Part = hyper("full", "what is fine-tuned: all of the model, its head, or its body below the head")

    def init(self, fed: Federation) -> FineTunedState:
        part_of(fed.flat, self.finetune)
        return super().init(fed)

    def receive(self, fed: Federation, s: FineTunedState, S: Tensor) -> FineTunedState:
        fed.send(s.w, S)
        if not fed.test_follows:
            return s
        return replace(s, theta=put(s.theta, S, fine_tune(fed, s.w, S, self.finetune_epochs, self.finetune)))

    def train(self, fed: Federation, s: FineTunedState, S: Tensor) -> Tensor:
        return fed.sgd(fed.rows(s.w, S), S)

    def welcome(self, fed: Federation, s: FineTunedState, new: Federation) -> Welcome:
        return Welcome(new.everyone(s.w), {"columns": part_of(fed.flat, self.finetune)})
