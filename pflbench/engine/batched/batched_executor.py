"""The batched executor: all clients of the cohort in one program, by `torch.func.vmap` over any nn.Module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pflbench.engine import requests
from pflbench.engine.batched.convolutions import convolve_by, convolving
from pflbench.engine.batched.gradients import Gradient, Gradients, Lookup, Named
from pflbench.engine.batched.layout import Block, Layout, blocks
from pflbench.engine.batched.program import Advance, Capture, Inputs, Programs
from pflbench.engine.batches import Plan
from pflbench.engine.flat import Flat, sgd_step, side_by_side
from pflbench.engine.memory import Chunks
from pflbench.engine.requests import R
from pflbench.engine.samples import Samples

LARGE = 2**18  # numbers of one parameter: a copy of it beside the others costs more than a kernel of its own
EVALUATED_AT_ONCE = 8192  # samples of all clients together
EVALUATED_PER_CLIENT = 512
REFERENCE, RATE = "reference {}", "learning rate"  # among the arguments of a step; they cannot be keywords
# Parts of a state beside a method's carry.
MODELS, BUFFERS, LOSS, LAST, FEATURES = "models", "buffers", "loss", "last loss", "features"


class BatchedExecutor(requests.BaseExecutor):
    """capture: how steps are captured (engine.batched.program); None: they run as they are, as on a CPU.

    convolution: one of engine.batched.convolutions.CONVOLUTIONS; None: no choice, as on a CPU.
    """

    name = "batched"

    def __init__(
        self,
        flat: Flat,
        samples: Samples,
        chunks: Chunks | None = None,
        loss: requests.Loss = F.cross_entropy,
        capture: Capture | None = None,
        convolution: str | None = None,
        programs: Programs | None = None,
    ) -> None:
        self.flat = flat
        self.samples = samples
        self.device = samples.device
        self.chunks: Chunks = chunks or Chunks()
        self.loss = loss
        self.programs = programs or Programs(capture)
        self.module: nn.Module = copy.deepcopy(flat.module).to(samples.device, samples.dtype)
        self.convolution = convolution
        if convolution is not None:
            convolve_by(self.module, convolution)
        self.gradients = Gradients(flat, self.module, samples, loss)
        self._heads: list[BatchedExecutor] = []  # free for the next request
        self._owner: BatchedExecutor | None = None

    def do(self, request: requests.Request[R]) -> R:
        with convolving(self.convolution):
            return super().do(request)

    def close(self) -> None:
        if self._owner is not None:
            self._owner._heads.append(self)
        else:
            self._heads.clear()  # each of them holds its owner
            self.programs.forget()

    def record(self) -> dict[str, Any]:
        chosen = {} if self.convolution is None else {"convolution": self.convolution}
        return {"chunk": self.chunks.record(), "steps": {**self.programs.record(), **chosen}}

    def _sgd(self, request: requests.Sgd) -> requests.Trained:
        rows, buffers, plan, columns = request.models, request.buffers, request.plan, request.columns
        rows_out, buffers_out, loss_out = rows.clone(), buffers.clone(), rows.new_zeros(len(plan))
        moments_out = {name: value.clone() for name, value in request.moments.items()}
        compared, optimizer = len(request.references), request.optimizer
        merged = request.objective is None and not request.references
        lr = None if isinstance(request.lr, Tensor) else request.lr
        lookup = self.gradients.lookup(columns) if merged and optimizer is None else None
        gradients = self.gradients.make(columns, request.objective, lookup)
        advance = self._descent(gradients, lookup, lr, request)
        functions = requests.function_key(request.penalty), requests.function_key(request.objective)
        spans = columns.start, columns.stop, request.summed.start, request.summed.stop
        kind = ("sgd", lr, *spans, *functions, compared, optimizer)
        inputs = {**request.given, **{REFERENCE.format(i): r for i, r in enumerate(request.references)}}
        inputs |= {RATE: request.lr} if lr is None else {}

        def train(clients: Tensor, steps: Iterator[Block]) -> None:
            state = {MODELS: rows[clients], BUFFERS: buffers[clients], LOSS: loss_out.new_zeros(len(clients))}
            state |= {name: value[clients] for name, value in request.moments.items()}
            per_step = {k: v[clients] for k, v in request.per_step.items()}
            state = self.programs.run((*kind, self._data), advance, state, requests.pick(inputs, clients), steps, per_step)
            rows_out[clients], buffers_out[clients], loss_out[clients] = state[MODELS], state[BUFFERS], state[LOSS]
            for name, value in moments_out.items():
                value[clients] = state[name]

        self._each(plan, train, merged=merged)
        return requests.Trained(rows_out, buffers_out, loss_out / _step_counts(plan, rows), moments_out)

    def _scan(self, request: requests.Scan) -> requests.Scanned:
        carry, buffers, plan, columns = request.carry, request.buffers, request.plan, request.columns
        carry_out, buffers_out = {k: v.clone() for k, v in carry.items()}, buffers.clone()
        losses = {name: next(iter(carry.values())).new_zeros(len(plan)) for name in (LOSS, LAST)}
        advance = self._own_step(self.gradients.make(columns, request.objective), request.step, columns, request.parts)
        functions = requests.function_key(request.step), requests.function_key(request.objective)
        kind = ("scan", columns.start, columns.stop, *functions, request.parts, tuple(carry))

        def train(clients: Tensor, steps: Iterator[Block]) -> None:
            state = {**{k: v[clients] for k, v in carry.items()}, MODELS: request.frozen[clients], BUFFERS: buffers[clients]}
            state |= {name: loss[clients] for name, loss in losses.items()}
            inputs = {k: v[clients] for k, v in request.per_step.items()}
            state = self.programs.run((*kind, self._data), advance, state, requests.pick(request.given, clients), steps, inputs)
            for out in (carry_out, losses):
                for name in out:
                    out[name][clients] = state[name]
            buffers_out[clients] = state[BUFFERS]

        self._each(plan, train, merged=request.objective is None and request.parts == 1)
        return requests.Scanned(carry_out, buffers_out, losses[LOSS] / _step_counts(plan, losses[LOSS]), losses[LAST])

    @torch.no_grad()
    def _head(self, request: requests.ExtractFeatures) -> requests.HeadOnFeatures:
        rows, buffers, plan = request.models, request.buffers, request.plan
        # Without BatchNorm samples do not see one another, and larger batches are faster.
        batches = plan if self.flat.has_batch_norm else Plan.through(plan.order, EVALUATED_PER_CLIENT)
        below = self.gradients.features()
        first = max(range(len(plan)), key=lambda i: len(plan.order[i]))
        two = torch.from_numpy(plan.order[first][None, :2]).to(self.device)
        head = self._free_head(below(rows[first, None], buffers[first, None], two)[0, 0], sum(map(len, plan.order)))
        table = head.samples.x
        at, sizes = batches.positions().padded()
        at[np.arange(at.shape[2]) >= sizes[..., None]] = len(table) - 1  # the row for padding
        where = torch.from_numpy(at).to(self.device)

        def advance(state: Named, given: requests.StepArguments, inputs: Inputs) -> None:
            features = below(state[MODELS], state[BUFFERS], inputs.index)
            state[FEATURES][:, : features.shape[1]] = features
            table[inputs.each["places"][:, : features.shape[1]]] = features

        def pass_below(clients: Tensor, steps: Iterator[Block]) -> None:
            state = {MODELS: rows[clients], BUFFERS: buffers[clients]}
            state[FEATURES] = table.new_zeros(len(clients), at.shape[2], *table.shape[1:])
            self.programs.run(("head", self._data, table.data_ptr()), advance, state, {}, steps, {"places": where[clients]})

        self._each(batches, pass_below, merged=True)
        order = torch.from_numpy(np.concatenate(plan.order)).to(self.device)
        head.samples.y[: len(order)] = self.samples.y[order]
        return requests.HeadOnFeatures(head, plan.positions())

    def _free_head(self, like: Tensor, count: int) -> BatchedExecutor:
        """An executor for the head alone with room for `count` samples and one for padding; `close` makes it free again.

        It is reused: programs read the samples where they lie.
        """
        for head in self._heads:
            if len(head.samples.y) > count and head.samples.x.dtype == like.dtype:
                self._heads.remove(head)
                return head
        samples = self.samples.replaced(like.new_zeros(count + 1, *like.shape), self.samples.y.new_zeros(count + 1))
        head = BatchedExecutor(self.flat.head_alone(), samples, self.chunks, self.loss, programs=self.programs)
        head._owner = self
        return head

    @torch.no_grad()
    def _class_sums(self, request: requests.SumByClass) -> Tensor:
        below = self.gradients.features(training=False)
        found = request.models.new_zeros(len(request.plan), self.flat.classes, self.flat.width + 1)
        own = requests.Evaluate(request.plan, request.models, request.buffers)

        def sum_up(clients: np.ndarray) -> None:
            layout = Layout.of(own, clients)
            at, lengths, samples = (torch.from_numpy(v).to(self.device) for v in (layout.models, layout.lengths, layout.samples))
            models, buffers, sums = request.models[at], request.buffers[at], torch.zeros_like(found[at])
            for live, columns in layout.parts(self._columns_at_once(layout)):
                index = samples[:live, columns]
                beyond = torch.arange(index.shape[1], device=self.device) >= lengths[:live, None] - columns.start
                features = below(models[:live], buffers[:live], index).masked_fill(beyond.unsqueeze(-1), 0)
                sums[:live] += requests.by_class(features, self.samples.y[index], self.flat.classes)
            found[at] = sums

        self._each_tested(request.plan, sum_up)
        return found

    @torch.no_grad()
    def _evaluate(self, request: requests.Evaluate) -> requests.Evaluated:
        correct = torch.zeros(len(request.plan), dtype=torch.int64, device=self.device)
        loss = torch.zeros(len(request.plan), dtype=torch.float64, device=self.device)
        logits_of: dict[int, Tensor] = {}

        def test(clients: np.ndarray) -> None:
            at = torch.from_numpy(clients).to(self.device)
            layout = Layout.of(request, clients)
            further = [layout.by_sample([request.per_sample[client]() for client in clients])] if request.per_sample else []
            (correct[at], loss[at]), logits = self._tested(request, layout, further)
            logits_of.update(zip(clients.tolist(), logits, strict=False))

        self._each_tested(request.plan, test)
        return requests.Evaluated.of(correct, loss, logits_of)

    def _tested(self, request: requests.Evaluate, layout: Layout, further: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Right predictions and summed losses of the clients of a layout; with `request.logits` each one's logits, on the CPU.

        further: arguments of the module, [M, longest, ...].
        """
        chosen = torch.from_numpy(layout.models).to(self.device)
        params, buffered = self.flat.views(request.models[chosen]), self.gradients.buffers(request.buffers[chosen])
        samples = torch.from_numpy(layout.samples).to(self.device)
        right = torch.zeros(samples.shape, dtype=torch.int64, device=self.device)
        lost = torch.zeros(samples.shape, dtype=torch.float64, device=self.device)
        parts: list[Tensor] = []
        for live, columns in layout.parts(self._columns_at_once(layout)):
            x, y = self.gradients.batch(samples[:live, columns])
            live_params, live_buffers = ({k: v[:live] for k, v in named.items()} for named in (params, buffered))
            out = self.gradients.logits(live_params, live_buffers, x, *(values[:live, columns] for values in further))
            right[:live, columns] = out.argmax(-1) == y
            lost[:live, columns] = self.gradients.each(out.flatten(0, 1), y.flatten()).view_as(y).to(torch.float64)
            if request.logits:
                parts.append(F.pad(out.cpu(), (0, 0, 0, 0, 0, len(right) - live)))
        rows = torch.cat(parts, dim=1).flatten(0, 1) if parts else right
        bounds = zip(layout.begins.tolist(), layout.counts.tolist(), strict=True) if parts else ()
        return layout.by_client(right, lost), [rows[begin : begin + count] for begin, count in bounds]

    def _columns_at_once(self, layout: Layout) -> int:
        """How many samples of each row of a layout are computed at once."""
        at_once = EVALUATED_AT_ONCE >> self.chunks.halvings("evaluation")
        shared_by = -(-len(layout.counts) // len(layout.models))
        return max(1, min(EVALUATED_PER_CLIENT * shared_by, at_once // len(layout.models)))

    def _descent(self, gradients: Gradient, lookup: Lookup | None, lr: float | None, request: requests.Sgd) -> Advance:
        """One step of SGD, or of an optimizer. lr: None if the rate is among the step's arguments."""
        # Programs keep the step: it must not keep the request, which has the clients' models.
        columns, summed, penalty, optimizer = request.columns, request.summed, request.penalty, request.optimizer
        references = len(request.references)
        sums = [e.name for e in self.flat.within(summed)]

        def advance(state: Named, given: requests.StepArguments, inputs: Inputs) -> None:
            w, b, finished = state[MODELS], state[BUFFERS], inputs.finished
            mine = dict(given)
            rate: Any = mine.pop(RATE, lr)
            compared = [mine.pop(REFERENCE.format(i)) for i in range(references)]
            grads, loss, after = gradients(w, b, inputs.index, compared, inputs.weights, inputs.each)
            if penalty is not None:
                correction, value = penalty(w, **requests.unwrap(mine))
                loss = loss + value
            _keep(b, after, finished)
            state[LOSS].add_(_of_unfinished(finished, loss))
            sum_so_far = w[:, summed] + torch.cat([grads[name].reshape(len(w), -1) for name in sums], dim=1) if sums else None
            if optimizer is not None:
                g = torch.cat([grads[e.name].reshape(len(w), -1) for e in self.flat.within(columns)], dim=1)
                g = g if penalty is None else g.add_(correction[..., columns])
                moved, moments = optimizer.step(w[:, columns], g, rate, state)
                for kept, value in ((w[:, columns], moved), *((state[name], value) for name, value in moments.items())):
                    _keep(kept, value, finished)
            else:
                descend(w, grads, rate, inputs)
                if penalty is not None:
                    _subtract(w[..., columns], correction[..., columns], rate, finished)
            if sum_so_far is not None:
                _keep(w[:, summed], sum_so_far, finished)

        def descend(w: Tensor, grads: Named, rate: Any, inputs: Inputs) -> None:
            views, finished = self.flat.views(w, columns), inputs.finished
            if lookup is not None:
                tokens, _ = self.samples.batch(inputs.index)
                lookup.descend(views.pop(lookup.name), tokens, grads.pop(lookup.name), rate, finished)
            for name, view in views.items():
                if finished is None or view[0].numel() >= LARGE:
                    _subtract(view, grads.pop(name), rate, finished)
            if finished is not None:  # together, in few kernels: most are small
                for run in side_by_side(e for e in self.flat.within(columns) if e.name in grads):
                    together = torch.cat([grads[e.name].reshape(len(w), -1) for e in run], dim=1)
                    _subtract(w[:, run[0].start : run[-1].stop], together.masked_fill_(finished[:, None], 0), rate, None)

        return advance

    def _own_step(self, gradients: Gradient, step: requests.Step, columns: slice, parts: int) -> Advance:
        """One step of a method's own inner loop."""

        def advance(state: Named, given: requests.StepArguments, inputs: Inputs) -> None:
            w, b, finished = state[MODELS], state[BUFFERS], inputs.finished
            pieces = inputs.index.tensor_split(parts, dim=1)
            losses: list[Tensor] = []

            def grad(at: Tensor, part: int = 0, of: int = 0) -> Tensor:
                rows = w
                if columns == requests.ALL:
                    rows = at.to(w.dtype).expand(len(w), -1)
                else:
                    w[:, columns] = at
                grads, loss, after = gradients(rows, b[:, of], pieces[part], (), inputs.weights)
                _keep(b[:, of], after, finished)
                losses.append(loss)
                return torch.cat([g.reshape(len(w), -1) for g in grads.values()], dim=1)

            carry = {k: v for k, v in state.items() if k not in (MODELS, BUFFERS, LOSS, LAST)}
            values = step(grad, **carry, **requests.unwrap(given), **inputs.each)
            for name, value in _unaliased(values, carry).items():
                _keep(state[name], value, finished)
            _keep(state[LAST], losses[0], finished)
            state[LOSS].add_(_of_unfinished(finished, losses[0]))

        return advance

    def _each(self, plan: Plan, do: Callable[[Tensor, Iterator[Block]], None], merged: bool) -> None:
        """Calls `do` with a chunk of the plan's clients and their steps, chunk by chunk; see `Chunks.each`.

        Clients with most steps come first, so that those still at work are a prefix of the rows.
        """
        steps = plan.steps()
        order = np.argsort(-steps, kind="stable")
        merged = merged and not self.flat.has_batch_norm

        def of_chunk(clients: np.ndarray) -> None:
            mine = blocks(plan.take(clients.tolist()), self.samples.dtype, self.device, merged)
            do(torch.from_numpy(clients).to(self.device), mine)

        self.chunks.each("training", order[steps[order] > 0], self.device, of_chunk, self.programs.forget)

    def _each_tested(self, plan: Plan, do: Callable[[np.ndarray], None]) -> None:
        """Calls `do` with a chunk of the plan's clients, chunk by chunk, those with most samples first."""
        counts = np.array([len(samples) for samples in plan.order])
        order = np.argsort(-counts, kind="stable")
        self.chunks.each("evaluation", order[counts[order] > 0], self.device, do, self.programs.forget)

    @property
    def _data(self) -> tuple[int, ...]:
        """The samples' addresses: a program reads them there."""
        return self.samples.x.data_ptr(), self.samples.y.data_ptr(), *self.samples.x.shape


def _subtract(of: Tensor, what: Tensor, rate: float | Tensor, finished: Tensor | None) -> None:
    sgd_step(of, what if finished is None else what.masked_fill(_beside(finished, of), 0), rate, out=of)


def _of_unfinished(finished: Tensor | None, loss: Tensor) -> Tensor:
    """The loss, 0 for clients that have finished."""
    return loss if finished is None else loss.masked_fill(finished, 0)


def _keep(of: Tensor, what: Tensor, finished: Tensor | None) -> None:
    """Writes `what` into `of`, but not in the rows of clients that have finished."""
    if not of.numel():
        return
    if finished is None:
        of.copy_(what)
    elif what.dtype == of.dtype:
        torch.where(_beside(finished, of), of, what, out=of)
    else:
        of.copy_(torch.where(_beside(finished, of), of, what))


def _beside(finished: Tensor, rows: Tensor) -> Tensor:
    """finished [c] as [c, 1, ...], to go with rows [c, ...]."""
    return finished.view(-1, *[1] * (rows.dim() - 1))


def _unaliased(values: Named, carry: Named) -> Named:
    """A step's results, copied where they share memory with its carry, which is overwritten value by value."""
    given = {tensor.untyped_storage()._cdata for tensor in carry.values()}
    return {name: v.clone() if v.untyped_storage()._cdata in given else v for name, v in values.items()}


def _step_counts(plan: Plan, like: Tensor) -> Tensor:
    return torch.from_numpy(np.maximum(plan.steps(), 1)).to(like)
