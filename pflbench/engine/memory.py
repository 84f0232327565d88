"""How much of a device's memory is free, and which errors mean that it was not enough."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from pflbench.engine import devices

CGROUP = Path("/sys/fs/cgroup")
# In error messages of CUDA (tensors, graphs), cuBLAS, cuSOLVER and cuDNN.
OUT_OF_MEMORY = ("out of memory", "_STATUS_ALLOC_FAILED", "_ALLOCATION_FAILED")


def free(device: torch.device) -> int | None:
    """Bytes that new tensors can take. None if unknown (a CPU without Linux)."""
    if device.type != "cpu":
        # What PyTorch still keeps after that belongs to tensors or graphs: new tensors cannot have it.
        release(device)
        return int(devices.of(device).mem_get_info(device)[0])
    known = [size for size in (_from_meminfo("MemAvailable"), _of_container()) if size is not None]
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
    known = [size for size in (_from_meminfo("MemTotal"), _limit()) if size is not None]
    return min(known) // 2 if known else None


@dataclass(frozen=True)
class Shortage:
    """Memory was not enough for this number of clients at a time."""

    work: str  # "training" or "evaluation"
    clients: int
    then: int  # half as many, the number from then on


def _limit() -> int | None:
    with suppress(OSError, ValueError):
        return int((CGROUP / "memory.max").read_text())
    return None


def _from_meminfo(entry: str) -> int | None:
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith(f"{entry}:"):
                return int(line.split()[1]) * 1024
    return None


def _of_container() -> int | None:
    """Bytes left of the limit of this process's cgroup, whose page cache counts as free; None without a limit."""
    with suppress(OSError, ValueError):
        limit, used = (int((CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        lines = (CGROUP / "memory.stat").read_text().splitlines()
        cache = sum(int(line.split()[1]) for line in lines if line.startswith(("inactive_file ", "active_file ")))
        return max(0, limit - used + cache)
    return None
