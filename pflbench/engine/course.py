"""The way of an inner loop: whose models walk along which batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from pflbench.engine.batches import Plan
from pflbench.engine.requests import Executor, Given, Grad, Objective, Step, Walk, Walked

LARGEST = "largest_gradient"


@dataclass(frozen=True)
class Course:
    """Whose models walk where, made by `Federation.course`."""

    executor: Executor
    clients: Tensor
    plan: Plan
    base: Tensor
    buffers: Tensor
    columns: slice

    def take(self, positions: Tensor) -> Course:
        """The course of some of its clients, by position [k] (on the host)."""
        at = positions.to(self.clients.device)
        return replace(
            self,
            clients=self.clients[at],
            plan=self.plan.take(positions.tolist()),
            base=self.base[at],
            buffers=self.buffers[at],
        )

    def walk(self, step: Step, carry: Mapping[str, Tensor], given: Given, objective: Objective | None) -> Walked:
        """As the executor's, with the size of the largest gradient [c, 1] in the carry: not finite where one of them was not."""
        watched = {**carry, LARGEST: self.base.new_zeros(len(self.base), 1)}
        step = partial(watching, step=step)
        asked = Walk(self.plan, step, self.base, watched, given, self.buffers, self.columns, objective=objective)
        return self.executor.do(asked)


def watching(grad: Grad, *, step: Step, largest_gradient: Tensor, **rest: Tensor) -> dict[str, Tensor]:
    """A step that notes the size of the gradients it takes: one that clips may make a valid number of an infinite gradient."""
    largest = largest_gradient

    def noted(w: Tensor, part: int = 0, of: int = 0) -> Tensor:
        nonlocal largest
        G = grad(w, part, of)
        largest = torch.maximum(largest, G.abs().amax(-1, keepdim=True))
        return G

    return {**step(noted, **rest), LARGEST: largest}
