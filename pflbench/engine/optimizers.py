"""Optimizers of local training other than plain SGD (methods.md 2.3): PyTorch's, and the same for rows of many clients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from pflbench.spec import TrainSpec

BETAS, EPS = (0.9, 0.999), 1e-8  # torch.optim.AdamW's
WORKSPACE = 3  # temporary rows of each client in a step


@dataclass(frozen=True)
class Optimizer:
    """torch.optim.AdamW, or torch.optim.SGD with momentum (0: none), both with weight decay."""

    adamw: bool
    momentum: float
    weight_decay: float

    @property
    def kept(self) -> int:
        """Rows of each client that last from step to step."""
        return 2 if self.adamw else int(self.momentum > 0)

    def begin(self, rows: Tensor) -> dict[str, Tensor]:
        """The state before the first step of rows [c, m], by PyTorch's names."""
        names = ("exp_avg", "exp_avg_sq") if self.adamw else ("momentum_buffer",) * self.kept
        state = {name: torch.zeros_like(rows, memory_format=torch.contiguous_format) for name in names}
        return {**state, "step": rows.new_zeros(len(rows), 1)} if self.adamw else state

    def step(self, w: Tensor, g: Tensor, lr: float | Tensor, state: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Rows [c, m] and their state after a step with gradients g [c, m]. Clients may have made different numbers of steps."""
        if self.adamw:
            k, (first, second) = state["step"] + 1, BETAS
            m = torch.lerp(state["exp_avg"], g, 1 - first)
            v = (second * state["exp_avg_sq"]).addcmul_(g, g, value=1 - second)
            # 1 - beta^k, without its loss of digits in single precision.
            rate, scale = (-torch.expm1(k * math.log(beta)) for beta in BETAS)
            change = (m / (v.sqrt() / scale.sqrt()).add_(EPS)).mul_(lr / rate)
            return (w * (1 - lr * self.weight_decay)).sub_(change), {"exp_avg": m, "exp_avg_sq": v, "step": k}
        if self.weight_decay:
            g = g.add(w, alpha=self.weight_decay)
        if not self.momentum:
            return w - lr * g, {}
        velocity = (self.momentum * state["momentum_buffer"]).add_(g)
        return w - lr * velocity, {"momentum_buffer": velocity}

    def torch_step(self, w: Tensor, g: Tensor, lr: float, state: Mapping[str, Tensor]) -> None:
        """PyTorch's own step of one client's w [m] with gradient g [m]; changes w and the state in place."""
        how: dict[str, Any] = {"foreach": False, "fused": False, "lr": lr, "weight_decay": self.weight_decay, "maximize": False}
        if self.adamw:
            how |= {"beta1": BETAS[0], "beta2": BETAS[1], "eps": EPS, "amsgrad": False}
            adamw([w], [g], [state["exp_avg"]], [state["exp_avg_sq"]], [], [state["step"]], **how)
        else:
            sgd([w], [g], [state.get("momentum_buffer")], momentum=self.momentum, dampening=0.0, nesterov=False, **how)


def of(train: TrainSpec) -> Optimizer | None:
    """A protocol's optimizer; None for plain SGD, which executors compute faster by themselves."""
    if train.plain_sgd:
        return None
    return Optimizer(train.optimizer == "adamw", train.momentum or 0.0, train.weight_decay or 0.0)
