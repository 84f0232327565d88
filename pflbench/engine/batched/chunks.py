"""How many clients are computed at a time: as many as memory is enough for, and fewer once it was not."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import torch

from pflbench.engine import devices, memory
from pflbench.engine.memory import Shortage

SHARE = 0.8  # of the free memory: the rest is for what no estimate knows, such as workspaces of kernels and fragmentation


class Chunks:
    """most: clients at a time; None: all, or if `fitting` as many as fit the device.

    An executor shares it with those it makes, so that what one of them finds out holds for all.
    """

    def __init__(self, most: int | None = None, *, fitting: bool = False) -> None:
        self.most = most
        self.fitting = fitting and most is None
        self.shortages: list[Shortage] = []
        self.needs: dict[Hashable, int | None] = {}  # bytes that a client takes, by request
        self._fits: dict[int, int] = {}  # bytes for each client -> clients
        self._smallest: dict[str, int] = {}  # by kind of work: clients at a time, where that was not all

    def each(
        self,
        work: str,
        clients: np.ndarray,
        device: torch.device,
        need: Callable[[], int | None],
        do: Callable[[np.ndarray], None],
    ) -> None:
        """Calls `do` with all clients, in order, some at a time.

        need: bytes that one client takes; None where that is not known. Where memory runs out, the same clients are done again,
        half as many at a time: `do` must leave its inputs as they are, and keep no result before it has all. For a single client
        torch.OutOfMemoryError passes.
        """
        size, start = self._size(work, len(clients), device, need), 0
        while start < len(clients):
            now = clients[start : start + size]
            if _enough_memory(do, now):
                start += len(now)
            else:
                size = self._halve(work, len(now), device)

    def need(self, request: Hashable, find: Callable[[], int | None]) -> int | None:
        """Bytes that a client takes in a request, found out once."""
        if request not in self.needs:
            self.needs[request] = find()
        return self.needs[request]

    def halvings(self, work: str) -> int:
        return sum(shortage.work == work for shortage in self.shortages)

    def record(self) -> dict[str, Any]:
        """For the record of a run: what was asked for, and by kind of work the fewest clients at a time, where not all were."""
        return {
            "asked": self.most or ("auto" if self.fitting else None),
            "clients": dict(self._smallest),
            "out_of_memory": [vars(shortage) for shortage in self.shortages],
        }

    def _size(self, work: str, count: int, device: torch.device, need: Callable[[], int | None]) -> int:
        limits = [shortage.then for shortage in self.shortages if shortage.work == work]
        size = max(1, min([self.most or count, count, *limits]))
        if self.fitting and size > 1:
            size = min(size, self._fitting(device, need) or size)
            size = -(-count // -(-count // size))  # parts of one size take less than all but the last at their largest
        if size < count:
            self._smallest[work] = min(size, self._smallest.get(work, size))
        return size

    def _fitting(self, device: torch.device, need: Callable[[], int | None]) -> int | None:
        """Found out once: what a request has taken may be kept for it, by its programs, and is then no longer free."""
        each = need()
        if each and each not in self._fits and (there_is := memory.room(device)) is not None:
            self._fits[each] = max(1, int(SHARE * there_is / each))
        return self._fits.get(each) if each else None

    def _halve(self, work: str, clients: int, device: torch.device) -> int:
        half = clients // 2
        self.shortages.append(Shortage(work, clients, half))
        self._smallest[work] = min(half, self._smallest.get(work, half))
        gc.collect()
        if device.type != "cpu":
            devices.of(device).empty_cache()
        return half


def _enough_memory(do: Callable[[np.ndarray], None], clients: np.ndarray) -> bool:
    """Does it, and says whether it could. What it held is free again only when this has returned: the error keeps it alive."""
    try:
        do(clients)
    except torch.OutOfMemoryError:
        if len(clients) == 1:
            raise
        return False
    return True
