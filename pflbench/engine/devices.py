"""Devices of any kind: name, synchronisation, peak memory, threads.

Only this module, engine.memory and captured steps (engine.batched.program) distinguish kinds of devices.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pflbench import environment

UPDATE = "Update the driver, or install a PyTorch that was built for its CUDA."

warnings.filterwarnings("ignore", message="CUDA initialization: The NVIDIA driver on your system is too old")  # outdated_driver


def of(device: torch.device) -> Any:
    """PyTorch's module for devices of this kind, such as torch.cuda."""
    return torch.get_device_module(device)


def accelerator() -> str | None:
    """The kind of GPU that PyTorch sees, such as "cuda"; None without a GPU, or for a kind without float64."""
    current = torch.accelerator.current_accelerator(check_available=True)
    return None if current is None or current.type == "mps" else current.type


def outdated_driver() -> str:
    """A message with both versions if the NVIDIA driver is too old for PyTorch's CUDA, so that no GPU can be used; else ""."""
    if torch.version.cuda is None or accelerator() is not None:
        return ""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        if match := re.search(r"driver on your system is too old \(found version (\d+)\)", str(error)):
            major, minor = divmod(int(match[1]) // 10, 100)
            return f"the NVIDIA driver supports CUDA up to {major}.{minor}, and this PyTorch needs CUDA {torch.version.cuda}"
    return ""


def name(device: torch.device) -> str:
    """The product's name."""
    return environment.processor() if device.type == "cpu" else str(of(device).get_device_name(device))


def synchronise(device: torch.device) -> None:
    """Waits until the device has done all its work. A CPU has no queue."""
    if device.type != "cpu":
        of(device).synchronize(device)


def seconds(device: torch.device) -> float:
    """The time in seconds from an arbitrary start, once the device has done all its work."""
    synchronise(device)
    return time.perf_counter()


def reset_peak(device: torch.device) -> None:
    """Begins a new measurement of the peak of memory."""
    if device.type == "cpu":
        environment.reset_peak_memory()
    else:
        of(device).reset_peak_memory_stats(device)


def peak(device: torch.device) -> int:
    """Most bytes in use since `reset_peak`: on a CPU by this process, on a GPU by PyTorch, with the memory of graphs."""
    return environment.peak_resident_memory() if device.type == "cpu" else int(of(device).max_memory_reserved(device))


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, PyTorch's operations on a CPU use one thread, in the calling thread.

    Sums are then added up in the same order each time, on any number of cores. PyTorch keeps the number of threads for each
    thread of a program, and a new one begins with the machine's number until its first large operation: the number of threads of
    a product, and so its last digits, would depend on earlier operations. Several cores are kept busy by clients side by side.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
