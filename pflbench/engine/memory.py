"""What computing takes of a device's memory, found on tensors without data, and what of it is free."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pflbench.engine import devices

CGROUP = Path("/sys/fs/cgroup")
# In the messages of CUDA (tensors, graphs), cuBLAS, cuSOLVER and cuDNN.
OUT_OF_MEMORY = ("out of memory", "_STATUS_ALLOC_FAILED", "_ALLOCATION_FAILED")


class Peak(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the memory of the tensors that are made inside, in bytes. On the device "meta" they have none, and cost nothing.

    now: of those that still live; most: of those that lived at once; largest: of a single one.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = self.largest = 0
        self._seen: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._note((args, kwargs), new=False)
        result = func(*args, **(kwargs or {}))
        self._note(result, new=True)
        return result

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._seen.clear()  # what ends its life later no longer counts

    def _note(self, tensors: Any, new: bool) -> None:
        for tensor in tree_leaves(tensors):
            # Views share their memory: it counts once, and not at all where it was there before.
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in self._seen:
                self._begin(tensor.untyped_storage(), new)

    def _begin(self, storage: torch.UntypedStorage, new: bool) -> None:
        where, size = storage._cdata, storage.nbytes() if new else 0

        def end(_: object) -> None:
            self.now -= size
            del self._seen[where]

        self._seen[where] = weakref.ref(storage, end)
        self.now += size
        self.most, self.largest = max(self.most, self.now), max(self.largest, size)


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


def in_words(shortages: Sequence[Shortage]) -> str:
    """One sentence for each kind of work: of several shortages the first number and the last."""
    by_work: dict[str, list[Shortage]] = {}
    for shortage in shortages:
        by_work.setdefault(shortage.work, []).append(shortage)
    return " ".join(
        f"Out of memory in {work} with {of[0].clients} clients at a time: {of[-1].then} at a time from here on, "
        "same results within rounding."
        for work, of in by_work.items()
    )


def readable(size: float) -> str:
    """In decimal units: "3.2 GB"."""
    power = min(4, (len(str(int(size))) - 1) // 3)
    return f"{size / 1000**power:.3g} {('bytes', 'kB', 'MB', 'GB', 'TB')[power]}"


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
