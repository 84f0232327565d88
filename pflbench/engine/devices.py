"""What is asked of a device, whichever it is: its name, when its work is done, how much of its memory was in use.

Beside the executors' own tricks (streams, graphs) and engine.memory, this is the place that knows devices by their kind.
"""

from __future__ import annotations

import re
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pflbench import environment

UPDATE = "Update the driver, or install a PyTorch that was built for its CUDA."
_here = threading.local()

warnings.filterwarnings("ignore", message="CUDA initialization: The NVIDIA driver on your system is too old")  # outdated_driver


def of(device: torch.device) -> Any:
    """PyTorch's module for devices of this kind, as torch.cuda: streams, graphs, memory. A CPU's has none of these."""
    return torch.get_device_module(device)


def accelerator() -> str | None:
    """The kind of GPU that PyTorch sees here, as "cuda"; None without one, or of a kind that has no float64."""
    found = torch.accelerator.current_accelerator(check_available=True)
    return None if found is None or found.type == "mps" else found.type


def outdated_driver() -> str:
    """That the NVIDIA driver is older than PyTorch's CUDA, so that no GPU can be used, with both versions; "" if it is not."""
    if torch.version.cuda is None or accelerator() is not None:
        return ""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        if told := re.search(r"driver on your system is too old \(found version (\d+)\)", str(error)):
            major, minor = divmod(int(told[1]) // 10, 100)
            return f"the NVIDIA driver supports CUDA up to {major}.{minor}, and this PyTorch needs CUDA {torch.version.cuda}"
    return ""


def name(device: torch.device) -> str:
    """As its maker calls it."""
    found: str = environment.processor() if device.type == "cpu" else of(device).get_device_name(device)
    return found


def software(device: torch.device) -> dict[str, str | None]:
    """For the record of a run: the version of what drives the device, beyond PyTorch."""
    return {"cuda": torch.version.cuda} if device.type == "cuda" else {}


def synchronise(device: torch.device) -> None:
    """Waits until everything that was asked of the device so far is done. A CPU is never behind."""
    if device.type != "cpu":
        of(device).synchronize(device)


def seconds(device: torch.device) -> float:
    """On a clock of its own, once everything that was asked of the device so far is done."""
    synchronise(device)
    return time.perf_counter()


def reset_peak(device: torch.device) -> None:
    """Makes the peak of memory begin anew."""
    if device.type == "cpu":
        environment.reset_peak_memory()
    else:
        of(device).reset_peak_memory_stats(device)


def peak(device: torch.device) -> int:
    """Bytes, the most since `reset_peak`: of a CPU this process's, of a GPU what PyTorch has taken, graphs' own included."""
    found: int = environment.peak_resident_memory() if device.type == "cpu" else of(device).max_memory_reserved(device)
    return found


def begin_thread() -> None:
    """To be called at the start of a thread that computes: with `one_thread` for as long as it lives."""
    torch.set_num_threads(1)


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread to each operation on a CPU, in the calling thread.

    What an operation adds up is then added up in the same order, whatever else the machine does. PyTorch keeps the number of
    threads for each of the program's own threads, and a new one begins with that of the machine until its first large operation:
    how many threads a product has there, and so its last digits, would depend on what came before. One is also the number that
    does not depend on the cores at hand. Clients side by side are what keeps several cores busy.

    Of several that overlap, the last to end gives back what there was before the first.
    """
    depth = getattr(_here, "depth", 0)
    if depth == 0:
        _here.before = torch.get_num_threads()
    _here.depth = depth + 1
    torch.set_num_threads(1)
    try:
        yield
    finally:
        _here.depth -= 1
        if _here.depth == 0:
            torch.set_num_threads(_here.before)
