"""What of a device's memory is free, and how it is told that it was not enough."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from pflbench.engine import devices

CGROUP = Path("/sys/fs/cgroup")
# In the messages of CUDA (tensors, graphs), cuBLAS, cuSOLVER and cuDNN.
OUT_OF_MEMORY = ("out of memory", "_STATUS_ALLOC_FAILED", "_ALLOCATION_FAILED")


def free(device: torch.device) -> int | None:
    """Bytes that new tensors can have there. None where the system does not say (a CPU that does not run Linux)."""
    if device.type != "cpu":
        # What is left in the cache after that belongs to tensors, or to the graphs that there are: no other tensor gets it.
        release(device)
        return int(devices.of(device).mem_get_info(device)[0])
    known = [size for size in (_from_meminfo("MemAvailable"), _of_container()) if size is not None]
    return min(known, default=None)


def release(device: torch.device) -> None:
    """Gives back what PyTorch keeps of a GPU's memory for later tensors. It refuses where a capture has failed, before 2.13."""
    if device.type != "cpu":
        with suppress(RuntimeError):
            devices.of(device).empty_cache()


def ran_out(error: BaseException) -> bool:
    """Whether a GPU's memory was not enough: in PyTorch's words, or in those of a library or the driver beneath it."""
    told = isinstance(error, RuntimeError) and any(sign in str(error) for sign in OUT_OF_MEMORY)
    return told or isinstance(error, torch.OutOfMemoryError)


def room(device: torch.device, *, fixed: bool = False) -> int | None:
    """Bytes by which to choose how many clients are computed at a time. None where the system does not say.

    On a CPU half of what the machine has or the container may have, not what is free just now: the number of clients decides the
    last digits of a result, and the same command has to give the same. fixed: so on a GPU, too.
    """
    if device.type != "cpu":
        return int(devices.of(device).mem_get_info(device)[1]) // 2 if fixed else free(device)
    known = [size for size in (_from_meminfo("MemTotal"), _limit()) if size is not None]
    return min(known) // 2 if known else None


@dataclass(frozen=True)
class Shortage:
    """Memory did not suffice for so many clients at a time."""

    work: str  # "training" or "evaluation"
    clients: int
    then: int  # half as many: what they, and all later ones, were done with


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
    """What the limit of this process's group leaves; None without a limit. The cache of files gives way."""
    with suppress(OSError, ValueError):
        limit, used = (int((CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        lines = (CGROUP / "memory.stat").read_text().splitlines()
        cache = sum(int(line.split()[1]) for line in lines if line.startswith(("inactive_file ", "active_file ")))
        return max(0, limit - used + cache)
    return None
