"""What both executors are asked for and give back. Rows are in the order of the plan's clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pflbench.engine import devices
from pflbench.engine.batches import Plan
from pflbench.engine.memory import Shortage

ALL = slice(None)


@dataclass(frozen=True)
class Shared:
    """A matrix that all clients are given whole, as all clients' models in APPLE: not a row for each."""

    value: Tensor


Argument = Tensor | Shared | float | int | bool

Given = Mapping[str, Argument]
"""What a pure function is passed by name: a tensor [C, ...] is a row for each client, [P] one row for all."""

Loss = Callable[[Tensor, Tensor], Tensor]
"""loss(output, labels), the mean over the batch; cross-entropy unless a test has a task of its own."""

Correct = Callable[..., tuple[Tensor, Tensor]]
"""correct(w, **given) -> (gradient of the penalty, like w; value of the penalty, [...]), for one row or for many."""


@dataclass(frozen=True)
class Output:
    """What a model says of a batch: logits [b, K] and the input of its head [b, h] (methods.md 0.3)."""

    logits: Tensor
    features: Tensor


Objective = Callable[..., Tensor]
"""objective(loss, labels, own, *references) -> what is minimised, for one client's batch; pure.

loss is the executor's (cross-entropy), own the `Output` of the trained model, references those of frozen models.
"""


class Grad(Protocol):
    """Gradient of the objective on the current batch at w: takes and returns the walk's columns, [..., columns].

    part: which part of the batch, where the walk splits it. of: which of the client's models w is, for its BatchNorm buffers.
    """

    def __call__(self, w: Tensor, part: int = 0, of: int = 0) -> Tensor: ...


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
    buffers: Tensor  # [C, models, B]
    loss: Tensor  # [C], mean over the steps of each step's first loss
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
        objective: Objective | None = None,
        references: Sequence[Tensor] = (),
    ) -> Trained:
        """Plain SGD along the plan, w <- w - lr * (g + correction), in `columns` only. `rows` is not changed.

        references: rows [C, P] of frozen models that the objective compares with, in training mode on the same batch.
        """

    def walk(
        self,
        step: Step,
        base: Tensor,
        carry: Mapping[str, Tensor],
        given: Given,
        buffers: Tensor,
        plan: Plan,
        columns: slice = ALL,
        *,
        each: Mapping[str, Tensor] | None = None,
        parts: int = 1,
        objective: Objective | None = None,
    ) -> Walked:
        """Any other inner loop: carry <- step(grad, **carry, **given, **each at this step) for every batch of the plan.

        Outside `columns` the models are those of `base` [C, P]. buffers: [C, models, B]. each: inputs of every step
        [C, steps, ...]. parts: the number of nearly equal parts into which every batch is split.
        """

    def head(self, rows: Tensor, buffers: Tensor, plan: Plan) -> tuple[Executor, Plan]:
        """An executor for the model's head alone, on the features that models `rows` give to the plan's batches in training mode.

        For inner loops that change nothing below the head: the layers there run once, not once per epoch.
        """

    def evaluate(self, rows: Tensor, buffers: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        """Correct predictions [C] (int64) and summed loss [C] (float64), in evaluation mode."""

    def begin_round(self, t: int) -> None:
        """Says which round is under way: of runs that are made together, those behind go first."""

    def clock(self) -> float:
        """Seconds that the run has taken, counted from anywhere, once all that was asked for is done."""

    def record(self) -> dict[str, Any]:
        """For the record of a run, as JSON types: how it is executed, where there is something to tell.

        chunk: clients computed at a time. steps: how steps are made. pack: with how many runs, as far as it has come.
        """

    def shortages(self) -> Sequence[Shortage]:
        """When memory did not suffice so far."""

    def close(self) -> None:
        """Gives back what the executor holds."""


class Direct:
    """An executor that computes what it is asked for at once, and by itself has little to tell."""

    device: torch.device

    def begin_round(self, t: int) -> None:
        """All is made in the order in which it is asked for."""

    def clock(self) -> float:
        return devices.seconds(self.device)

    def record(self) -> dict[str, Any]:
        return {}

    def shortages(self) -> Sequence[Shortage]:
        return ()

    def close(self) -> None:
        """Nothing is held."""


def pick(given: Given, which: int | slice | Tensor) -> Given:
    """The part of `given` that belongs to some of the cohort's clients."""
    return {k: v[which] if isinstance(v, Tensor) and v.dim() > 1 else v for k, v in given.items()}


def unwrap(given: Given) -> dict[str, Tensor | float | int | bool]:
    """As the pure function sees it."""
    return {k: v.value if isinstance(v, Shared) else v for k, v in given.items()}


def output(module: nn.Module, x: Tensor) -> Output:
    """The module's logits and features; where it does not say what its head's input is, the logits stand for both."""
    if not hasattr(module, "features"):
        logits: Tensor = module(x)
        return Output(logits, logits)
    features: Tensor = module.features(x)  # type: ignore[operator]
    return Output(module.get_submodule(str(module.head))(features), features)
