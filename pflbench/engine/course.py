"""The way of an inner loop: whose models walk along which batches."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from pflbench.engine.batches import Plan
from pflbench.engine.executor import Executor


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
