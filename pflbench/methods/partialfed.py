"""PartialFed, adaptive strategy (Sun et al., NeurIPS 2021), as the FedALA paper describes it (methods.md 1.13).

What that paper leaves open about learning the strategy is as in AdaShare (Sun et al., NeurIPS 2020).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pflbench.engine import rng
from pflbench.engine.batches import Plan
from pflbench.engine.federation import Federation
from pflbench.engine.flat import Flat, put, sgd_step
from pflbench.engine.requests import Argument, Grad
from pflbench.methods.base import hyper, method
from pflbench.methods.fedavg import FedAvg, FedAvgState


@dataclass(frozen=True)
class Strategy:
    """For each of L units: load it from the global model (column 0) or keep the local one (column 1)?"""

    a: Tensor  # [N, L, 2] logits
    m: Tensor  # [N, L, 2] Adam's first moment
    v: Tensor  # [N, L, 2] and second
    k: Tensor  # [N, 1, 1] Adam's steps


@dataclass(frozen=True)
class PartialFedState(FedAvgState):
    theta: Tensor  # [N, P] the local models
    strategy: Strategy
    position: Tensor  # [N] where in the cycle of f_m + f_s batches the client's next round begins


def adam(g: Tensor, rate: float, *, a: Tensor, m: Tensor, v: Tensor, k: Tensor) -> dict[str, Tensor]:
    """One step with torch.optim.Adam's default constants."""
    k, m, v = k + 1, 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return {"a": a - rate * (m / (1 - 0.9**k)) / ((v / (1 - 0.999**k)).sqrt() + 1e-8), "m": m, "v": v, "k": k}


def mix(theta: Tensor, received: Tensor, load: Tensor, sizes: list[int]) -> Tensor:
    """load * received + (1 - load) * theta, unit by unit (load [..., L]); exact where load is 0 or 1."""
    mixed = torch.empty_like(theta)
    rows = (torch.split(x, sizes, -1) for x in (theta, received.expand_as(theta), mixed))
    for own, new, out, z in zip(*rows, load.unsqueeze(-1).unbind(-2), strict=True):
        torch.lerp(own, new, z, out=out)
    return mixed


def loads(logits: Tensor) -> Tensor:
    """The hard decisions [..., L]: 1 where a unit is loaded."""
    return (logits[..., 0] >= logits[..., 1]).to(logits.dtype)


def step(
    grad: Grad,
    *,
    theta: Tensor,
    received: Tensor,
    noise: Tensor,
    learn: Tensor,
    sizes: list[int],
    tau: Tensor,
    lr: float | Tensor,
    rate: float,
    decay: float,
    sample: bool,
    reload: bool,
    **strategy: Tensor,
) -> dict[str, Tensor]:
    """One batch, which trains the strategy where learn [..., 1, 1] says so, and the model elsewhere.

    noise: Gumbel [..., L, 2]; tau: [..., 1, 1]; sizes: parameters of each unit. There is one gradient, at whichever mixture the
    batch is for. The strategy's is written out: with z = softmax((a + G) / tau) and the mixture z_load Theta + z_keep theta,

        df/da_load = <grad f, Theta - theta> z_load z_keep / tau,   df/da_keep = -df/da_load,

    for each unit, since z_keep = 1 - z_load and dz_load/da_load = -dz_load/da_keep = z_load z_keep / tau.
    """
    soft = torch.softmax((strategy["a"] + noise) / tau, -1)
    load = torch.where(learn[..., 0], soft[..., 0], loads(strategy["a"] + sample * noise) * reload)
    mixed = mix(theta, received, load, sizes)
    g = grad(mixed)
    along = zip(torch.split(g, sizes, -1), torch.split(received - theta, sizes, -1), strict=True)
    slope = torch.stack([torch.linalg.vecdot(x, y) for x, y in along], -1) * (soft[..., 0] * soft[..., 1]) / tau[..., 0]
    learned = adam(torch.stack([slope, -slope], -1) + decay * strategy["a"], rate, **strategy)
    after = {name: torch.where(learn, learned[name], old) for name, old in strategy.items()}
    descended = sgd_step(mixed, g, lr, out=mixed)
    return {"theta": torch.where(learn[..., 0], theta, descended, out=descended), **after}


@method
class PartialFed(FedAvg):
    """Each client learns for each layer whether to take it from the global model or to keep its own, anew in every batch."""

    title = "PartialFed"
    authors = "Sun, Huo, Yang, Bai"
    venue = "NeurIPS 2021"
    algorithm = "adaptive strategy"
    category = "personalized FL: learned aggregation"
    shared_models = ()  # theta_i is tested as its client left it, and so are its BatchNorm buffers
    ala_decides = {"start": "received"}
    optimizer_refused = "its batches train the model, by SGD from a mixture, and the strategy, by Adam, in turn"

    tau: float = hyper(5.0, "temperature of the Gumbel softmax in round 1", gt=0)
    tau_decay: float = hyper(0.965, "the temperature is multiplied by this in every round", gt=0, le=1)
    tau_min: float = hyper(0.05, "but does not fall below this", gt=0)
    f_m: int = hyper(8, "batches in a row that train the model", ge=1, search=tuple(range(9, 0, -1)))
    f_s: int = hyper(2, "batches in a row that train the strategy thereafter", ge=0, search=tuple(range(1, 10)))
    strategy_lr: float = hyper(0.01, "rate of Adam for the strategy's logits", ge=0)
    weight_decay: float = hyper(0.0005, "weight decay of Adam for the strategy's logits", ge=0)
    warmup_rounds: int = hyper(0, "rounds of plain FedAvg at the beginning", ge=0)
    # The title's meaning is "round"; the FedALA paper says "in each batch".
    reaggregate: Literal["batch", "round"] = hyper("batch", "apply the strategy before every batch, or once at a round's start")
    split: Literal["cycle", "block"] = hyper("cycle", "f_m batches and f_s batches in turn, or both in one block per epoch")
    unit: Literal["module", "tensor"] = hyper("module", "what shares a decision: a layer's weight and bias, or each on its own")
    hard: Literal["sample", "argmax"] = hyper("sample", "decisions for the model's batches: drawn, or the likelier one")
    start: Literal["own", "received"] = hyper("own", "the local model at a round's start: last round's, or the received one")

    def init(self, fed: Federation) -> PartialFedState:
        a = torch.zeros(fed.size, len(unit_sizes(fed.flat, self.unit)), 2, dtype=fed.dtype, device=fed.device)
        return PartialFedState(
            **vars(super().init(fed)),
            theta=fed.everyone(fed.initial()),
            strategy=Strategy(a=a, m=a.clone(), v=a.clone(), k=a.new_zeros(fed.size, 1, 1)),
            position=torch.zeros(fed.size, dtype=torch.int64, device=fed.device),
        )

    def update(self, fed: Federation, s: PartialFedState, S: Tensor) -> PartialFedState:
        warming_up = fed.t <= self.warmup_rounds
        theta_S, learned = (fed.sgd(fed.rows(s.start, S), S), s) if warming_up else self._alternate(fed, s, S)
        # Training starts at the client's own model, so that the next change contains what was not sent.
        w = fed.mean(fed.collect(theta_S, S, since=s.w, error_feedback=warming_up or self.start == "received"), S)
        return replace(learned, w=w, theta=put(s.theta, S, theta_S))

    def deployed(self, s: PartialFedState) -> Tensor:
        return s.theta

    def welcome(self, fed: Federation, s: PartialFedState, new: Federation) -> None:
        """Not defined by its authors, unlike FedAvg's."""

    def temperature(self, t: int) -> float:
        """tau_t."""
        return max(self.tau * self.tau_decay ** (t - 1), self.tau_min)

    def _alternate(self, fed: Federation, s: PartialFedState, S: Tensor) -> tuple[Tensor, PartialFedState]:
        """theta_i of the cohort after its batches [c, P], and the state with what was learned of the strategies."""
        plan, sizes = fed.batches(S), unit_sizes(fed.flat, self.unit)
        learn, position = self._schedule(fed, plan, s.position[S])
        noise = gumbel(fed, S, 1 + learn.shape[1], len(sizes))  # the first draw is that of a whole round
        strategy = {name: value[S] for name, value in vars(s.strategy).items()}
        theta_S = s.theta[S] if self.start == "own" else fed.rows(s.start, S)
        if self.reaggregate == "round":
            theta_S = mix(theta_S, s.w, loads(strategy["a"] + (self.hard == "sample") * noise[:, 0]), sizes)
        given: dict[str, Argument] = {
            "received": s.w,
            # No constant: each round's step would have to be captured anew.
            "tau": noise.new_full((len(S), 1, 1), self.temperature(fed.t)),
            "lr": fed.lr,
            "rate": self.strategy_lr,
            "decay": self.weight_decay,
            "sample": self.hard == "sample",
            "reload": self.reaggregate == "batch",
        }
        carry, each = {"theta": theta_S, **strategy}, {"noise": noise[:, 1:], "learn": learn[..., None, None]}
        done = fed.train_by(partial(step, sizes=sizes), theta_S, S, carry=carry, given=given, per_step=each, plan=plan)
        learned = Strategy(**{name: put(old, S, done[name]) for name, old in vars(s.strategy).items()})
        fed.observe("strategies", torch.softmax(learned.a, -1))
        return done["theta"], replace(s, strategy=learned, position=put(s.position, S, position))

    def _schedule(self, fed: Federation, plan: Plan, position: Tensor) -> tuple[Tensor, Tensor]:
        """Whether each batch trains the strategy [c, steps], and each client's position in the cycle afterwards [c]."""
        steps, cycle = torch.from_numpy(plan.steps()).to(fed.device), self.f_m + self.f_s
        batches = steps // fed.protocol.local_epochs
        j = torch.arange(int(plan.steps().max()), device=fed.device)
        if self.split == "block":
            of_model = (batches * self.f_m // cycle).clamp(min=1)
            return j % batches.clamp(min=1).unsqueeze(1) >= of_model.unsqueeze(1), position
        # An epoch that never comes to the strategy's batches goes on where it stopped, or the strategy would never learn.
        after = torch.where(batches <= self.f_m, (position + steps) % cycle, 0)
        return (position.unsqueeze(1) + j) % cycle >= self.f_m, after


def unit_sizes(flat: Flat, unit: str) -> list[int]:
    """Parameters of each unit, in the order of the columns: a module with parameters of its own, or a tensor."""
    named = ((e.name if unit == "tensor" else e.name.rpartition(".")[0], e.stop - e.start) for e in flat.parameters)
    return [sum(size for _, size in group) for _, group in groupby(named, key=lambda entry: entry[0])]


def gumbel(fed: Federation, S: Tensor, draws: int, units: int) -> Tensor:
    """G = -log(-log U) for every client, draw and unit: [c, draws, L, 2]."""
    U = np.stack([rng.stream(fed.seed, "gumbel", fed.t, client).random((draws, units, 2)) for client in S.tolist()])
    return torch.from_numpy(-np.log(-np.log(U.clip(1e-10, 1 - 1e-10)))).to(fed.device, fed.dtype)
