"""Requests to an executor and their results, as data. Rows are in the order of the plan's clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pflbench.engine import devices
from pflbench.engine.batches import Plan
from pflbench.engine.memory import Chunks
from pflbench.engine.optimizers import Optimizer

ALL = slice(None)
NONE = slice(0, 0)


@dataclass(frozen=True)
class Shared:
    """A matrix that every client gets whole, such as all core models in APPLE; it is not split by clients."""

    value: Tensor


Argument = Tensor | Shared | float | int | bool

StepArguments = Mapping[str, Argument]
"""Named arguments of a pure function: a tensor [C, ...] has a row for each client, [P] is one row for all."""

Loss = Callable[[Tensor, Tensor], Tensor]
"""loss(output, labels), the mean over the batch; cross-entropy unless a test has a task of its own."""

Penalty = Callable[..., tuple[Tensor, Tensor]]
"""penalty(w, **given) -> (gradient of the penalty, like w; value of the penalty, [...]), for one row or for many."""


@dataclass(frozen=True)
class Output:
    """A model's outputs for a batch: logits [b, K] and the input of its head [b, h] (methods.md 0.3)."""

    logits: Tensor
    features: Tensor


Objective = Callable[..., Tensor]
"""objective(loss, labels, own, *references) -> the value to minimise, for one client's batch; pure.

loss is the executor's (cross-entropy), own what `output` gives of the trained model, references the same of frozen models.
"""


class Grad(Protocol):
    """Gradient of the objective on the current batch at w: takes and returns the inner loop's columns, [..., columns].

    part: number of the batch's part, where the inner loop splits batches. of: number of the client's model that w belongs to,
    whose BatchNorm buffers are used.
    """

    def __call__(self, w: Tensor, part: int = 0, of: int = 0) -> Tensor: ...


Step = Callable[..., dict[str, Tensor]]
"""step(grad, **carry, **given) -> new carry; pure, and written for [...] leading dimensions."""


@dataclass(frozen=True)
class Trained:
    """The result of training C clients."""

    models: Tensor  # [C, P]
    buffers: Tensor  # [C, B], BatchNorm's
    loss: Tensor  # [C], mean over the steps; 0 for a client without steps
    moments: dict[str, Tensor] = field(default_factory=dict)  # [C, ...], the optimizer's state


@dataclass(frozen=True)
class Scanned:
    """The result of an inner loop of C clients."""

    carry: dict[str, Tensor]  # [C, ...], what the last step returned
    buffers: Tensor  # [C, models, B], BatchNorm's
    loss: Tensor  # [C], mean over the steps of each step's first loss
    last_loss: Tensor  # [C], at the last step, before its update


@dataclass(frozen=True)
class HeadOnFeatures:
    """The model's head by itself, on features in place of the samples."""

    executor: Executor  # its rows are the columns `Flat.head` of the clients' models; the caller closes it
    plan: Plan  # the same batches, of features


@dataclass(frozen=True)
class Evaluated:
    """The result of testing C clients, in evaluation mode."""

    correct: Tensor  # [C], number of right predictions (int64)
    loss: Tensor  # [C], summed over the samples (float64)
    logits: Tensor  # [C, longest, K], on the CPU: of each sample, if they were asked for; else [C, 0]

    @classmethod
    def of(cls, correct: Tensor, loss: Tensor, logits: Mapping[int, Tensor]) -> Evaluated:
        """logits: of clients by position, [samples, K] on the CPU; none if they were not asked for."""
        padded = torch.empty(len(correct), 0)
        if logits:
            first = next(iter(logits.values()))
            padded = first.new_zeros(len(correct), max(map(len, logits.values())), first.shape[1])
        for client, rows in logits.items():
            padded[client, : len(rows)] = rows
        return cls(correct, loss, padded)


# Marks fields that have one row per client, so that packed runs can concatenate them (engine.packed).
# The models of an `Evaluate` are marked as well: those of several runs are concatenated in the same way.
# A field without a mark is the same for all clients.
PER_CLIENT = {"rows": "client"}  # tensors [C, ...], one or several
PER_STEP = {"rows": "step"}  # tensors [C, steps, ...]
PER_SAMPLE = {"rows": "sample"}  # a function for each client, or none at all
GIVEN = {"rows": "given"}  # as `StepArguments` says

R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class Request(Generic[R]):
    """A request for work of C clients; its result is an R. Executors change none of its tensors."""

    plan: Plan  # the clients' samples, step by step


@dataclass(frozen=True, eq=False)
class Sgd(Request[Trained]):
    """SGD along the plan: w <- w - lr * (g + correction), in `columns` only; or an optimizer's step along g + correction."""

    models: Tensor = field(metadata=PER_CLIENT)  # [C, P], the models to begin with
    buffers: Tensor = field(metadata=PER_CLIENT)  # [C, B], BatchNorm's
    lr: float | Tensor  # a tensor [] where it changes from round to round: a captured step is then not captured anew
    columns: slice = field(default_factory=lambda: ALL)  # of the parameters to train
    # Part of `columns`: w <- w + g there instead, so that an objective can sum up values over the steps.
    summed: slice = field(default_factory=lambda: NONE)
    penalty: Penalty | None = None
    given: StepArguments = field(default_factory=dict, metadata=GIVEN)  # arguments of `penalty`
    objective: Objective | None = None  # None: the loss
    # Each [C, P]: frozen models that the objective compares with, in training mode on the same batch.
    references: Sequence[Tensor] = field(default=(), metadata=PER_CLIENT)
    # [C, steps, ...], arguments of the module's `outputs` at single steps, where there is an objective.
    per_step: Mapping[str, Tensor] = field(default_factory=dict, metadata=PER_STEP)
    optimizer: Optimizer | None = None  # None: plain SGD
    moments: Mapping[str, Tensor] = field(default_factory=dict, metadata=PER_CLIENT)  # [C, ...], its state to begin with


@dataclass(frozen=True, eq=False)
class Scan(Request[Scanned]):
    """Any other inner loop: carry <- step(grad, **carry, **given, **per_step at this step) for every batch of the plan."""

    step: Step
    frozen: Tensor = field(metadata=PER_CLIENT)  # [C, P], the models' values outside `columns`
    carry: Mapping[str, Tensor] = field(metadata=PER_CLIENT)  # [C, ...], carry of the first step
    given: StepArguments = field(metadata=GIVEN)  # arguments of every step
    buffers: Tensor = field(metadata=PER_CLIENT)  # [C, models, B], BatchNorm's of each of the client's models
    columns: slice = field(default_factory=lambda: ALL)  # of the parameters to differentiate by
    per_step: Mapping[str, Tensor] = field(default_factory=dict, metadata=PER_STEP)  # [C, steps, ...], arguments of single steps
    parts: int = 1  # number of nearly equal parts into which every batch is split
    objective: Objective | None = None  # to differentiate; None: the loss


@dataclass(frozen=True, eq=False)
class ExtractFeatures(Request[HeadOnFeatures]):
    """The model's head alone, on the features that the models give to the plan's batches in training mode.

    For inner loops that change the head alone: the layers below it run once, not once per epoch.
    """

    models: Tensor = field(metadata=PER_CLIENT)  # [C, P]
    buffers: Tensor = field(metadata=PER_CLIENT)  # [C, B], BatchNorm's


@dataclass(frozen=True, eq=False)
class SumByClass(Request[Tensor]):
    """`by_class` [C, K, h + 1] of the features that each client's model gives to the plan's samples, in evaluation mode."""

    models: Tensor = field(metadata=PER_CLIENT)  # [C, P]
    buffers: Tensor = field(metadata=PER_CLIENT)  # [C, B], BatchNorm's


@dataclass(frozen=True, eq=False)
class Evaluate(Request[Evaluated]):
    """A test on the plan's samples, in evaluation mode, of M models: each client's own, or those that several clients share.

    Clients that share a model follow one another. A model is its row and its buffers.
    """

    models: Tensor = field(metadata=PER_CLIENT)  # [M, P]
    buffers: Tensor = field(metadata=PER_CLIENT)  # [M, B], BatchNorm's
    # [M], number of clients of each model (int64, on the CPU); None: 1
    shared_by: Tensor | None = field(default=None, metadata=PER_CLIENT)
    logits: bool = False  # whether to return them, too
    # For each client a further argument of the module, [samples, ...], made only when the client is tested: it may be large.
    per_sample: Sequence[Callable[[], Tensor]] = field(default=(), metadata=PER_SAMPLE)

    @property
    def model_of(self) -> np.ndarray:
        """The number of the model that each of the plan's clients is tested with, [C]."""
        return np.repeat(np.arange(len(self.models)), 1 if self.shared_by is None else self.shared_by.numpy())


class Executor(ABC):
    """All executors compute the same numbers from the same requests (float64: 1e-10)."""

    name: str
    device: torch.device
    chunks: Chunks | None = None  # None for executors that do not compute several clients at a time

    @abstractmethod
    def do(self, request: Request[R]) -> R:
        """The answer to a request."""

    def begin_round(self, t: int) -> None:  # noqa: B027  # most executors need not know
        """Tells the executor which round begins: of runs that train together, those behind go first."""

    def begin_phase(self) -> None:  # noqa: B027  # most executors count nothing
        """Tells the executor that a phase of a round begins."""

    @property
    def flops(self) -> float | None:
        """FLOPs of all requests so far; None if they are not counted."""
        return None

    def clock(self) -> float:
        """Seconds that the run has taken, counted from anywhere, once all its requests are done."""
        return devices.seconds(self.device)

    def record(self) -> dict[str, Any]:
        """How the run is executed, as JSON types for its record.

        chunk: clients computed at a time. steps: how steps are captured. pack: the number of runs that train together.
        """
        return {}

    def close(self) -> None:  # noqa: B027  # most executors hold nothing
        """Releases threads and memory."""


class BaseExecutor(Executor):
    """An executor that computes each request at once, by a function for each kind."""

    def do(self, request: Request[R]) -> R:
        kinds: dict[type, Callable[[Any], Any]]
        kinds = {
            Sgd: self._sgd,
            Scan: self._scan,
            ExtractFeatures: self._head,
            SumByClass: self._class_sums,
            Evaluate: self._evaluate,
        }
        result: R = kinds[type(request)](request)
        return result

    @abstractmethod
    def _sgd(self, request: Sgd) -> Trained: ...

    @abstractmethod
    def _scan(self, request: Scan) -> Scanned: ...

    @abstractmethod
    def _head(self, request: ExtractFeatures) -> HeadOnFeatures: ...

    @abstractmethod
    def _class_sums(self, request: SumByClass) -> Tensor: ...

    @abstractmethod
    def _evaluate(self, request: Evaluate) -> Evaluated: ...


def pick(given: StepArguments, which: int | slice | Tensor) -> StepArguments:
    """The arguments of some of the cohort's clients, by position."""
    return {k: v[which] if isinstance(v, Tensor) and v.dim() > 1 else v for k, v in given.items()}


def unwrap(given: StepArguments) -> dict[str, Tensor | float | int | bool]:
    """The arguments as the pure function gets them."""
    return {k: v.value if isinstance(v, Shared) else v for k, v in given.items()}


def function_key(function: Any) -> Hashable:
    """Equal for functions that do the same: the function, and its arguments if it is a `partial`. Those may have no hash."""
    if isinstance(function, partial):
        named = tuple(sorted((name, _value(value)) for name, value in function.keywords.items()))
        return function_key(function.func), tuple(map(_value, function.args)), named
    found: Hashable = function
    return found


def _value(value: Any) -> Any:
    return tuple(map(_value, value)) if isinstance(value, (list, tuple)) else value


def by_class(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Sums over the samples of each class, of the features [..., b, h] and of their squared norms: [..., K, h + 1]."""
    beside = torch.cat([features, features.square().sum(-1, keepdim=True)], dim=-1)
    return F.one_hot(labels, classes).to(features.dtype).mT @ beside


def output(module: nn.Module, x: Tensor, **per_step: Tensor) -> Any:
    """What the module's method `outputs` gives; else its logits and features, or without `features` the logits for both."""
    if hasattr(module, "outputs"):
        return module.outputs(x, **per_step)  # type: ignore[operator]
    if not hasattr(module, "features"):
        logits: Tensor = module(x)
        return Output(logits, logits)
    features: Tensor = module.features(x)  # type: ignore[operator]
    return Output(module.get_submodule(str(module.head))(features), features)
