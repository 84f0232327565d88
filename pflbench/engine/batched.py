"""The batched executor: all clients of the cohort in one program, by `torch.func.vmap` over any nn.Module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional as F

from pflbench.engine import probe
from pflbench.engine.batches import Plan
from pflbench.engine.chunks import Chunks
from pflbench.engine.executor import (
    ALL,
    Correct,
    Executor,
    Given,
    Loss,
    Objective,
    Output,
    Step,
    Trained,
    Walked,
    output,
    pick,
    unwrap,
)
from pflbench.engine.flat import Flat
from pflbench.engine.samples import Samples

Named = dict[str, Tensor]
EVALUATED_AT_ONCE = 8192  # samples of all clients together
EVALUATED_PER_CLIENT = 512


@dataclass(frozen=True)
class _Part:
    """The clients whose batch has the same size at one step: no batch is padded, so BatchNorm and losses stay exact."""

    step: int
    clients: slice | Tensor  # rows of the chunk
    index: Tensor  # [c, b]


class _Whole(nn.Module):
    """A module with its features, callable by `functional_call`."""

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out = output(self.whole, x)
        return out.logits, out.features


class _Below(nn.Module):
    """A module's layers below its head, callable by `functional_call`."""

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.whole.features(x)  # type: ignore[operator]
        return features


class BatchedExecutor:
    name = "batched"

    def __init__(self, flat: Flat, samples: Samples, chunks: Chunks | None = None, loss: Loss = F.cross_entropy) -> None:
        self.flat = flat
        self.samples = samples
        self.device = samples.device
        self.chunks = chunks or Chunks()
        self.loss = loss
        self.module: nn.Module = copy.deepcopy(flat.module).to(samples.device, samples.dtype)

    def close(self) -> None:
        """Nothing is held."""

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
        rows_out, buffers_out, loss_out = rows.clone(), buffers.clone(), rows.new_zeros(len(plan))
        gradients = self._gradients(columns, objective)

        def train(clients: Tensor, steps: Iterator[_Part]) -> None:
            w, b, loss = rows[clients], buffers[clients], loss_out.new_zeros(len(clients))
            mine = pick(given or {}, clients)
            compared = [r[clients] for r in references]
            for part in steps:
                at = part.clients
                part_w, part_b = w[at], b[at]
                grads, part_loss = gradients(part_w, part_b, part.index, [r[at] for r in compared])
                if correct is not None:
                    correction, penalty = correct(part_w, **unwrap(pick(mine, at)))
                    part_loss = part_loss + penalty
                for name, view in self.flat.views(part_w, columns).items():
                    view.sub_(grads[name], alpha=lr)
                if correct is not None:
                    part_w[..., columns].sub_(correction[..., columns], alpha=lr)
                if not isinstance(at, slice):
                    w[at], b[at] = part_w, part_b
                loss[at] += part_loss
            rows_out[clients], buffers_out[clients], loss_out[clients] = w, b, loss

        asked = {"rows": rows, "buffers": buffers, "lr": lr, "columns": columns, "correct": correct, "given": given}
        need = self._need("sgd", _width(plan), **asked, objective=objective, references=references)
        self._each(plan, need, train)
        return Trained(rows_out, buffers_out, loss_out / _step_counts(plan, rows))

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
        like = next(iter(carry.values()))
        carry_out, buffers_out = {k: v.clone() for k, v in carry.items()}, buffers.clone()
        total, last = like.new_zeros(len(plan)), like.new_zeros(len(plan))
        gradients = self._gradients(columns, objective)

        def train(clients: Tensor, steps: Iterator[_Part]) -> None:
            models, b, losses_of = base[clients], buffers[clients], total.new_zeros(2, len(clients))
            state = {k: v[clients] for k, v in carry.items()}
            mine = pick(given, clients)
            inputs = {k: v[clients] for k, v in (each or {}).items()}
            for part in steps:
                at = part.clients
                part_w, part_b = models[at], b[at]
                pieces = part.index.tensor_split(parts, dim=1)
                losses: list[Tensor] = []

                def grad(
                    w: Tensor,
                    part: int = 0,
                    of: int = 0,
                    pieces: tuple[Tensor, ...] = pieces,
                    part_w: Tensor = part_w,
                    part_b: Tensor = part_b,
                    losses: list[Tensor] = losses,
                ) -> Tensor:
                    part_w[:, columns] = w
                    grads, loss = gradients(part_w, part_b[:, of], pieces[part], ())
                    losses.append(loss)
                    return torch.cat([g.reshape(len(w), -1) for g in grads.values()], dim=1)

                now = {k: v[at, part.step] for k, v in inputs.items()}
                before = {k: v[at] for k, v in state.items()}
                for k, v in step(grad, **before, **unwrap(pick(mine, at)), **now).items():
                    state[k][at] = v
                b[at] = part_b
                losses_of[0, at] += losses[0]
                losses_of[1, at] = losses[0]
            for k, v in state.items():
                carry_out[k][clients] = v
            buffers_out[clients] = b
            total[clients], last[clients] = losses_of

        asked = {"step": step, "base": base, "carry": carry, "given": given, "buffers": buffers, "columns": columns}
        need = self._need("walk", _width(plan), **asked, each=each, parts=parts, objective=objective)
        self._each(plan, need, train)
        return Walked(carry_out, buffers_out, total / _step_counts(plan, like), last)

    @torch.no_grad()
    def head(self, rows: Tensor, buffers: Tensor, plan: Plan) -> tuple[Executor, Plan]:
        self.module.train()
        below = _Below(self.module)
        positions = plan.positions()
        starts = torch.tensor([p[0] if len(p) else 0 for p in positions.order], device=self.device)
        features: Tensor | None = None

        def features_of(params: Named, buffered: Named, x: Tensor) -> Tensor:
            mine = {f"whole.{k}": v.clone() for k, v in buffered.items()}
            out: Tensor = functional_call(below, ({f"whole.{k}": v for k, v in params.items()}, mine), (x,))
            return out

        def pass_below(clients: Tensor, steps: Iterator[_Part]) -> None:
            nonlocal features
            params, buffered = self.flat.views(rows[clients]), self._module_buffers(buffers[clients])
            at_sample = starts[clients]
            for part in steps:
                at = part.clients
                x, _ = self.samples.batch(part.index)
                out = vmap(features_of)({k: v[at] for k, v in params.items()}, {k: v[at] for k, v in buffered.items()}, x)
                if features is None:
                    total = sum(map(len, plan.order))
                    features = out.new_empty(total, *out.shape[2:])
                where = at_sample[at].unsqueeze(1) + torch.arange(out.shape[1], device=self.device)
                features[where] = out
                at_sample[at] += out.shape[1]

        self._each(plan, self._need("head", _width(plan), rows=rows, buffers=buffers), pass_below)
        assert features is not None, "a plan without a step has no features"
        samples = self.samples.replaced(features, np.concatenate(plan.order))
        return BatchedExecutor(self.flat.head_alone(), samples, self.chunks, self.loss), positions

    @torch.no_grad()
    def evaluate(self, rows: Tensor, buffers: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        correct = torch.zeros(len(plan), dtype=torch.int64, device=self.device)
        loss = torch.zeros(len(plan), dtype=torch.float64, device=self.device)
        self.module.eval()
        counts = np.array([int(s.sum()) for s in plan.sizes])
        order = np.argsort(-counts, kind="stable")

        def logits(params: Named, buffered: Named, x: Tensor) -> Tensor:
            out: Tensor = functional_call(self.module, (params, buffered), (x,))
            return out

        def test(clients: np.ndarray) -> None:
            chosen = torch.from_numpy(clients).to(self.device)
            params = self.flat.views(rows[chosen])
            buffered = self._module_buffers(buffers[chosen])
            right, lost = correct[chosen], loss[chosen]
            at_once = EVALUATED_AT_ONCE >> self.chunks.halvings("evaluation")
            width = max(1, min(EVALUATED_PER_CLIENT, at_once // len(clients), int(counts[clients[0]])))
            for start in range(0, int(counts[clients[0]]), width):
                live = int((counts[clients] > start).sum())
                index, mask = _evaluation_batch(plan, clients[:live], start, width)
                x, y = self.samples.batch(index.to(self.device))
                keep = mask.to(self.device)
                out = vmap(logits)({k: v[:live] for k, v in params.items()}, {k: v[:live] for k, v in buffered.items()}, x)
                each = vmap(self.loss)(out.flatten(0, 1).unsqueeze(1), y.flatten().unsqueeze(1)).view_as(y)
                right[:live] += ((out.argmax(-1) == y) & keep).sum(-1)
                lost[:live] += (each * keep).sum(-1).to(torch.float64)
            correct[chosen], loss[chosen] = right, lost

        tested = order[counts[order] > 0]
        need = self._need("evaluate", min(EVALUATED_PER_CLIENT, int(counts.max(initial=0))), rows=rows, buffers=buffers)
        self.chunks.each("evaluation", tested, self.device, need, test)
        return correct, loss

    def _gradients(self, columns: slice, objective: Objective | None = None) -> Callable[..., tuple[Named, Tensor]]:
        """(rows [c, P], buffers [c, B], index [c, b], references) -> gradients by name, losses [c].

        Updates the buffers in place.
        """
        trained = {e.name for e in self.flat.within(columns)}
        whole = _Whole(self.module)

        def outputs(params: Named, buffered: Named, x: Tensor) -> Output:
            named = {f"whole.{k}": v for k, v in (*params.items(), *buffered.items())}
            return Output(*functional_call(whole, named, (x,)))

        def value(params: Named, mine: Named, x: Tensor, y: Tensor, references: tuple[Named, ...], before: Named) -> Tensor:
            if objective is None:
                return self.loss(functional_call(self.module, (params, mine), (x,)), y)
            compared = [outputs(r, {k: v.clone() for k, v in before.items()}, x) for r in references]
            return objective(self.loss, y, outputs(params, mine, x), *compared)

        def loss_of(
            params: Named, constants: Named, buffered: Named, x: Tensor, y: Tensor, references: tuple[Named, ...]
        ) -> tuple[Tensor, Named]:
            mine = {k: v.clone() for k, v in buffered.items()}
            return value({**params, **constants}, mine, x, y, references, buffered), mine

        per_client = vmap(grad_and_value(loss_of, has_aux=True))

        def gradients(w: Tensor, b: Tensor, index: Tensor, references: Sequence[Tensor] = ()) -> tuple[Named, Tensor]:
            self.module.train()
            views = self.flat.views(w)
            params = {k: v for k, v in views.items() if k in trained}
            constants = {k: v for k, v in views.items() if k not in trained}
            x, y = self.samples.batch(index)
            compared = tuple(self.flat.views(r) for r in references)
            grads, (loss, after) = per_client(params, constants, self._module_buffers(b), x, y, compared)
            for entry in self.flat.buffers:
                b[:, entry.start : entry.stop] = after[entry.name].reshape(len(b), -1)
            return grads, loss

        return gradients

    def _module_buffers(self, rows: Tensor) -> Named:
        """Buffer rows as the module wants them: counters are integers there."""
        types = {name: b.dtype for name, b in self.module.named_buffers()}
        return {k: v.to(types[k]) for k, v in self.flat.buffer_views(rows).items()}

    def _each(self, plan: Plan, need: Callable[[], int | None], do: Callable[[Tensor, Iterator[_Part]], None]) -> None:
        """Calls `do` with some clients of the plan after others, and their steps; see `Chunks.each`.

        Clients with most steps first, so that those still at work stay a prefix of the rows.
        """
        steps = plan.steps()
        order = np.argsort(-steps, kind="stable")

        def of_some(clients: np.ndarray) -> None:
            index, sizes = plan.take(clients.tolist()).padded()
            do(torch.from_numpy(clients).to(self.device), _parts(torch.from_numpy(index).to(self.device), sizes))

        self.chunks.each("training", order[steps[order] > 0], self.device, need, of_some)

    def _need(self, request: str, width: int, **arguments: Any) -> Callable[[], int | None]:
        """Bytes that a request takes for each client at a batch of `width` samples; found out once for all of its shape."""
        shape = (request, width, tuple(self.samples.x.shape[1:]), probe.signature(arguments))
        return lambda: self.chunks.need(shape, lambda: probe.need(self._without_data, request, width, arguments))

    def _without_data(self) -> BatchedExecutor:
        return BatchedExecutor(self.flat, self.samples.without_data(), loss=self.loss)


def _parts(index: Tensor, sizes: np.ndarray) -> Iterator[_Part]:
    """All steps in order; within a step one part for each batch size."""
    for j in range(sizes.shape[1]):
        for size in np.unique(sizes[:, j][sizes[:, j] > 0]):
            at = np.flatnonzero(sizes[:, j] == size)
            contiguous = at[-1] - at[0] + 1 == len(at)
            clients = slice(int(at[0]), int(at[-1]) + 1) if contiguous else torch.from_numpy(at).to(index.device)
            yield _Part(j, clients, index[clients, j, : int(size)])


def _width(plan: Plan) -> int:
    """The largest batch."""
    return max((int(sizes.max(initial=0)) for sizes in plan.sizes), default=0)


def _step_counts(plan: Plan, like: Tensor) -> Tensor:
    return torch.from_numpy(np.maximum(plan.steps(), 1)).to(like)


def _evaluation_batch(plan: Plan, clients: np.ndarray, start: int, width: int) -> tuple[Tensor, Tensor]:
    """Samples start..start+width of each client [c, width], and which of them exist: padding is harmless in evaluation mode."""
    index = np.zeros((len(clients), width), dtype=np.int64)
    mask = np.zeros((len(clients), width), dtype=bool)
    for i, client in enumerate(clients):
        piece = plan.order[client][start : start + width]
        index[i, : len(piece)] = piece
        mask[i, : len(piece)] = True
    return torch.from_numpy(index), torch.from_numpy(mask)
