"""FedAvg-C and FedProx-C, the fine-tuning baselines of the FedALA paper (Zhang et al., AAAI 2023; methods.md 1.4).

The paper describes them in words: the received model is fine-tuned "for local initialization". Neither code nor the number of
epochs was published; 14 is what the seconds per round in its Table 3 imply.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from pflbench.engine.federation import Federation
from pflbench.engine.flat import Flat, put
from pflbench.errors import UserError
from pflbench.methods.ala import WINDOW
from pflbench.methods.base import Welcome, hyper, method
from pflbench.methods.fedavg import FedAvg
from pflbench.methods.fedprox import FedProx, proximal
from pflbench.spec import TrainSpec

Part = Literal["full", "head", "body"]


@dataclass(frozen=True)
class FineTunedState:
    w: Tensor  # [P] the global model
    theta: Tensor  # [N, P] hat-theta_i: each client's fine-tuned copy of the global model that it received last


class FineTuned(FedAvg):
    """The base class of FedAvg-C, FedProx-C and FedAvg-FT: clients are tested with a fine-tuned copy of the global model."""

    category = "baseline: fine-tuning"
    fine_tuned = True
    ala_refused = "it fine-tunes the received model where ALA would mix it"
    tested_model = "finetuned"
    random_test = True

    def check(self, train: TrainSpec) -> Iterator[str]:
        return warn_of_outsiders(train)

    def init(self, fed: Federation) -> FineTunedState:
        return FineTunedState(w=fed.initial(), theta=fed.everyone(fed.initial()))

    def deployed(self, s: FineTunedState) -> Tensor:
        return s.theta

    def series(self, s: FineTunedState) -> dict[str, tuple[Tensor, str]]:
        return {"global": (s.w, "model")}


@method
class FedAvgC(FineTuned):
    """FedAvg whose clients fine-tune the whole received model, are tested with that, and train on from it."""

    title = "FedAvg-C"
    authors = "Zhang, Hua, Wang, Song, Xue, Ma, Guan"
    venue = "AAAI 2023"
    algorithm = "in words, in the FedALA paper"

    finetune_epochs: int = hyper(14, "F, epochs of fine-tuning before local training", ge=0)
    finetune_stop: Literal["epochs", "converge"] = hyper("epochs", "stop after F epochs, or by ALA's rule for its initial stage")
    finetune_threshold: float = hyper(0.01, "converge: stop if the std of the last 10 epoch losses is below this", ge=0)
    finetune_cap: int = hyper(100, "converge: stop after this many epochs at the latest", ge=1)
    finetune_affects_upload: bool = hyper(True, "train on from the fine-tuned model (false: from the received one, as FedAvg)")

    def receive(self, fed: Federation, s: FineTunedState, S: Tensor) -> FineTunedState:
        fed.send(s.w, S)
        if not (self.finetune_affects_upload or fed.test_follows):
            return s
        tune = self._for_epochs if self.finetune_stop == "epochs" else self._until_converged
        return replace(s, theta=put(s.theta, S, tune(fed, s, S)))

    def train(self, fed: Federation, s: FineTunedState, S: Tensor) -> Tensor:
        if not self.finetune_affects_upload:
            return fed.sgd(fed.rows(s.w, S), S, **self.penalty(s))
        return fed.sgd(s.theta[S], S, plan=fed.batches(S), model="finetuned", save_statistics_to="model", **self.penalty(s))

    def penalty(self, s: FineTunedState) -> dict[str, Any]:
        """Arguments of `fed.sgd` for a penalty, in fine-tuning and in local training."""
        return {}

    def welcome(self, fed: Federation, s: FineTunedState, new: Federation) -> Welcome:
        return Welcome(new.everyone(s.w), self.penalty(s))

    def _for_epochs(self, fed: Federation, s: FineTunedState, S: Tensor) -> Tensor:
        return fine_tune(fed, s.w, S, self.finetune_epochs, **self.penalty(s))

    def _until_converged(self, fed: Federation, s: FineTunedState, S: Tensor) -> Tensor:
        plan = fed.batches(S, self.finetune_cap, purpose="batches/finetuned")
        hat_S, live = fed.rows(s.w, S).clone(), torch.arange(len(S), device=fed.device)
        last = hat_S.new_full((len(S), WINDOW), torch.nan)
        moments: dict[str, Tensor] = {}
        epochs = torch.zeros(fed.size, dtype=torch.int64, device=fed.device)
        for k, epoch in enumerate(plan.epochs(self.finetune_cap)):
            before = "finetuned" if k else _first_model(fed)
            steps = epoch.take(live.tolist())
            kept = {name: value[live] for name, value in moments.items()}
            done = fed.fit(
                hat_S[live], S[live], plan=steps, model=before, save_statistics_to="finetuned", moments=kept, **self.penalty(s)
            )
            hat_S[live], epochs[S[live]] = done.models, k + 1
            moments = {name: moments.get(name, value).index_copy(0, live, value) for name, value in done.moments.items()}
            # ALA compares the losses of the last batch, always the same one; here batches are shuffled: the mean loss.
            last[live] = torch.cat([last[live, 1:], done.loss.unsqueeze(1)], dim=1)
            if k >= WINDOW:
                live = live[last[live].std(dim=1, correction=0) >= self.finetune_threshold]
            if len(live) == 0:
                break
        fed.ledger.observe("finetune_epochs", epochs)
        return hat_S


@method
class FedProxC(FedAvgC, FedProx):
    """FedAvg-C with FedProx's local objective, both in fine-tuning and in local training."""

    title = "FedProx-C"

    def penalty(self, s: FineTunedState) -> dict[str, Any]:
        return {"penalty": proximal, "anchor": s.w, "strength": self.mu}


def fine_tune(fed: Federation, w: Tensor, S: Tensor, epochs: int, part: Part = "full", **penalty: Any) -> Tensor:
    """Copies of the received model w [P] after some epochs of SGD on one part of it, [c, P].

    The copies have BatchNorm buffers of their own: a client that is only tested must not use them in its training.
    """
    plan = fed.batches(S, epochs, purpose="batches/finetuned")
    first = _first_model(fed) if epochs else "model"
    columns = part_of(fed.flat, part)
    return fed.sgd(fed.rows(w, S), S, plan=plan, model=first, save_statistics_to="finetuned", columns=columns, **penalty)


def part_of(flat: Flat, part: Part) -> slice:
    """The columns of a part of the model. Raises UserError if it has no body."""
    if part == "body" and flat.head.start == 0:
        raise UserError("finetune=body is not possible: this model is a head alone.", "Choose a deeper --model.")
    return {"full": slice(None), "head": flat.head, "body": slice(0, flat.head.start)}[part]


def warn_of_outsiders(train: TrainSpec) -> Iterator[str]:
    if train.tests_outsiders:
        yield "clients outside the cohort are fine-tuned too, only to be tested (evaluate=participants would spare that)."


def _first_model(fed: Federation) -> str:
    """The buffers that fine-tuning begins with: with bn_buffers="reset" the initial ones, which no training changes."""
    return "initial" if fed.protocol.bn_buffers == "reset" else "model"
