"""What is asked of a device, whichever it is: what it is called, when its work is done, how much of its memory was in use.

Beside the executors' own tricks (streams, graphs) and engine.memory, this is the place that knows devices by their kind.
"""

from __future__ import annotations

import time

import torch

from pflbench import environment


def name(device: torch.device) -> str:
    """As its maker calls it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else environment.processor()


def software(device: torch.device) -> dict[str, str | None]:
    """For the record of a run: the version of what drives the device, beyond PyTorch."""
    return {"cuda": torch.version.cuda} if device.type == "cuda" else {}


def synchronise(device: torch.device) -> None:
    """Waits until everything that was asked of the device so far is done. A CPU is never behind."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(device: torch.device) -> float:
    """On a clock of its own, once everything that was asked of the device so far is done."""
    synchronise(device)
    return time.perf_counter()


def reset_peak(device: torch.device) -> None:
    """Makes the peak of memory begin anew: of a GPU its tensors', of a CPU this process's."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        environment.reset_peak_memory()


def peak(device: torch.device) -> int:
    """Bytes, the most since `reset_peak`."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else environment.peak_resident_memory()
