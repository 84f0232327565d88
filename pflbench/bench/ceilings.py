"""What this machine can do at best: float32 matrix products and copies, measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from pflbench import environment
from pflbench.engine import devices

TRIES = 7
SECONDS = 0.5  # of tries at least: a machine that has other work shows its speed only now and then
LONG_ENOUGH = 0.02  # seconds of one product, beside which starting it does not count
SMALLEST, LARGEST = 1024, 16384
COPIED, ON_A_GPU = 1 << 28, 1 << 30  # bytes: beyond any cache


@dataclass(frozen=True)
class Ceilings:
    """The best of several tries, with all cores. tf32: on a GPU, with TensorFloat-32 inputs; runs do without it."""

    flops: float  # FLOP/s of a float32 matrix product
    bandwidth: float  # bytes/s, read and written, of a copy in the device's memory
    tf32: float | None = None  # FLOP/s


def measure(device: torch.device) -> Ceilings:
    """The ceilings of a device; a second or two."""
    with _all_cores():
        flops, tf32 = _product(device, tf32=False), _product(device, tf32=True) if device.type == "cuda" else None
        return Ceilings(flops, _copy(device), tf32)


def _product(device: torch.device, tf32: bool) -> float:
    """FLOP/s of the smallest product that takes long enough."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32" if tf32 else "ieee"
    try:
        n = SMALLEST
        while True:
            a, b = torch.randn(2, n, n, device=device)
            out = torch.empty_like(a)
            seconds = _best(lambda a=a, b=b, out=out: torch.mm(a, b, out=out), device)  # type: ignore[misc]
            if seconds >= LONG_ENOUGH or n == LARGEST:
                return 2 * n**3 / seconds
            n *= 2
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def _copy(device: torch.device) -> float:
    source = torch.zeros(COPIED if device.type == "cpu" else ON_A_GPU, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _best(lambda: target.copy_(source), device)


def _best(what: Callable[[], object], device: torch.device) -> float:
    """Seconds of the fastest of several tries, after one that is not timed."""
    what()
    found: list[float] = []
    while len(found) < TRIES or sum(found) < SECONDS:
        begun = devices.seconds(device)
        what()
        found.append(devices.seconds(device) - begun)
    return min(found)


@contextmanager
def _all_cores() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(environment.cores())
    try:
        yield
    finally:
        torch.set_num_threads(before)
