"""FedRoD: On Bridging Generic and Personalized Federated Learning (Chen, Chao; ICLR 2022; methods.md 1.22)."""

from __future__ import annotations

import copy
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from pflbench.engine.federation import Federation
from pflbench.engine.requests import Loss
from pflbench.methods.base import Aggregation, Welcome, aggregated, hyper, method
from pflbench.methods.extended import ExtendedModel, Values
from pflbench.methods.splitting import ModelSplitting, SplitState

ABSENT = -1e9  # in place of log 0, which times 0 would be NaN


class Logits(NamedTuple):
    generic: Tensor  # [b, K], the generic head's
    personal: Tensor  # [b, K], those and what the personal head adds; the features and the generic logits are constants
    prior: Tensor  # [K], gamma times the log of the client's class counts


class TwoHeads(ExtendedModel):
    """Columns [net | personal head | prior], of which the prior is not trained."""

    def __init__(self, net: Any) -> None:
        super().__init__(net)
        self.personal = copy.deepcopy(self.classifier)
        self.prior = Values(self.classes)

    def outputs(self, x: Tensor) -> Logits:
        z = self.features(x)
        o = self.classifier(z)
        return Logits(o, o.detach() + self.personal(z.detach()), self.prior.value)

    def forward(self, x: Tensor) -> Tensor:
        z = self.features(x)
        logits: Tensor = self.classifier(z) + self.personal(z)
        return logits


def both_losses(loss: Loss, labels: Tensor, own: Logits) -> Tensor:
    """Balanced softmax for the base and the generic head, and the plain loss of the sum for the personal head."""
    return loss(own.generic + own.prior, labels) + loss(own.personal, labels)


@method
class FedRoD(ModelSplitting):
    """One base with two heads: a shared one, trained against class imbalance, and a personal one that corrects its logits."""

    title = "FedRoD"
    authors = "Chen, Chao"
    venue = "ICLR 2022"
    algorithm = "Algorithm 1"
    category = "personalized FL: model splitting"
    own_parts = "a personal head, (h + 1) K parameters"
    ala_refused = "ALA's weights are learned with the generic model's loss alone, and its module has two heads"

    gamma: float = hyper(1.0, "weight of the log class counts in the generic head's loss; 0: plain softmax", ge=0)
    personal_init: Literal["copy", "zero"] = hyper("copy", "the personal head begins as a copy of the generic one, or at 0")
    aggregation: Aggregation = aggregated("weighted")

    def model(self, backbone: nn.Module) -> nn.Module:
        return TwoHeads(backbone)

    def shared(self, fed: Federation) -> slice:
        return fed.flat.columns(["net"])

    def init(self, fed: Federation) -> SplitState:
        first = fed.initial()
        if self.personal_init == "zero":
            first[fed.flat.columns(["personal"])] = 0
        return SplitState(w=first[self.shared(fed)], theta=fed.everyone(first))

    def train(self, fed: Federation, s: SplitState, S: Tensor) -> Tensor:
        prior, theta_S = fed.flat.columns(["prior"]), s.theta[S]
        theta_S[:, prior] = self.priors(fed, S)
        return fed.sgd(theta_S, S, columns=slice(0, prior.start), objective=both_losses)

    def priors(self, fed: Federation, S: Tensor) -> Tensor:
        """gamma log n_ik, [c, K]. With gamma = 0 classes without samples count, too."""
        counts = fed.class_counts(S)
        return torch.where((counts > 0) | (self.gamma == 0), self.gamma * counts.clamp(min=1).log(), ABSENT)

    def welcome(self, fed: Federation, s: SplitState, new: Federation) -> Welcome:
        generic = nn.functional.pad(s.w, (0, fed.flat.size - len(s.w)))
        return Welcome(new.everyone(generic), {"columns": fed.flat.columns(["personal"])})

    def series(self, s: SplitState) -> dict[str, tuple[Tensor, str]]:
        return {"global": (nn.functional.pad(s.w, (0, s.theta.shape[1] - len(s.w))), "model")}
