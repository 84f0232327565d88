"""What a round must cost, in FLOPs and bytes, counted by an executor that trains nothing.

Counted is what a method asks of the executor in a round of its own: so this is known of any method, also of one's own. What is no
part of a step (averages on the server, the C x C work of FedFomo and FedAMP) does not count. FLOPs are those of direct
convolutions, which an FFT or Winograd's algorithm can undercut; a small model that stays in a cache can undercut the bytes.

FLOPs are those that PyTorch counts for the real model, on two samples. Of the bytes only those count that no execution
can spare: samples and labels each time they are visited; the parameters that a step changes, read and written once; the other
parameters, read once for each client and request. Activations do not count: they may stay in a cache.

Steps are what even clients side by side have to do one after another: the gradients of the client that has most of them. Those
of fewer layers, as of the head, are shorter: a gradient counts by the layers it goes through.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

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
    R,
    Request,
    Scan,
    Scanned,
    Sgd,
    Shared,
    SumByClass,
    Trained,
    unwrap,
)
from pflbench.engine.samples import Samples
from pflbench.methods.base import Method
from pflbench.run.execution import Execution
from pflbench.run.federation_data import FederationData
from pflbench.run.flops import COUNTED, Costs, Flops
from pflbench.run.prepared import prepare
from pflbench.run.round import PHASES, rounds
from pflbench.spec import RunSpec

STEADY = 3  # the first round that is like all later ones: in the second, ALA has its initial stage
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
    made = rounds(method, counted)
    for _ in range(t):
        next(made)
    return dict(zip(PHASES, counter.phases[-len(PHASES) :], strict=True))


class Counter(BaseExecutor):
    """Adds to `work` what each request must cost. Models come back moved a little, losses and correct predictions as zero."""

    name = "counting"

    def __init__(self, flat: Flat, samples: Samples) -> None:
        self.flat = flat
        self.samples = samples
        self.device = samples.device
        self.counted = Flops(Costs(flat, samples.batch(torch.zeros(COUNTED, dtype=torch.int64))[0]))
        self.sample_bytes = samples.x[0].nbytes + samples.y[0].nbytes
        embeddings = {f"{name}.weight" for name, module in flat.module.named_modules() if isinstance(module, nn.Embedding)}
        self.tables = tuple(entry for entry in flat.parameters if entry.name in embeddings)
        self.layers = _layers(flat, ALL)
        self.work = Work()
        self.phases: list[Work] = []

    def begin_phase(self) -> None:
        self.work = Work()
        self.phases.append(self.work)
        self.counted.begin()

    def do(self, request: Request[R]) -> R:
        before = self.counted.total
        self.counted.add(request)
        self.work.flops += self.counted.total - before
        return super().do(request)

    def _sgd(self, request: Sgd) -> Trained:
        rows, plan, columns, references = request.models, request.plan, request.columns, request.references
        self._read_beside(plan, columns, rows.itemsize)
        self._step(plan, columns)
        for batch in _batches(plan):
            self._visit(batch)
            self.work.bytes += rows.itemsize * 2 * self._touched(batch, columns)
            self.work.bytes += len(references) * rows.itemsize * self._touched(batch, ALL)
        moved = rows.clone()
        moved[:, columns] += MOVE * torch.arange(1, len(rows) + 1).to(rows).unsqueeze(1)
        return Trained(moved, request.buffers.clone(), rows.new_zeros(len(plan)), dict(request.moments))

    def _scan(self, request: Scan) -> Scanned:
        carry, given, plan, columns = request.carry, request.given, request.plan, request.columns
        none = next(iter(carry.values())).new_zeros(len(plan))
        if not plan.steps().any():
            return Scanned(dict(carry), request.buffers.clone(), none, none)
        taken, _ = self.counted.of_step(request)
        inputs = {name: value[:, 0] for name, value in request.per_step.items()}
        after = request.step(lambda w, part=0, of=0: torch.zeros_like(w), **carry, **unwrap(given), **inputs)
        self.work.bytes += sum(v.value.nbytes for v in given.values() if isinstance(v, Shared)) * int(plan.steps().max())
        self._read_beside(plan, columns, request.frozen.itemsize)
        self._step(plan, columns, len(taken))
        for batch in _batches(plan):
            pieces = np.array_split(batch, request.parts)
            for part in set(taken):
                self._visit(pieces[part])
            self.work.bytes += 2 * sum(self._carried(value, batch, columns) for value in carry.values())
        return Scanned(dict(after), request.buffers.clone(), none, none)

    def _head(self, request: ExtractFeatures) -> HeadOnFeatures:
        plan = request.plan
        self._read(plan.order, slice(0, self.flat.head.start), request.models.itemsize)
        for order in plan.order:
            self._visit(order)
        alone = copy.copy(self)  # adds to the same work
        alone.flat, alone.counted = self.flat.head_alone(), self.counted.head
        alone.sample_bytes, alone.tables = 0, ()
        return HeadOnFeatures(alone, plan.positions())

    def _class_sums(self, request: SumByClass) -> Tensor:
        plan, (features, _) = request.plan, self.counted.costs.head_input
        self._read(plan.order, slice(0, self.flat.head.start), request.models.itemsize)
        for order in plan.order:
            self._visit(order)
        return request.models.new_zeros(len(plan), self.flat.classes, features.shape[-1] + 1)

    def _evaluate(self, request: Evaluate) -> Evaluated:
        plan, model_of = request.plan, request.model_of
        of_model = [[plan.order[client] for client in np.flatnonzero(model_of == m)] for m in range(len(request.models))]
        self._read([np.concatenate(orders) for orders in of_model if orders], ALL, request.models.itemsize)
        for order in plan.order:
            self._visit(order)
        none = torch.zeros(len(plan), dtype=torch.float64, device=self.device)
        return Evaluated(none.to(torch.int64), none, none[:, None][:, :0])

    def _step(self, plan: Plan, columns: slice, gradients: int = 1) -> None:
        """The way of the client with most steps."""
        self.work.steps += int(plan.steps().max(initial=0)) * gradients * _layers(self.flat, columns) / self.layers

    def _visit(self, samples: np.ndarray) -> None:
        self.work.bytes += len(samples) * self.sample_bytes

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
