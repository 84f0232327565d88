"""What both executors are asked for and give back. Rows are in the order of the plan's clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pflbench.engine.batches import Plan

ALL = slice(None)

Given = Mapping[str, Tensor | float | int | bool]
"""Tensors and numbers passed by name: [C, ...] is a row for each client, [P] one row for all."""

Loss = Callable[[Tensor, Tensor], Tensor]
"""loss(output, labels), the mean over the batch; cross-entropy unless a test has a task of its own."""

Correct = Callable[..., tuple[Tensor, Tensor]]
"""correct(w, **given) -> (gradient of the penalty, like w; value of the penalty, [...]), for one row or for many."""

Grad = Callable[[Tensor], Tensor]
"""Gradient of the mean cross-entropy on the current batch: takes and returns the walk's columns, [..., columns]."""

Step = Callable[..., dict[str, Tensor]]
"""step(grad, **carry, **given) -> new carry; pure, and written for [...] leading dimensions."""


@dataclass(frozen=True)
class Trained:
    rows: Tensor  # [C, P]
    buffers: Tensor  # [C, B]
    loss: Tensor  # [C], mean over the steps; 0 for a client without steps


@dataclass(frozen=True)
class Walked:
    carry: dict[str, Tensor]  # [C, ...]
    buffers: Tensor  # [C, B]
    loss: Tensor  # [C], mean over the steps
    last_loss: Tensor  # [C], at the last step, before its update


class Executor(Protocol):
    """Both executors compute the same numbers from the same plans (float64: 1e-10)."""

    name: str
    device: torch.device

    def sgd(
        self,
        rows: Tensor,
        buffers: Tensor,
        plan: Plan,
        lr: float,
        columns: slice = ALL,
        correct: Correct | None = None,
        given: Given | None = None,
    ) -> Trained:
        """Plain SGD along the plan, w <- w - lr * (g + correction), in `columns` only. `rows` is not changed."""

    def walk(
        self,
        step: Step,
        base: Tensor,
        carry: Mapping[str, Tensor],
        given: Given,
        buffers: Tensor,
        plan: Plan,
        columns: slice = ALL,
    ) -> Walked:
        """Any other inner loop: carry <- step(grad, **carry, **given) for every batch of the plan.

        Outside `columns` the models are those of `base` [C, P].
        """

    def head(self, rows: Tensor, buffers: Tensor, plan: Plan) -> tuple[Executor, Plan]:
        """An executor for the model's head alone, on the features that models `rows` give to the plan's batches in training mode.

        For inner loops that change nothing below the head: the layers there run once, not once per epoch.
        """

    def evaluate(self, rows: Tensor, buffers: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        """Correct predictions [C] (int64) and summed cross-entropy [C] (float64), in evaluation mode."""

    def close(self) -> None:
        """Gives back what the executor holds."""


def pick(given: Given, which: int | slice | Tensor) -> dict[str, Tensor | float | int | bool]:
    """The part of `given` that belongs to some of the cohort's clients."""
    return {k: v[which] if isinstance(v, Tensor) and v.dim() > 1 else v for k, v in given.items()}
