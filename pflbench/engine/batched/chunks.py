"""How many clients are computed at a time: as many as the estimate of memory allows, and fewer once memory ran out."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from pflbench.engine import memory
from pflbench.engine.memory import Shortage

SHARE = 0.8  # of the free memory: the rest is for what no estimate covers, such as workspaces of kernels and fragmentation


class Chunks:
    """most: clients at a time, if the user gave a number. estimate: clients that memory is estimated to suffice for; None: all.

    deterministic: memory that runs out is an error, since fewer clients at a time give other last digits.
    An executor shares it with the executors that it makes: a shortage of one holds for all.
    """

    def __init__(self, most: int | None = None, estimate: int | None = None, *, deterministic: bool = False) -> None:
        self.most, self.estimate, self.deterministic = most, estimate, deterministic
        self.shortages: list[Shortage] = []
        self._smallest: dict[str, int] = {}  # by kind of work: fewest clients at a time, where not all

    def each(
        self,
        work: str,
        clients: np.ndarray,
        device: torch.device,
        do: Callable[[np.ndarray], None],
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        """Calls `do` with all clients, in order, a chunk at a time. forget: frees memory of what can be made again.

        If memory runs out, the same clients are computed again, half as many at a time: `do` must not change its inputs, and
        must write results only when it has all. For a single client, or if `deterministic`, torch.OutOfMemoryError is raised.
        """
        size, start = self._size(work, len(clients)), 0
        while start < len(clients):
            now = clients[start : start + size]
            if _enough_memory(do, now, needed=self.deterministic or len(now) == 1):
                start += len(now)
            else:
                forget()
                size = self._halve(work, len(now), device)

    def remember(self, shortages: Sequence[Shortage]) -> None:
        """Takes over the shortages of an earlier process: clients at a time stay within them."""
        if len(shortages) > len(self.shortages):  # of several runs that share an executor, the longest list counts
            self.shortages = list(shortages)

    def halvings(self, work: str) -> int:
        return sum(shortage.work == work for shortage in self.shortages)

    def record(self) -> dict[str, Any]:
        """For the record of a run; clients: by kind of work the fewest at a time, where not all were."""
        return {
            "asked": self.most or "auto",
            "estimate": self.estimate,
            "clients": dict(self._smallest),
            "out_of_memory": [vars(shortage) for shortage in self.shortages],
        }

    def _size(self, work: str, count: int) -> int:
        limits = [shortage.then for shortage in self.shortages if shortage.work == work]
        size = max(1, min([self.most or self.estimate or count, count, *limits]))
        if self.most is None and count:
            size = -(-count // -(-count // size))  # chunks of equal size need less memory
        if size < count:
            self._smallest[work] = min(size, self._smallest.get(work, size))
        return size

    def _halve(self, work: str, clients: int, device: torch.device) -> int:
        half = clients // 2
        self.shortages.append(Shortage(work, clients, half))
        self._smallest[work] = min(half, self._smallest.get(work, half))
        gc.collect()
        memory.release(device)
        return half


def _enough_memory(do: Callable[[np.ndarray], None], clients: np.ndarray, needed: bool) -> bool:
    """Calls `do` and returns whether memory was enough; raises torch.OutOfMemoryError if it had to be.

    Memory that `do` held is free again only after this has returned: the error keeps it alive.
    """
    try:
        do(clients)
    except Exception as error:
        if not memory.ran_out(error):
            raise
        if needed:
            raise torch.OutOfMemoryError(*error.args) from error
        return False
    return True
