"""FedPAC: Personalized Federated Learning with Feature Alignment and Classifier Collaboration.

Xu, Tong, Huang; ICLR 2023, Algorithm 1; methods.md 1.31.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from scipy.linalg import solve_triangular
from scipy.optimize import nnls
from torch import Tensor, nn
from torch.nn import functional as F

from pflbench.engine.federation import Federation
from pflbench.engine.flat import put
from pflbench.engine.requests import Loss
from pflbench.errors import UserError
from pflbench.methods.base import Aggregation, Method, Rate, aggregated, hyper, method
from pflbench.methods.extended import ClassTargets, Targeted
from pflbench.methods.fedrep import below_head
from pflbench.spec import RunSpec, TrainSpec, Value

SMALLEST = 1e-12  # variance that counts, as a share of the matrix's trace: that of a client with one sample is 0


@dataclass(frozen=True)
class FedPACState:
    base: Tensor  # [P_b] the global base
    theta: Tensor  # [N, P] the clients' models: the base that each has, the head that the server combined for it, its targets
    prototypes: Tensor  # [K, h] mean features of each class; 0 for a class without
    known: Tensor  # [K] bool, the classes that have a prototype


def pulled(loss: Loss, labels: Tensor, own: Targeted, *, lam: float) -> Tensor:
    """CE + lam * mean squared distance of the features to the targets of their classes."""
    return loss(own.logits, labels) + lam * F.mse_loss(own.features, own.targets[labels])


def head_weights(H: Tensor, V: Tensor, min_weight: float) -> Tensor:
    """How much each client's combined head takes of every client's, [c, c]; H [c, m] and V [c] are their feature statistics.

    Row i minimises a'Ma over a >= 0 with sum 1, M_jl = <H_i - H_j, H_i - H_l> + [j = l] V_j; entries up to min_weight are 0.
    """
    means, variances = H.double().cpu().numpy(), V.double().cpu().numpy()
    means = means - means.mean(axis=0)  # only differences matter, and lose fewer digits like this
    G, found = means @ means.T, []
    for i in range(len(G)):
        M = G - G[i] - G[i, :, None] + G[i, i]
        smallest = SMALLEST * (np.trace(M) + variances.sum()) or 1.0
        # Up to its scale, a is the minimum of b'Mb / 2 - sum(b) over b >= 0: with M = LL' a least-squares problem.
        L = np.linalg.cholesky(M + np.diag(np.maximum(variances, smallest)))
        b, _ = nnls(L.T, solve_triangular(L, np.ones(len(L)), lower=True))
        b[(b <= min_weight * b.sum()) & (b < b.max())] = 0
        found.append(b / b.sum())
    return torch.from_numpy(np.stack(found)).to(H)


@method
class FedPAC(Method):
    """Features are pulled to the prototypes of all clients; each client's head is a combination of all heads."""

    title = "FedPAC"
    authors = "Xu, Tong, Huang"
    venue = "ICLR 2023"
    algorithm = "Algorithm 1"
    category = "personalized FL: prototypes and classifier collaboration"
    own_parts = "K prototypes of h numbers, not trained"
    presets = {"pfllib2025": {"prototypes": "uniform"}}

    lam: float = hyper(1.0, "weight of the features' distance to the prototypes", ge=0)
    head_epochs: int = hyper(1, "epochs of training the head, before those of the base", ge=1)
    head_lr: Rate | Literal["lr"] = hyper("lr", "rate of training the head; lr: the local learning rate")
    min_weight: float = hyper(0.001, "a combined head takes nothing of heads with at most this weight", ge=0, lt=1)
    prototypes: Aggregation = hyper("weighted", "a prototype is the mean over the clients by sample count, or uniform")
    aggregation: Aggregation = aggregated("weighted")

    def model(self, backbone: nn.Module) -> nn.Module:
        return ClassTargets(backbone)

    def check(self, train: TrainSpec) -> Iterator[str]:
        if train.bn_buffers == "reset":
            raise UserError(
                "FedPAC's statistics are those of the model as it was tested, which excludes --bn-buffers reset.",
                "Leave out --bn-buffers.",
            )
        yield from ()

    def shared(self, fed: Federation) -> slice:
        return below_head(fed, self.title)

    def init(self, fed: Federation) -> FedPACState:
        first = fed.initial()
        none = torch.zeros_like(fed.flat.views(first)["targets.value"])
        return FedPACState(first[self.shared(fed)], fed.everyone(first), prototypes=none, known=none.any(dim=1))

    def receive(self, fed: Federation, s: FedPACState, S: Tensor) -> FedPACState:
        own_S = s.theta[S, fed.flat.head.start :]
        base = fed.load(fed.send(s.base, S, scalars=s.prototypes.numel()), S, rest=own_S)
        fed.send(s.theta[S, fed.flat.head], S)
        return replace(s, theta=put(s.theta, S, torch.cat([fed.rows(base, S), own_S], dim=1)))

    def update(self, fed: Federation, s: FedPACState, S: Tensor) -> FedPACState:
        base, head = self.shared(fed), fed.flat.head
        means, squares, counts = fed.class_means(s.theta[S], S)
        n_S = fed.n[S]
        shares = counts / n_S.unsqueeze(1)
        H = (shares.unsqueeze(-1) * means).flatten(1)
        V = ((shares * squares).sum(1) - H.square().sum(1)).clamp(min=0) / n_S

        theta_S = self.train(fed, s, S, means)
        means = fed.class_means(theta_S, S)[0]
        fed.require_finite(torch.cat([H, V.unsqueeze(1), means.flatten(1)], dim=1), S, "upload")
        base_S = fed.collect(theta_S[:, base], S, since=s.base)
        statistics = 2 * s.prototypes.numel() + fed.flat.classes + 1
        heads_S = fed.collect(theta_S[:, head], S, scalars=statistics, since=s.theta[S, head])

        theta_S[:, head] = head_weights(H, V, self.min_weight) @ heads_S
        counted = counts if self.prototypes == "weighted" else (counts > 0).to(counts)
        total = counted.sum(0)
        prototypes = torch.einsum("ck,ckh->kh", counted, means) / total.clamp(min=1).unsqueeze(1)
        return FedPACState(fed.mean(base_S, S, self.aggregation), put(s.theta, S, theta_S), prototypes, total > 0)

    def train(self, fed: Federation, s: FedPACState, S: Tensor, means: Tensor) -> Tensor:
        """The heads, then the bases, [c, P]. means: of the clients' features before that, [c, K, h]."""
        theta_S = s.theta[S]
        # A class without a prototype is pulled to the client's own mean.
        theta_S[:, fed.flat.columns(["targets"])] = torch.where(s.known.unsqueeze(1), s.prototypes, means).flatten(1)
        plan = fed.batches(S, self.head_epochs, purpose="batches/head")
        rate = None if isinstance(self.head_lr, str) else self.head_lr
        theta_S = fed.sgd(theta_S, S, columns=fed.flat.head, plan=plan, lr=rate)
        objective = partial(pulled, lam=self.lam) if self.lam and bool(s.known.any()) else None
        return fed.sgd(theta_S, S, columns=self.shared(fed), objective=objective)

    def deployed(self, s: FedPACState) -> Tensor:
        return s.theta

    def canonical_values(self, spec: RunSpec) -> Mapping[str, Value]:
        constant = spec.train.lr_schedule == "constant"  # "lr" follows a schedule
        return {"head_lr": "lr"} if constant and self.head_lr == spec.train.lr else {}
