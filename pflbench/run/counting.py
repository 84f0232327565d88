"""What a round must cost, in FLOPs and bytes, counted by an executor that trains nothing.

Counted is what a method asks of the executor in a round of its own: so this is known of any method, also of one's own. What is no
part of a step (averages on the server, the C x C work of FedFomo and FedAMP) does not count. FLOPs are those of direct
convolutions, which an FFT or Winograd's algorithm can undercut; a small model that stays in a cache can undercut the bytes.

FLOPs are those that PyTorch counts for the real model, on tensors without data. Of the bytes only those count that no execution
can spare: samples and labels each time they are visited; the parameters that a step changes, read and written once; the other
parameters, read once for each client and request. Activations do not count: they may stay in a cache.

Steps are what even clients side by side have to do one after another: the gradients of the client that has most of them. Those
of fewer layers, as of the head, are shorter: a gradient counts by the layers it goes through.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from pflbench.engine.batches import Plan
from pflbench.engine.federation import Federation
from pflbench.engine.flat import Flat
from pflbench.engine.requests import (
    ALL,
    BaseExecutor,
    Evaluate,
    Evaluated,
    ExtractFeatures,
    HeadOnFeatures,
    Objective,
    Scan,
    Scanned,
    Sgd,
    Shared,
    SumByClass,
    Trained,
    function_key,
    output,
    unwrap,
)
from pflbench.engine.samples import Samples
from pflbench.methods.base import Method
from pflbench.run.execution import Execution
from pflbench.run.federation_data import FederationData
from pflbench.run.prepared import prepare
from pflbench.run.round import rounds
from pflbench.spec import RunSpec

STEADY = 3  # the first round that is like all later ones: in the second, ALA has its initial stage
COUNTED = 2  # samples on which FLOPs are counted: BatchNorm cannot train on one; all that is counted is linear in the batch
MOVE = 1e-3  # by how much the first client's model moves in pretended training, the second's twice that: no two are alike


@dataclass
class Work:
    """What a phase of a round must cost."""

    flops: float = 0.0
    bytes: float = 0.0
    steps: float = 0.0


def work(spec: RunSpec, data: FederationData, t: int = STEADY) -> dict[str, Work]:
    """By phase, the work of round t. Nothing is trained.

    In ALA's initial stage (t = 2) it is that of the fewest epochs after which the stage can end.
    """
    device = torch.device("cpu")
    run = prepare(spec, data, device, Execution(engine="batched"))
    fed = run.federation()
    return count(run.method, fed, Samples(data.arrays.x, data.arrays.y, fed.dtype, device), t)


def count(method: Method, fed: Federation, samples: Samples, t: int = STEADY) -> dict[str, Work]:
    """As `work`, of a federation on a CPU, whose executor is not used."""
    counter = Counter(fed.flat, samples)
    counted = copy.copy(fed)
    counted.executor = counter
    found: dict[str, Work] = {}

    @contextmanager
    def counting(phase: str) -> Iterator[None]:
        found[phase] = counter.begin()
        yield

    made = rounds(method, counted, counting)
    for _ in range(t):
        next(made)
    return found


class Costs:
    """FLOPs of a model for one sample. x: two samples as the model takes them, of which only shape and type matter."""

    def __init__(self, flat: Flat, x: Tensor) -> None:
        self.flat = flat
        self.module: nn.Module = copy.deepcopy(flat.module).to("meta").train()
        self.x = x.to("meta")
        self._gradients: dict[Any, tuple[float, float]] = {}

    @cached_property
    def head_input(self) -> tuple[Tensor, float]:
        """The input of the head for two samples, without data, and its FLOPs for one."""
        below: Any = self.module.features
        with FlopCounterMode(display=False) as counted:
            out: Tensor = below(self.x)
        return out, counted.get_total_flops() / len(self.x)

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
        labels = torch.zeros(len(x), dtype=torch.int64, device="meta")
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
        net: str | None = getattr(self.module, "user_model", None)
        prefix = "" if net is None else f"{net}."
        children = [f"{prefix}{name}" for name, _ in self.module.get_submodule(net or "").named_children()]
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


class Counter(BaseExecutor):
    """Adds to `work` what each request must cost. Models come back moved a little, losses and correct predictions as zero."""

    name = "counting"

    def __init__(self, flat: Flat, samples: Samples) -> None:
        self.flat = flat
        self.samples = samples
        self.device = samples.device
        self.costs = Costs(flat, samples.batch(torch.zeros(COUNTED, dtype=torch.int64))[0])
        self.sample_bytes = samples.x[0].nbytes + samples.y[0].nbytes
        embeddings = {f"{name}.weight" for name, module in flat.module.named_modules() if isinstance(module, nn.Embedding)}
        self.tables = tuple(entry for entry in flat.parameters if entry.name in embeddings)
        self.layers = _layers(flat, ALL)
        self.work = self.begin()

    def begin(self) -> Work:
        """The work of a new phase, still empty."""
        self.work = Work()
        self._through_frozen: set[int] = set()  # samples that have passed the frozen layers
        return self.work

    def _sgd(self, request: Sgd) -> Trained:
        rows, plan, columns, references = request.models, request.plan, request.columns, request.references
        self._read_beside(plan, columns, rows.itemsize)
        self._step(plan, columns)
        for batch in _batches(plan):
            self._visit(batch)
            self._differentiate(batch, columns, request.objective, len(references))
            self.work.bytes += rows.itemsize * 2 * self._touched(batch, columns)
            self.work.flops += len(references) * len(batch) * self.costs.forward["Global"]
            self.work.bytes += len(references) * rows.itemsize * self._touched(batch, ALL)
        moved = rows.clone()
        moved[:, columns] += MOVE * torch.arange(1, len(rows) + 1).to(rows).unsqueeze(1)
        return Trained(moved, request.buffers.clone(), rows.new_zeros(len(plan)), dict(request.moments))

    def _scan(self, request: Scan) -> Scanned:
        carry, given, plan, columns = request.carry, request.given, request.plan, request.columns
        none = next(iter(carry.values())).new_zeros(len(plan))
        if not plan.steps().any():
            return Scanned(dict(carry), request.buffers.clone(), none, none)
        taken: list[int] = []

        def grad(w: Tensor, part: int = 0, of: int = 0) -> Tensor:
            taken.append(part)
            return torch.zeros_like(w)

        # Which gradients a step takes does not depend on the data: one step, of all clients at once, stands for all.
        inputs = {name: value[:, 0] for name, value in request.per_step.items()}
        with FlopCounterMode(display=False) as products:  # of the step's own, as with all core models in APPLE
            after = request.step(grad, **carry, **unwrap(given), **inputs)
        self.work.flops += products.get_total_flops() / len(plan) * int(plan.steps().sum())
        self.work.bytes += sum(v.value.nbytes for v in given.values() if isinstance(v, Shared)) * int(plan.steps().max())
        self._read_beside(plan, columns, request.frozen.itemsize)
        self._step(plan, columns, len(taken))
        for batch in _batches(plan):
            pieces = np.array_split(batch, request.parts)
            for part in set(taken):
                self._visit(pieces[part])
            for part in taken:
                self._differentiate(pieces[part], columns, request.objective)
            self.work.bytes += 2 * sum(self._carried(value, batch, columns) for value in carry.values())
        return Scanned(dict(after), request.buffers.clone(), none, none)

    def _head(self, request: ExtractFeatures) -> HeadOnFeatures:
        plan = request.plan
        self._read(plan.order, slice(0, self.flat.head.start), request.models.itemsize)
        features, flops = self.costs.head_input
        for order in plan.order:
            self._visit(order)
            self.work.flops += len(order) * flops
        alone = copy.copy(self)  # adds to the same work
        alone.flat = self.flat.head_alone()
        alone.costs = Costs(alone.flat, features)
        alone.sample_bytes, alone.tables = 0, ()
        return HeadOnFeatures(alone, plan.positions())

    def _class_sums(self, request: SumByClass) -> Tensor:
        plan, (features, flops) = request.plan, self.costs.head_input
        self._read(plan.order, slice(0, self.flat.head.start), request.models.itemsize)
        for order in plan.order:
            self._visit(order)
            self.work.flops += len(order) * (flops + 2 * self.flat.classes * (features.shape[-1] + 1))
        return request.models.new_zeros(len(plan), self.flat.classes, features.shape[-1] + 1)

    def _evaluate(self, request: Evaluate) -> Evaluated:
        plan, model_of = request.plan, request.model_of
        of_model = [[plan.order[client] for client in np.flatnonzero(model_of == m)] for m in range(len(request.models))]
        self._read([np.concatenate(orders) for orders in of_model if orders], ALL, request.models.itemsize)
        of_batch, of_sample = self.costs.test
        for order in plan.order:
            self._visit(order)
            self.work.flops += of_batch + len(order) * of_sample
        none = torch.zeros(len(plan), dtype=torch.float64, device=self.device)
        return Evaluated(none.to(torch.int64), none, none[:, None][:, :0])

    def _step(self, plan: Plan, columns: slice, gradients: int = 1) -> None:
        """The way of the client with most steps."""
        self.work.steps += int(plan.steps().max(initial=0)) * gradients * _layers(self.flat, columns) / self.layers

    def _visit(self, samples: np.ndarray) -> None:
        self.work.bytes += len(samples) * self.sample_bytes

    def _differentiate(self, batch: np.ndarray, columns: slice, objective: Objective | None = None, references: int = 0) -> None:
        """Samples pass the layers below `columns` once in a phase: their features there do not change."""
        frozen = self.costs.frozen(columns)
        of_batch, of_sample = self.costs.gradient(columns, objective, references)
        self.work.flops += of_batch + len(batch) * (of_sample - frozen)
        if frozen:
            new = set(batch.tolist()) - self._through_frozen
            self._through_frozen |= new
            self.work.flops += len(new) * frozen

    def _read_beside(self, plan: Plan, columns: slice, itemsize: int) -> None:
        """The parameters outside `columns`, once for each client."""
        for order in plan.order:
            if len(order) and columns != ALL:
                self.work.bytes += itemsize * (self._touched(order, ALL) - self._touched(order, columns))

    def _read(self, orders: Sequence[np.ndarray], columns: slice, itemsize: int) -> None:
        """The parameters in `columns`, once for each of the given lists of samples."""
        self.work.bytes += sum(itemsize * self._touched(order, columns) for order in orders if len(order))

    def _carried(self, value: Tensor, batch: np.ndarray, columns: slice) -> int:
        """Bytes of one client's part of what is carried; where that is a model, of its parameters that the batch touches."""
        numbers = value[0].numel()
        start, stop, _ = columns.indices(self.flat.size)
        return value.itemsize * (self._touched(batch, columns) if numbers == stop - start else numbers)

    def _touched(self, samples: np.ndarray, columns: slice) -> int:
        """Parameters in `columns` that these samples use: of an embedding only the rows of their tokens."""
        start, stop, _ = columns.indices(self.flat.size)
        tables = [table for table in self.tables if start <= table.start and table.stop <= stop]
        if not tables:
            return stop - start
        tokens = len(np.unique(self.samples.x[torch.from_numpy(samples)].numpy()))
        return stop - start + sum(min(tokens, table.shape[0]) * table.shape[1] - table.shape.numel() for table in tables)


def _layers(flat: Flat, columns: slice) -> int:
    """How many modules with parameters of their own a gradient of `columns` goes through: nothing below the first of them."""
    start, _, _ = columns.indices(flat.size)
    return len({entry.name.rpartition(".")[0] for entry in flat.parameters if entry.stop > start})


def _batches(plan: Plan) -> Iterator[np.ndarray]:
    """Of all clients."""
    for client in range(len(plan)):
        yield from plan.batches(client)
