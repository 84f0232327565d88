"""FedCP: Separating Feature Information via Conditional Policy (Zhang et al.; KDD 2023; methods.md 1.30)."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from pflbench.engine import rng
from pflbench.engine.batches import Plan
from pflbench.engine.federation import Federation
from pflbench.engine.flat import put
from pflbench.engine.requests import Loss, Output
from pflbench.methods.base import Aggregation, aggregated, hyper, method
from pflbench.methods.extended import ExtendedModel, Values, base_with
from pflbench.methods.fedphp import mmd
from pflbench.methods.splitting import ModelSplitting, SplitState

SHARED = ("policy", "global_head")  # travel with the base
SMALLEST = 1e-10  # of a uniform number, and of its distance to 1: the logarithms stay finite


def gumbel(stream: np.random.Generator, samples: int, device: torch.device, *, width: int) -> Tensor:
    """Gumbel noise for both parts of the samples' features, [samples, 2, h] (float64)."""
    uniform = torch.from_numpy(stream.random((samples, 2, width))).to(device)
    return uniform.clamp_(SMALLEST, 1 - SMALLEST).log_().neg_().log_().neg_()


class SplitFeatures(ExtendedModel):
    """Columns [net, with the personal head | policy | global head | context]; from the global head on untrained."""

    def __init__(self, net: Any, tau: float = 1.0, test_noise: bool = False) -> None:
        super().__init__(net)
        h = self.width
        self.policy = nn.Sequential(nn.Linear(h, 2 * h), nn.LayerNorm(2 * h), nn.ReLU())
        self.global_head = copy.deepcopy(self.classifier)
        self.context = Values(h)
        self.tau = tau
        self.test_noise = partial(gumbel, width=h) if test_noise else None

    def shares(self, z: Tensor, noise: Tensor | None) -> Tensor:
        """The personal and the global share of features [b, h]: [b, 2, h]. noise: for at least as many samples."""
        scores = self.policy(z * self.context.value).reshape(len(z), 2, self.width)
        shares: Tensor = ((scores if noise is None else scores + noise[: len(z)]) / self.tau).softmax(dim=1)
        return shares

    def split(self, z: Tensor, noise: Tensor | None) -> Tensor:
        """The sum of both heads' logits, each of its share of the features."""
        personal, common = self.shares(z, noise).unbind(dim=1)
        logits: Tensor = self.classifier(z * personal) + self.global_head(z * common)
        return logits

    def outputs(self, x: Tensor, noise: Tensor | None = None) -> Output:
        z = self.features(x)
        return Output(self.split(z, noise), z)

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        return self.split(self.features(x), noise)


def with_mmd(loss: Loss, labels: Tensor, own: Output, received: Output, *, lam: float) -> Tensor:
    """CE + lambda * MMD to the features of the received base."""
    return loss(own.logits, labels) + lam * mmd(own.features, received.features, "fixed")


@method
class FedCP(ModelSplitting):
    """For each sample a shared policy network divides the features between a frozen global and a personal head."""

    title = "FedCP"
    authors = "Zhang, Hua, Wang, Song, Xue, Ma, Guan"
    venue = "KDD 2023"
    algorithm = "Algorithm 1"
    category = "personalized FL: model splitting"
    own_parts = "a policy, 2 h² + 6 h parameters, shared; and a copy of the head that is not trained"
    random_test = True
    ala_refused = "features are held at those of the received base, which ALA would replace"
    presets = {"pfllib2025": {"context": "random1"}}

    lam: float = hyper(5.0, "weight of the MMD between the features of the trained and the received base", ge=0)
    tau: float = hyper(1.0, "temperature of the shares", gt=0)
    test_noise: bool = hyper(True, "Gumbel noise in tests, too, as in the authors' code")
    context: Literal["head", "random1"] = hyper(
        "head", "a client's context comes from its head, or as in the authors' code is random in round 1"
    )
    aggregation: Aggregation = aggregated("weighted")

    def model(self, backbone: nn.Module) -> nn.Module:
        return SplitFeatures(backbone, self.tau, self.test_noise)

    def shared(self, fed: Federation) -> Tensor:
        """The base, the policy and the global head."""
        return base_with(fed, *SHARED)

    def receive(self, fed: Federation, s: SplitState, S: Tensor) -> SplitState:
        theta_S = s.theta[S]
        theta_S[:, self.shared(fed)] = fed.send(s.w, S)
        theta_S[:, fed.flat.columns(["context"])] = F.normalize(self.contexts(fed, theta_S, S), dim=1)
        return SplitState(s.w, put(s.theta, S, theta_S))

    def contexts(self, fed: Federation, theta_S: Tensor, S: Tensor) -> Tensor:
        """[c, h], of any length."""
        weights = fed.flat.views(theta_S, fed.flat.head)[f"{fed.flat.module.head}.weight"]
        if self.context == "head" or fed.t > 1:
            return weights.sum(dim=1)
        drawn = [rng.stream(fed.seed, "context", fed.t, client).random(weights.shape[2]) for client in S.tolist()]
        return torch.from_numpy(np.stack(drawn)).to(theta_S)

    def train(self, fed: Federation, s: SplitState, S: Tensor) -> Tensor:
        head, global_head, plan = fed.flat.head, fed.flat.columns(["global_head"]), fed.batches(S)
        theta_S = fed.sgd(
            s.theta[S],
            S,
            plan=plan,
            columns=slice(0, global_head.start),
            objective=partial(with_mmd, lam=self.lam),
            references=(s.theta[S],),
            per_step={"noise": self.noise(fed, plan, S)},
        )
        theta_S[:, global_head] = (theta_S[:, head] + theta_S[:, global_head]) / 2
        return theta_S

    def noise(self, fed: Federation, plan: Plan, S: Tensor) -> Tensor:
        """For every step of the plan, [c, steps, B, 2, h]."""
        context, B, drawn = fed.flat.columns(["context"]), fed.protocol.batch_size, []
        for client, steps in zip(S.tolist(), plan.steps().tolist(), strict=True):
            stream = rng.stream(fed.seed, "training noise", fed.t, client)
            of_client = gumbel(stream, steps * B, fed.device, width=context.stop - context.start)
            drawn.append(of_client.to(fed.dtype).view(steps, B, *of_client.shape[1:]))
        return pad_sequence(drawn, batch_first=True)
