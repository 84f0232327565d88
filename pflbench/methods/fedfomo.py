"""FedFomo: Personalized Federated Learning with First Order Model Optimization.

Zhang, Sapra, Fidler, Yeung, Alvarez; ICLR 2021, Algorithm 1; methods.md 1.11.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pflbench.engine.federation import Federation
from pflbench.engine.flat import put
from pflbench.methods.attention import distances
from pflbench.methods.base import Count, Method, hyper, method
from pflbench.spec import RunSpec, Value

PAIRS = 4096  # of a client and a model, whose losses are computed at once


@dataclass(frozen=True)
class FedFomoState:
    theta: Tensor  # [N, P] the clients' models after their last local training, as the server has them
    start: Tensor  # [N, P] o_i, the models that this training started from; after reception, those that it will start from
    raw: Tensor  # [N, N] the weights that each client gave the models that it received last, before clipping; 0 for others
    P: Tensor  # [N, N] affinity: the sum of what clients have reported so far
    uploaded: Tensor  # [N] bool, the server has a model of this client


def fomo_weights(raw: Tensor, own: Tensor) -> Tensor:
    """max(raw, 0) with rows that sum to 1, [c, N]; a row without a positive value takes the own model (own [c, N] bool)."""
    positive = raw.clamp(min=0)
    total = positive.sum(dim=1, keepdim=True)
    return torch.where(total == 0, own.to(raw), positive / total)


@method
class FedFomo(Method):
    """Clients download other clients' models and take from each as much as it lowers their validation loss.

    The authors' own code explores (epsilon-greedy), takes the L1 norm and divides without epsilon; this is PFLlib's form of it.
    """

    title = "FedFomo"
    authors = "Zhang, Sapra, Fidler, Yeung, Alvarez"
    venue = "ICLR 2021"
    algorithm = "Algorithm 1"
    category = "personalized FL: personalized aggregation"
    upload_refused = "its server and its clients have one copy of each client's model"
    ala_refused = "its clients download several models, and ALA mixes one with the local model"
    shared_models = ()  # losses are measured, and models trained, with the client's own BatchNorm buffers

    M: Count | Literal["all"] = hyper(
        "all", "models that a client downloads in a round: those that were worth most to it; all: N"
    )
    val_ratio: float = hyper(0.2, "share of the training samples, the last ones, that validates instead", ge=0, lt=1)
    epsilon: float = hyper(1e-5, "added to the distance by which the loss's decrease is divided", gt=0)
    evaluate: Literal["own", "aggregated"] = hyper("own", "test the model before a round's aggregation, or as the paper after it")

    def init(self, fed: Federation) -> FedFomoState:
        theta, identity = fed.everyone(fed.initial()), torch.eye(fed.size, dtype=fed.dtype, device=fed.device)
        nobody = torch.zeros(fed.size, dtype=torch.bool, device=fed.device)
        return FedFomoState(theta=theta, start=theta, raw=torch.zeros_like(identity), P=identity, uploaded=nobody)

    def receive(self, fed: Federation, s: FedFomoState, S: Tensor) -> FedFomoState:
        candidates = self.candidates(s, S)
        fed.send(s.theta, S, models=self.received(s))
        raw_S = self.worth(fed, s, S, candidates)
        weights = fomo_weights(raw_S, S.unsqueeze(1) == torch.arange(fed.size, device=fed.device))
        fed.observe("fomo_weights", weights.new_full((fed.size, fed.size), torch.nan).index_copy(0, S, weights))
        return replace(s, start=put(s.start, S, weights @ s.theta), raw=put(s.raw, S, raw_S))

    def update(self, fed: Federation, s: FedFomoState, S: Tensor) -> FedFomoState:
        training = [self.split(fed.train_indices[client])[0] for client in S.tolist()]
        theta_S = fed.sgd(s.start[S], S, plan=fed.batches(S, samples=training))
        theta_S = fed.collect(theta_S, S, scalars=self.received(s))
        return replace(
            s,
            theta=put(s.theta, S, theta_S),
            P=s.P.index_add(0, S, s.raw[S]),
            uploaded=s.uploaded.index_fill(0, S, True),
        )

    def deployed(self, s: FedFomoState) -> Tensor:
        return s.theta if self.evaluate == "own" else s.start

    def canonical_values(self, spec: RunSpec) -> Mapping[str, Value]:
        return {"M": "all"} if self.M != "all" and spec.training_clients <= self.M else {}

    def split(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A client's training and validation samples: in stored order, the same in every round."""
        cut = len(samples) - int(self.val_ratio * len(samples))
        return samples[:cut], samples[cut:]

    def received(self, s: FedFomoState) -> int:
        """How many models each client downloads: M, but no more than have been uploaded."""
        uploaded = int(s.uploaded.sum())
        return uploaded if self.M == "all" else min(self.M, uploaded)

    def candidates(self, s: FedFomoState, S: Tensor) -> Tensor:
        """The models that each client downloads, [c, N] bool: those with the largest P_ij, ties by the lower index."""
        affinity = s.P[S].masked_fill(~s.uploaded, -torch.inf)
        first = affinity.sort(dim=1, descending=True, stable=True).indices[:, : self.received(s)]
        return torch.zeros_like(affinity, dtype=torch.bool).scatter(1, first, True)

    def worth(self, fed: Federation, s: FedFomoState, S: Tensor, candidates: Tensor) -> Tensor:
        """raw_ij = (L_i(o_i) - L_i(theta_j)) / (|theta_j - o_i| + epsilon), [c, N]; 0 where j is no candidate.

        A client too small for a validation set has no loss there: all is worth 0 to it, and it keeps its own model.
        """
        raw = torch.zeros_like(candidates, dtype=fed.dtype)
        if not self.received(s):
            return raw
        validation = [self.split(fed.train_indices[client])[1] for client in S.tolist()]
        start_S = s.start[S]
        before, distance = fed.losses(start_S, S, validation), distances(start_S, s.theta).to(fed.dtype)
        # The same model is worth nothing, rather than the losses' last digits divided by epsilon.
        others = candidates & (distance > 0)
        wanted, gain, step = others.t().cpu().numpy(), torch.zeros_like(raw), max(1, PAIRS // max(len(S), 1))
        for first in range(0, fed.size, step):
            some = wanted[first : first + step]
            if not some.any():
                continue
            models, clients = np.nonzero(some)
            at, to = torch.from_numpy(np.stack([clients, models + first])).to(fed.device)
            shared_by = torch.from_numpy(some.sum(axis=1))
            after = fed.losses(s.theta[first : first + step], S[at], [validation[k] for k in clients], shared_by=shared_by)
            gain[at, to] = before[at] - after
        return torch.where(others, gain / (distance + self.epsilon), 0)
