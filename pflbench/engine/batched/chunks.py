"""How many clients are computed at a time: as many as memory is thought to be enough for, and fewer once it was not."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from pflbench.engine import memory
from pflbench.engine.memory import Shortage

SHARE = 0.8  # of the free memory: the rest is for what no estimate knows, such as workspaces of kernels and fragmentation


class Chunks:
    """most: clients at a time, if a number was asked for. estimate: as many as memory is thought to be enough for; None: all.

    deterministic: memory that runs out is an error, since fewer clients at a time give other last digits.
    An executor shares it with those it makes, so that what one of them finds out holds for all.
    """

    def __init__(self, most: int | None = None, estimate: int | None = None, *, deterministic: bool = False) -> None:
        self.most, self.estimate, self.deterministic = most, estimate, deterministic
        self.shortages: list[Shortage] = []
        self._smallest: dict[str, int] = {}  # by kind of work: clients at a time, where that was not all

    def each(
        self,
        work: str,
        clients: np.ndarray,
        device: torch.device,
        do: Callable[[np.ndarray], None],
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        """Calls `do` with all clients, in order, some at a time. forget: gives back the memory of what can be made again.

        Where memory runs out, the same clients are done again, half as many at a time: `do` must leave its inputs as they are,
        and keep no result before it has all. For a single client, and where it is deterministic, torch.OutOfMemoryError passes.
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
        """Takes in when memory ran out before, in another process: no more clients at a time than that left."""
        if len(shortages) > len(self.shortages):  # of several runs that share it, those of the run that got furthest
            self.shortages = list(shortages)

    def halvings(self, work: str) -> int:
        return sum(shortage.work == work for shortage in self.shortages)

    def record(self) -> dict[str, Any]:
        """For the record of a run: what was asked for, and by kind of work the fewest clients at a time, where not all were."""
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
            size = -(-count // -(-count // size))  # parts of one size take less than all but the last at their largest
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
    """Does it, and says whether it could; raises torch.OutOfMemoryError where that is needed.

    What it held is free again only when this has returned: the error keeps it alive.
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
