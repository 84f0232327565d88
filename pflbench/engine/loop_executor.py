"""The loop executor: one client after another with plain autograd; on a CPU, one client on each core."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pflbench import environment, interrupts
from pflbench.engine import devices, requests
from pflbench.engine.batches import Plan
from pflbench.engine.flat import Flat, in_type
from pflbench.engine.samples import Samples

FEATURES_AT_ONCE = 128


class Worker:
    """One model whose parameters are views of one row: loading a client is one copy, a step updates the row in place.

    On a CPU convolutions are a fifth faster with channels-last kernels, which views of a row cannot be: kernels are then tensors
    of their own, copied to the row (`pull`) and from it (`push`). They are small.
    """

    def __init__(self, flat: Flat, samples: Samples, loss: requests.Loss) -> None:
        self.samples = samples
        self.loss = loss
        self.flat = flat
        self.references: list[Worker] = []
        self.module: nn.Module = copy.deepcopy(flat.module).to(samples.device, samples.dtype)
        self.row = torch.empty(flat.size, dtype=samples.dtype, device=samples.device)
        self.parameters = dict(self.module.named_parameters())
        self.kernels: list[tuple[Tensor, Tensor]] = []
        for name, view in flat.views(self.row).items():
            if view.dim() == 4 and samples.device.type == "cpu" and flat.channels_last:
                self.parameters[name].data = view.contiguous(memory_format=torch.channels_last)
                self.kernels.append((view, self.parameters[name].data))
            else:
                self.parameters[name].data = view
        # On a GPU sparse gradients would be summed in another order every time, and cost a synchronisation per step.
        compact = self.module if samples.device.type == "cpu" else nn.Module()
        self.embeddings = [m for m in compact.modules() if isinstance(m, nn.Embedding) and not m.scale_grad_by_freq]

    def load(self, row: Tensor, buffers: Tensor) -> None:
        self.row.copy_(row)
        self.push()
        self.load_buffers(buffers)

    def load_buffers(self, buffers: Tensor) -> None:
        for name, value in self.flat.buffer_views(buffers).items():
            mine = self.module.get_buffer(name)
            mine.copy_(in_type(value, mine.dtype))

    def push(self) -> None:
        """Copies kernels from the row, after a change of the row."""
        for in_row, kernel in self.kernels:
            kernel.copy_(in_row)

    def pull(self) -> Tensor:
        """Copies kernels to the row, after a change of the parameters; returns the row."""
        for in_row, kernel in self.kernels:
            in_row.copy_(kernel)
        return self.row

    def save_buffers(self, out: Tensor) -> None:
        for entry in self.flat.buffers:
            out[entry.start : entry.stop].copy_(self.module.get_buffer(entry.name).reshape(-1))

    def select(self, columns: slice) -> list[Tensor]:
        """Makes the parameters in `columns` trainable and the others constants."""
        inside = {e.name for e in self.flat.within(columns)}
        for name, parameter in self.parameters.items():
            parameter.requires_grad_(name in inside)
        return [p for name, p in self.parameters.items() if name in inside]

    def train(self, *, compact: bool) -> None:
        """Training mode. compact: gradients of embeddings are sparse, the rows of the batch's tokens: enough for plain SGD."""
        self.module.train()
        for embedding in self.embeddings:
            embedding.sparse = compact

    def batches(self, plan: Plan, client: int) -> Iterator[Tensor]:
        """The client's batches, as indices on the device."""
        order = torch.from_numpy(plan.order[client]).to(self.samples.device)
        return iter(torch.split(order, plan.sizes[client].tolist()))

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        x, y = self.samples.batch(index)
        if self.kernels:
            # Not x.contiguous(...): with one channel strides are ambiguous, and later layers would take the slow format.
            x = torch.empty(x.shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last).copy_(x)
        return x, y

    def gradients(
        self,
        index: Tensor,
        parameters: list[Tensor],
        objective: requests.Objective | None = None,
        per_step: Mapping[str, Tensor] = {},
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The loss and its gradients. per_step: arguments of the module's `outputs`."""
        x, y = self.batch(index)
        compared = [requests.output(reference.module, x, **per_step) for reference in self.references] if objective else []
        with torch.enable_grad():
            if objective is None:
                loss = self.loss(self.module(x), y)
            else:
                loss = objective(self.loss, y, requests.output(self.module, x, **per_step), *compared)
            return loss.detach(), torch.autograd.grad(loss, parameters, materialize_grads=True)

    def refer(self, rows: Sequence[Tensor], buffers: Tensor) -> None:
        """Loads the frozen models of an objective. They run in training mode; their buffers are thrown away."""
        while len(self.references) < len(rows):
            self.references.append(Worker(self.flat, self.samples, self.loss))
        del self.references[len(rows) :]
        for reference, row in zip(self.references, rows, strict=True):
            reference.load(row, buffers)
            reference.module.train()


class LoopExecutor(requests.BaseExecutor):
    name = "loop"

    def __init__(self, flat: Flat, samples: Samples, workers: int | None = None, loss: requests.Loss = F.cross_entropy) -> None:
        on_cpu = samples.device.type == "cpu"
        count = (workers or environment.cores()) if on_cpu else 1
        self.device = samples.device
        self.flat = flat
        self.samples = samples
        self.loss = loss
        self.workers = count
        self._workers: SimpleQueue[Worker] = SimpleQueue()
        for _ in range(count):
            self._workers.put(Worker(flat, samples, loss))
        self._pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) if count > 1 else None

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _each(self, plan: Plan, task: Callable[[Worker, int], None]) -> None:
        """Runs task(worker, position) for every client of the plan, longest first so that the cores finish together.

        Raises KeyboardInterrupt after a signal, when the clients that have begun are ready.
        """

        def run(position: int) -> None:
            if interrupts.arrived():
                return
            worker = self._workers.get()
            try:
                with torch.no_grad():
                    task(worker, position)
            finally:
                self._workers.put(worker)

        order = np.argsort([-int(s.sum()) for s in plan.sizes], kind="stable").tolist()
        if self._pool is None:
            with devices.one_thread():
                for position in order:
                    run(position)
        else:
            with interrupts.held():  # raised inside the pool, KeyboardInterrupt could leave one of its locks closed
                list(self._pool.map(run, order))  # should one fail, those that have not begun are cancelled
        if interrupts.arrived():
            raise KeyboardInterrupt

    def _sgd(self, request: requests.Sgd) -> requests.Trained:
        rows, buffers, plan, columns, penalty = request.models, request.buffers, request.plan, request.columns, request.penalty
        optimizer, lr, summed = request.optimizer, float(request.lr), request.summed
        sums = [k for k, e in enumerate(self.flat.within(columns)) if summed.start <= e.start < summed.stop]
        rows_out = torch.empty(len(plan), self.flat.size, dtype=rows.dtype, device=self.device)
        buffers_out = buffers.clone()
        moments_out = {name: value.clone() for name, value in request.moments.items()}
        loss_out = torch.zeros(len(plan), dtype=rows.dtype, device=self.device)

        def task(worker: Worker, i: int) -> None:
            worker.load(rows[i], buffers[i])
            worker.train(compact=request.objective is None and optimizer is None)
            worker.refer([r[i] for r in request.references], buffers[i])
            parameters = worker.select(columns)
            arguments = requests.unwrap(requests.pick(request.given, i))
            total = loss_out[i]
            for j, index in enumerate(worker.batches(plan, i)):
                now = {k: v[i, j] for k, v in request.per_step.items()}
                loss, grads = worker.gradients(index, parameters, request.objective, now)
                if penalty is not None:
                    correction, value = penalty(worker.pull(), **arguments)
                    loss = loss + value
                sum_so_far = worker.row[summed] + torch.cat([grads[k].reshape(-1) for k in sums]) if sums else None
                if optimizer is not None:
                    g = torch.cat([g.reshape(-1) for g in grads])
                    g = g if penalty is None else g.add_(correction[columns])
                    optimizer.torch_step(worker.pull()[columns], g, lr, {name: value[i] for name, value in moments_out.items()})
                    worker.push()
                else:
                    torch._foreach_add_(parameters, list(grads), alpha=-lr)
                    if penalty is not None:
                        worker.pull()[columns].sub_(correction[columns], alpha=lr)
                        worker.push()
                if sum_so_far is not None:
                    worker.row[summed] = sum_so_far
                total += loss
            total /= max(len(plan.sizes[i]), 1)
            rows_out[i].copy_(worker.pull())
            worker.save_buffers(buffers_out[i])

        self._each(plan, task)
        return requests.Trained(rows_out, buffers_out, loss_out, moments_out)

    def _scan(self, request: requests.Scan) -> requests.Scanned:
        base, carry, buffers, plan, columns = request.frozen, request.carry, request.buffers, request.plan, request.columns
        carry_out = {k: v.clone() for k, v in carry.items()}
        buffers_out = buffers.clone()
        dtype = next(iter(carry.values())).dtype
        loss_out = torch.zeros(2, len(plan), dtype=dtype, device=self.device)

        def task(worker: Worker, i: int) -> None:
            worker.load(base[i], buffers[i, 0])
            worker.train(compact=False)
            worker.refer((), buffers[i, 0])
            parameters = worker.select(columns)
            arguments = requests.unwrap(requests.pick(request.given, i))
            mine = {k: v[i] for k, v in carry.items()}
            loaded = 0
            pieces: tuple[Tensor, ...] = ()  # of the batch under way
            losses: list[Tensor] = []

            def grad(w: Tensor, part: int = 0, of: int = 0) -> Tensor:
                nonlocal loaded
                if of != loaded:
                    worker.save_buffers(buffers_out[i, loaded])
                    worker.load_buffers(buffers_out[i, of])
                    loaded = of
                worker.row[columns].copy_(w)
                worker.push()
                loss, grads = worker.gradients(pieces[part], parameters, request.objective)
                losses.append(loss)
                return torch.cat([g.reshape(-1) for g in grads])

            for j, index in enumerate(worker.batches(plan, i)):
                pieces = index.tensor_split(request.parts)
                losses.clear()
                now = {k: v[i, j] for k, v in request.per_step.items()}
                mine = request.step(grad, **mine, **arguments, **now)
                loss_out[0, i] += losses[0]
                loss_out[1, i] = losses[0]
            loss_out[0, i] /= max(len(plan.sizes[i]), 1)
            for k, v in mine.items():
                carry_out[k][i] = v
            worker.save_buffers(buffers_out[i, loaded])

        self._each(plan, task)
        return requests.Scanned(carry_out, buffers_out, loss_out[0], loss_out[1])

    def _head(self, request: requests.ExtractFeatures) -> requests.HeadOnFeatures:
        plan = request.plan
        # Without BatchNorm samples do not see one another, and larger batches are faster.
        batches = plan if self.flat.has_batch_norm else Plan.through(plan.order, FEATURES_AT_ONCE)
        features: list[list[Tensor]] = [[] for _ in plan.order]

        def task(worker: Worker, i: int) -> None:
            worker.load(request.models[i], request.buffers[i])
            worker.module.train()
            below: Any = worker.module.features
            features[i] = [below(worker.batch(index)[0]) for index in worker.batches(batches, i)]

        self._each(plan, task)
        labels = self.samples.y[torch.from_numpy(np.concatenate(plan.order)).to(self.device)]
        samples = self.samples.replaced(torch.cat(list(chain(*features))), labels)
        return requests.HeadOnFeatures(LoopExecutor(self.flat.head_alone(), samples, self.workers, self.loss), plan.positions())

    def _class_sums(self, request: requests.SumByClass) -> Tensor:
        found = request.models.new_zeros(len(request.plan), self.flat.classes, self.flat.width + 1)

        def task(worker: Worker, i: int) -> None:
            worker.load(request.models[i], request.buffers[i])
            worker.module.eval()
            below: Any = worker.module.features
            for index in worker.batches(request.plan, i):
                x, y = worker.batch(index)
                found[i] += requests.by_class(below(x), y, self.flat.classes)

        self._each(request.plan, task)
        return found

    def _evaluate(self, request: requests.Evaluate) -> requests.Evaluated:
        plan, model_of = request.plan, request.model_of
        correct = torch.zeros(len(plan), dtype=torch.int64, device=self.device)
        loss = torch.zeros(len(plan), dtype=torch.float64, device=self.device)
        logits_of: dict[int, Tensor] = {}
        loaded: dict[Worker, int] = {}

        def task(worker: Worker, i: int) -> None:
            model = int(model_of[i])
            if loaded.get(worker) != model:
                worker.load(request.models[model], request.buffers[model])
                worker.module.eval()
                loaded[worker] = model
            further = [torch.split(draw(), plan.sizes[i].tolist()) for draw in request.per_sample[i : i + 1]]
            mine: list[Tensor] = []
            for j, index in enumerate(worker.batches(plan, i)):
                x, y = worker.batch(index)
                logits = worker.module(x, *(values[j] for values in further))
                correct[i] += (logits.argmax(-1) == y).sum()
                loss[i] += self.loss(logits, y).to(torch.float64) * len(y)
                if request.logits:
                    mine.append(logits.cpu())
            if mine:
                logits_of[i] = torch.cat(mine)

        self._each(plan, task)
        return requests.Evaluated.of(correct, loss, logits_of)
