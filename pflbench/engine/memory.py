"""How much of a device's memory is free, which errors mean that it was not enough, and how many clients it is enough for."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pflbench.engine import devices

CGROUP = Path("/sys/fs/cgroup")
SHARE = 0.8  # of the free memory: the rest is for what no estimate covers, such as workspaces of kernels and fragmentation
# In error messages of CUDA (tensors, graphs), cuBLAS, cuSOLVER and cuDNN.
OUT_OF_MEMORY = ("out of memory", "_STATUS_ALLOC_FAILED", "_ALLOCATION_FAILED")


def free(device: torch.device) -> int | None:
    """Bytes that new tensors can take. None if unknown (a CPU without Linux)."""
    if device.type != "cpu":
        # What PyTorch still keeps after that belongs to tensors or graphs: new tensors cannot have it.
        release(device)
        return int(devices.of(device).mem_get_info(device)[0])
    _, left = _of_container()
    known = [size for size in (_from_meminfo("MemAvailable"), left) if size is not None]
    return min(known, default=None)


def release(device: torch.device) -> None:
    """Empties PyTorch's cache of GPU memory. Before version 2.13 PyTorch refuses that once a capture has failed."""
    if device.type != "cpu":
        with suppress(RuntimeError):
            devices.of(device).empty_cache()


def ran_out(error: BaseException) -> bool:
    """Whether an error of PyTorch, of a library below it or of the driver means that a GPU's memory was not enough."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in OUT_OF_MEMORY)


def room(device: torch.device, *, fixed: bool = False) -> int | None:
    """Bytes that the number of clients computed at a time is chosen for. None if unknown.

    On a CPU half of what the machine has or the container may have, not what is free just now: the number of clients decides the
    last digits of a result, and the same command must give the same result. fixed: half of all memory on a GPU, too.
    """
    if device.type != "cpu":
        return int(devices.of(device).mem_get_info(device)[1]) // 2 if fixed else free(device)
    limit, _ = _of_container()
    known = [size for size in (_from_meminfo("MemTotal"), limit) if size is not None]
    return min(known) // 2 if known else None


@dataclass(frozen=True)
class Shortage:
    """Memory was not enough for this number of clients at a time."""

    work: str  # "training" or "evaluation"
    clients: int
    then: int  # half as many, the number from then on


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
            try:
                do(now)
            except Exception as error:
                if not ran_out(error):
                    raise
                if self.deterministic or len(now) == 1:
                    raise torch.OutOfMemoryError(*error.args) from error
            else:
                start += len(now)
                continue
            # Only here is the memory free again that `do` held: the error keeps it alive.
            self.shortages.append(Shortage(work, len(now), len(now) // 2))
            forget()
            gc.collect()
            release(device)
            size = self._size(work, len(clients))

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


def _from_meminfo(entry: str) -> int | None:
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith(f"{entry}:"):
                return int(line.split()[1]) * 1024
    return None


def _of_container() -> tuple[int, int] | tuple[None, None]:
    """The limit of this process's cgroup in bytes, and what is left of it, where the page cache counts as free; else None."""
    with suppress(OSError, ValueError):
        limit, used = (int((CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        lines = (CGROUP / "memory.stat").read_text().splitlines()
        cache = sum(int(line.split()[1]) for line in lines if line.startswith(("inactive_file ", "active_file ")))
        return limit, max(0, limit - used + cache)
    return None, None
