"""What an executor is asked for, as data, and what it gives back. Rows are in the order of the plan's clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from pflbench.engine import devices
from pflbench.engine.batches import Plan
from pflbench.engine.memory import Shortage
from pflbench.engine.optimizers import Optimizer

ALL = slice(None)


@dataclass(frozen=True)
class Shared:
    """A matrix that all clients are given whole, as all clients' models in APPLE: not a row for each."""

    value: Tensor


Argument = Tensor | Shared | float | int | bool

StepArguments = Mapping[str, Argument]
"""What a pure function is passed by name: a tensor [C, ...] is a row for each client, [P] one row for all."""

Loss = Callable[[Tensor, Tensor], Tensor]
"""loss(output, labels), the mean over the batch; cross-entropy unless a test has a task of its own."""

Penalty = Callable[..., tuple[Tensor, Tensor]]
"""penalty(w, **given) -> (gradient of the penalty, like w; value of the penalty, [...]), for one row or for many."""


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
    """Gradient of the objective on the current batch at w: takes and returns the inner loop's columns, [..., columns].

    part: of the batch, where the inner loop splits it. of: which of the client's models w is, for its BatchNorm buffers.
    """

    def __call__(self, w: Tensor, part: int = 0, of: int = 0) -> Tensor: ...


Step = Callable[..., dict[str, Tensor]]
"""step(grad, **carry, **given) -> new carry; pure, and written for [...] leading dimensions."""


@dataclass(frozen=True)
class Trained:
    """Of C clients."""

    models: Tensor  # [C, P], their models
    buffers: Tensor  # [C, B], BatchNorm's
    loss: Tensor  # [C], mean over the steps; 0 for a client without steps
    moments: dict[str, Tensor] = field(default_factory=dict)  # [C, ...], the optimizer's state


@dataclass(frozen=True)
class Scanned:
    """Of C clients."""

    carry: dict[str, Tensor]  # [C, ...], what the last step returned
    buffers: Tensor  # [C, models, B], BatchNorm's
    loss: Tensor  # [C], mean over the steps of each step's first loss
    last_loss: Tensor  # [C], at the last step, before its update


@dataclass(frozen=True)
class HeadOnFeatures:
    """The model's head by itself, on features in place of the samples."""

    executor: Executor  # of which a client's row is the part `Flat.head` of its model; whoever asked for it closes it
    plan: Plan  # the same batches, of features


@dataclass(frozen=True)
class Evaluated:
    """Of C clients, in evaluation mode."""

    correct: Tensor  # [C], predictions (int64)
    loss: Tensor  # [C], summed over the samples (float64)


# Marks fields that have one row per client, so that packed runs can concatenate them (engine.packed).
# A row for each model of an `Evaluate` counts as a row for each client: those of several runs come one after another.
# A field without any of these is the same for all clients.
PER_CLIENT = {"rows": "client"}  # tensors [C, ...], one or several
PER_STEP = {"rows": "step"}  # tensors [C, steps, ...]
GIVEN = {"rows": "given"}  # as `StepArguments` says

R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class Request(Generic[R]):
    """What an executor is asked for: work of C clients; the answer is an R. No tensor of it is changed."""

    plan: Plan  # the clients' samples, step by step


@dataclass(frozen=True, eq=False)
class Sgd(Request[Trained]):
    """SGD along the plan: w <- w - lr * (g + correction), in `columns` only; or an optimizer's step along g + correction."""

    models: Tensor = field(metadata=PER_CLIENT)  # [C, P], the models to begin with
    buffers: Tensor = field(metadata=PER_CLIENT)  # [C, B], BatchNorm's
    lr: float | Tensor  # a tensor []: one that changes from round to round, for which a captured step is not made anew
    columns: slice = field(default_factory=lambda: ALL)  # those of the parameters that are trained
    penalty: Penalty | None = None  # the penalty, if there is one
    given: StepArguments = field(default_factory=dict, metadata=GIVEN)  # what `penalty` is passed by name
    objective: Objective | None = None  # what is minimised, if not the loss
    # Each [C, P]: frozen models that the objective compares with, in training mode on the same batch.
    references: Sequence[Tensor] = field(default=(), metadata=PER_CLIENT)
    optimizer: Optimizer | None = None  # None: plain SGD
    moments: Mapping[str, Tensor] = field(default_factory=dict, metadata=PER_CLIENT)  # [C, ...], its state to begin with


@dataclass(frozen=True, eq=False)
class Scan(Request[Scanned]):
    """Any other inner loop: carry <- step(grad, **carry, **given, **per_step at this step) for every batch of the plan."""

    step: Step
    frozen: Tensor = field(metadata=PER_CLIENT)  # [C, P], what the models are outside `columns`
    carry: Mapping[str, Tensor] = field(metadata=PER_CLIENT)  # [C, ...], what the first step is passed by name
    given: StepArguments = field(metadata=GIVEN)  # what every step is passed by name
    buffers: Tensor = field(metadata=PER_CLIENT)  # [C, models, B], BatchNorm's of each of the client's models
    columns: slice = field(default_factory=lambda: ALL)  # those of the parameters that a gradient is of
    per_step: Mapping[str, Tensor] = field(default_factory=dict, metadata=PER_STEP)  # [C, steps, ...], each step's own inputs
    parts: int = 1  # nearly equal ones into which every batch is split
    objective: Objective | None = None  # what gradients are of, if not of the loss


@dataclass(frozen=True, eq=False)
class ExtractFeatures(Request[HeadOnFeatures]):
    """The model's head alone, on the features that the models give to the plan's batches in training mode.

    For inner loops that change nothing below the head: the layers there run once, not once per epoch.
    """

    models: Tensor = field(metadata=PER_CLIENT)  # [C, P], the models
    buffers: Tensor = field(metadata=PER_CLIENT)  # [C, B], BatchNorm's


@dataclass(frozen=True, eq=False)
class Evaluate(Request[Evaluated]):
    """A test on the plan's samples, in evaluation mode, of M models: each client's own, or those that several clients share.

    Clients that share a model follow one another. A model is its row and its buffers.
    """

    models: Tensor = field(metadata=PER_CLIENT)  # [M, P], the models
    buffers: Tensor = field(metadata=PER_CLIENT)  # [M, B], BatchNorm's
    shared_by: Tensor | None = field(default=None, metadata=PER_CLIENT)  # [M] (int64, on the CPU), clients; None: one to each

    @property
    def model_of(self) -> np.ndarray:
        """Which of the models each of the plan's clients is tested with, [C]."""
        return np.repeat(np.arange(len(self.models)), 1 if self.shared_by is None else self.shared_by.numpy())


class Executor(ABC):
    """All executors compute the same numbers from the same requests (float64: 1e-10)."""

    name: str
    device: torch.device

    @abstractmethod
    def do(self, request: Request[R]) -> R:
        """The answer to a request."""

    def begin_round(self, t: int) -> None:  # noqa: B027  # most executors need not know
        """Says which round is under way: of runs that are made together, those behind go first."""

    def clock(self) -> float:
        """Seconds that the run has taken, counted from anywhere, once all its requests are done."""
        return devices.seconds(self.device)

    def record(self) -> dict[str, Any]:
        """For the record of a run, as JSON types: how it is executed, where there is something to tell.

        chunk: clients computed at a time. steps: how steps are made. pack: with how many runs, as far as it has come.
        """
        return {}

    def shortages(self) -> Sequence[Shortage]:
        """When memory did not suffice so far."""
        return ()

    def remember(self, shortages: Sequence[Shortage]) -> None:  # noqa: B027  # most executors cannot compute fewer clients
        """Goes on from these, of the same run in another process."""

    def close(self) -> None:  # noqa: B027  # most executors hold nothing
        """Gives back what the executor holds."""


class BaseExecutor(Executor):
    """An executor that computes each request at once, by a function for each kind."""

    def do(self, request: Request[R]) -> R:
        kinds: dict[type, Callable[[Any], Any]]
        kinds = {Sgd: self._sgd, Scan: self._scan, ExtractFeatures: self._head, Evaluate: self._evaluate}
        result: R = kinds[type(request)](request)
        return result

    @abstractmethod
    def _sgd(self, request: Sgd) -> Trained: ...

    @abstractmethod
    def _scan(self, request: Scan) -> Scanned: ...

    @abstractmethod
    def _head(self, request: ExtractFeatures) -> HeadOnFeatures: ...

    @abstractmethod
    def _evaluate(self, request: Evaluate) -> Evaluated: ...


def pick(given: StepArguments, which: int | slice | Tensor) -> StepArguments:
    """The part of `given` that belongs to some of the cohort's clients."""
    return {k: v[which] if isinstance(v, Tensor) and v.dim() > 1 else v for k, v in given.items()}


def unwrap(given: StepArguments) -> dict[str, Tensor | float | int | bool]:
    """As the pure function sees it."""
    return {k: v.value if isinstance(v, Shared) else v for k, v in given.items()}


def function_key(function: Any) -> Hashable:
    """What a function is known by: itself, and its arguments where it is a partial one. They may turn out to have no hash."""
    if isinstance(function, partial):
        named = tuple(sorted((name, _value(value)) for name, value in function.keywords.items()))
        return function_key(function.func), tuple(map(_value, function.args)), named
    found: Hashable = function
    return found


def _value(value: Any) -> Any:
    return tuple(map(_value, value)) if isinstance(value, (list, tuple)) else value


def output(module: nn.Module, x: Tensor) -> Output:
    """The module's logits and features; where it does not say what its head's input is, the logits stand for both."""
    if not hasattr(module, "features"):
        logits: Tensor = module(x)
        return Output(logits, logits)
    features: Tensor = module.features(x)  # type: ignore[operator]
    return Output(module.get_submodule(str(module.head))(features), features)
