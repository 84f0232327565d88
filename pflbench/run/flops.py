"""FLOPs that requests must cost, counted while a run trains.

They are those that PyTorch counts for the model, on two samples, times the samples of a request, and times its batches for what
each batch costs whatever its size: so counting takes no time. What is no request (averages on the server, the C x C work of
FedFomo and FedAMP) does not count. FLOPs are those of direct convolutions, which an FFT or Winograd's algorithm can undercut.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import flop_counter
from torch.utils.flop_counter import FlopCounterMode

from pflbench.engine.batches import Plan
from pflbench.engine.flat import Flat
from pflbench.engine.requests import (
    Evaluate,
    Executor,
    ExtractFeatures,
    HeadOnFeatures,
    Objective,
    R,
    Request,
    Scan,
    Sgd,
    SumByClass,
    function_key,
    output,
    unwrap,
)

# PyTorch's counter would import PyTorch's compiler, only to say that it is not to be compiled: 1.5 s at the start of a run.
_mode: Any = getattr(flop_counter, "_FlopCounterMode", FlopCounterMode)
_dispatch = getattr(getattr(_mode, "__torch_dispatch__", None), "__wrapped__", None)
if _dispatch is not None:
    setattr(_dispatch, "__dynamo_disable", _dispatch)

COUNTED = 2  # samples on which FLOPs are counted: BatchNorm cannot train on one; all that is counted is linear in the batch


class Costs:
    """FLOPs of a model for one sample. x: two samples as the model takes them, of which only shape and type matter."""

    def __init__(self, flat: Flat, x: Tensor) -> None:
        self.flat = flat
        floats = x.dtype if x.is_floating_point() else None
        self.module: nn.Module = copy.deepcopy(flat.module).to("cpu", floats).train()
        self.x = x.cpu()
        self._gradients: dict[Any, tuple[float, float]] = {}

    @cached_property
    def head_input(self) -> tuple[Tensor, float]:
        """The input of the head for two samples, and its FLOPs for one."""
        below: Any = self.module.features
        with FlopCounterMode(display=False) as counted:
            out: Tensor = below(self.x)
        return out.detach(), counted.get_total_flops() / len(self.x)

    def gradient(self, columns: slice, objective: Objective | None = None, references: int = 0) -> tuple[float, float]:
        """Forward, and backward for the parameters in `columns`: nothing is differentiated below the first of them.

        Returns what a batch costs whatever its size, and what each of its samples costs. references: models of the objective,
        whose own passes are not counted.
        """
        start, stop, _ = columns.indices(self.flat.size)
        key = start, stop, function_key(objective), references
        if key not in self._gradients:
            self._gradients[key] = self._split(lambda x: self._of_batch(x, columns, objective, references))
        return self._gradients[key]

    def _of_batch(self, x: Tensor, columns: slice, objective: Objective | None, references: int) -> int:
        inside = {entry.name for entry in self.flat.within(columns)}
        for name, parameter in self.module.named_parameters():
            parameter.requires_grad_(name in inside)
        trained = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        labels = torch.zeros(len(x), dtype=torch.int64)
        with torch.no_grad():
            compared = [output(self.module, x) for _ in range(references)]
        with torch.enable_grad(), FlopCounterMode(display=False) as counted:
            if objective is None:
                loss = F.cross_entropy(self.module(x), labels)
            else:
                loss = objective(F.cross_entropy, labels, output(self.module, x), *compared)
            torch.autograd.grad(loss, trained, allow_unused=True)
        return int(counted.get_total_flops())

    def frozen(self, columns: slice) -> float:
        """Of the forward pass through the submodules of the user's model that lie below `columns`."""
        start, _, _ = columns.indices(self.flat.size)
        prefix, inner = "", self.module
        while (net := getattr(inner, "user_model", None)) is not None:
            prefix, inner = f"{prefix}{net}.", inner.get_submodule(net)
        children = [f"{prefix}{name}" for name, _ in inner.named_children()]
        above = [entry.name for entry in self.flat.parameters if entry.stop > start]
        below = [child for child in children if not any(name.startswith(f"{child}.") for name in above)]
        return sum(self.forward.get(f"{type(self.module).__name__}.{child}", 0.0) for child in below)

    @cached_property
    def test(self) -> tuple[float, float]:
        """Of the forward pass, of a batch and of each of its samples, as `gradient`."""
        return self._split(lambda x: self._forward(x).get_total_flops())

    @cached_property
    def forward(self) -> dict[str, float]:
        """Of the forward pass, by submodule; "Global" is all."""
        counted = self._forward(self.x).get_flop_counts()
        return {name: sum(flops.values()) / len(self.x) for name, flops in counted.items()}

    def _forward(self, x: Tensor) -> FlopCounterMode:
        counted = FlopCounterMode(display=False)
        with torch.no_grad(), counted:
            self.module(x)
        return counted

    def _split(self, flops: Callable[[Tensor], int]) -> tuple[float, float]:
        """FLOPs of a batch whatever its size, and of each of its samples, from those of two and of four samples."""
        one, two = flops(self.x), flops(torch.cat([self.x, self.x]))
        sample = (two - one) / len(self.x)
        return one - sample * len(self.x), sample


class Flops:
    """Adds up the FLOPs of requests. Samples pass layers that a phase does not change once in it: their features stay.

    With BatchNorm they pass them every time, since a sample's features depend on its batch.
    """

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.own = 0.0  # without those of `head`
        self._steps: dict[Any, tuple[list[int], float]] = {}
        self.begin()

    @property
    def total(self) -> float:
        return self.own + (self.head.total if "head" in vars(self) else 0.0)

    def begin(self) -> None:
        """A new phase."""
        self._through_frozen = np.empty(0, dtype=np.int64)  # samples that have passed the frozen layers

    def add(self, request: Request[Any]) -> None:
        if isinstance(request, Sgd):
            self._differentiate(request.plan, request.columns, request.objective, len(request.references))
            if request.references:
                self.own += len(request.references) * _samples(request.plan) * self.costs.forward["Global"]
        elif isinstance(request, Scan) and request.plan.steps().any():
            taken, own = self.of_step(request)
            self.own += own * int(request.plan.steps().sum())
            pieces = [request.plan] if request.parts == 1 else _parts(request.plan, request.parts)
            for part in taken:
                self._differentiate(pieces[part], request.columns, request.objective)
        elif isinstance(request, ExtractFeatures | SumByClass):
            features, flops = self.costs.head_input
            sums = 2 * self.costs.flat.classes * (features.shape[-1] + 1) if isinstance(request, SumByClass) else 0
            self.own += _samples(request.plan) * (flops + sums)
        elif isinstance(request, Evaluate):
            of_batch, of_sample = self.costs.test
            self.own += len(request.plan) * of_batch + _samples(request.plan) * of_sample

    def of_step(self, request: Scan) -> tuple[list[int], float]:
        """Of a step of an inner loop the parts whose gradients it takes, and the FLOPs of its own products for one client.

        Neither depends on the data: one step of all clients at once, without gradients, stands for all.
        """
        inputs = {name: value[:, 0] for name, value in request.per_step.items()}
        given = unwrap(request.given)
        arguments = {**request.carry, **given, **inputs}
        shapes = tuple((name, tuple(value.shape) if isinstance(value, Tensor) else None) for name, value in arguments.items())
        key = function_key(request.step), shapes
        if key not in self._steps:
            taken: list[int] = []

            def grad(w: Tensor, part: int = 0, of: int = 0) -> Tensor:
                taken.append(part)
                return torch.zeros_like(w)

            with torch.no_grad(), FlopCounterMode(display=False) as products:  # such as with all core models in APPLE
                request.step(grad, **request.carry, **given, **inputs)
            self._steps[key] = taken, products.get_total_flops() / len(request.plan)
        return self._steps[key]

    @cached_property
    def head(self) -> Flops:
        """Of the head by itself, on features."""
        return Flops(Costs(self.costs.flat.head_alone(), self.costs.head_input[0]))

    def _differentiate(self, plan: Plan, columns: slice, objective: Objective | None = None, references: int = 0) -> None:
        frozen = 0.0 if self.costs.flat.has_batch_norm else self.costs.frozen(columns)
        of_batch, of_sample = self.costs.gradient(columns, objective, references)
        self.own += int(plan.steps().sum()) * of_batch + _samples(plan) * (of_sample - frozen)
        if frozen:
            known = len(self._through_frozen)
            self._through_frozen = np.union1d(self._through_frozen, np.concatenate(plan.order))
            self.own += (len(self._through_frozen) - known) * frozen


class CountingExecutor(Executor):
    """Another executor, whose requests are counted."""

    def __init__(self, inner: Executor, count: Flops) -> None:
        self.inner, self.count = inner, count
        self.name, self.device, self.chunks = inner.name, inner.device, inner.chunks

    @property
    def flops(self) -> float | None:
        """None once a user's own model could not be counted."""
        return None if math.isnan(self.count.total) else self.count.total

    def begin_phase(self) -> None:
        self.count.begin()

    def do(self, request: Request[R]) -> R:
        answer = self.inner.do(request)
        try:
            self.count.add(request)
            if isinstance(answer, HeadOnFeatures):
                head = CountingExecutor(answer.executor, self.count.head)
                return HeadOnFeatures(head, answer.plan)  # type: ignore[return-value]
        except Exception:  # of a model of the user
            self.count.own = math.nan
        return answer

    def begin_round(self, t: int) -> None:
        self.inner.begin_round(t)

    def clock(self) -> float:
        return self.inner.clock()

    def record(self) -> dict[str, Any]:
        return self.inner.record()

    def close(self) -> None:
        self.inner.close()


def _samples(plan: Plan) -> int:
    """Visits of samples, of all clients."""
    return sum(map(len, plan.order))


def _parts(plan: Plan, parts: int) -> list[Plan]:
    """Each part of all batches, as a plan of its own."""
    pieces = [[np.array_split(batch, parts) for batch in plan.batches(client)] for client in range(len(plan))]
    return [
        Plan(
            tuple(np.concatenate([batch[part] for batch in of] or [np.empty(0, np.int64)]) for of in pieces),
            tuple(np.array([len(batch[part]) for batch in of], dtype=np.int64) for of in pieces),
        )
        for part in range(parts)
    ]
