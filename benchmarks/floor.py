"""What a round must cost, phase by phase, and the seconds that takes at this machine's ceilings (matrix product, copy).

    python benchmarks/floor.py -d cifar10 [--model cnn] [-m fedala] [--data-dir DATA] [--device cpu] [--round 3] [--share 0.2]

What counts is said in counting.py. Round 2 has ALA's initial stage, at its shortest. `benchmarks/bench.py` measures
rounds beside their floor.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from counting import STEADY, Work, work

from pflbench import environment
from pflbench.engine import devices
from pflbench.run.device import find_device
from pflbench.run.federation_data import load_federation_data
from pflbench.run.options import RunOptions
from pflbench.run.plan import plan

TRIES = 7
SECONDS = 0.5  # of tries at least: a machine that has other work shows its speed only now and then
LONG_ENOUGH = 0.02  # seconds of one product, beside which starting it does not count
SMALLEST, LARGEST = 1024, 16384
COPIED, ON_A_GPU = 1 << 28, 1 << 30  # bytes: beyond any cache


@dataclass(frozen=True)
class Ceilings:
    """What this machine can do at best: the best of several tries, with all cores. tf32: on a GPU, with TensorFloat-32."""

    flops: float  # FLOP/s of a float32 matrix product
    bandwidth: float  # bytes/s, read and written, of a copy in the device's memory
    tf32: float | None = None  # FLOP/s

    def __str__(self) -> str:
        tf32 = f" ({self.tf32 / 1e9:,.0f} with TF32)" if self.tf32 else ""
        return f"matrix product {self.flops / 1e9:,.3g} GFLOP/s{tf32}, copy {self.bandwidth / 1e9:,.3g} GB/s"


@dataclass(frozen=True)
class Floor:
    """Of one phase."""

    flops: float
    bytes: float
    seconds: float
    bound: str  # "arithmetic" or "memory": which of the two takes longer


def measure(device: torch.device) -> Ceilings:
    """The ceilings of a device; a second or two."""
    with _all_cores():
        flops, tf32 = _product(device, tf32=False), _product(device, tf32=True) if device.type == "cuda" else None
        return Ceilings(flops, _copy(device), tf32)


def floors(of: dict[str, Work], ceilings: Ceilings) -> dict[str, Floor]:
    """By phase. The floor of a round is the sum of its phases'."""
    return {phase: _floor(work, ceilings) for phase, work in of.items()}


def _floor(work: Work, ceilings: Ceilings) -> Floor:
    arithmetic, memory = work.flops / ceilings.flops, work.bytes / ceilings.bandwidth
    return Floor(work.flops, work.bytes, max(arithmetic, memory), "arithmetic" if arithmetic >= memory else "memory")


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path(os.environ.get("PFLBENCH_DATA", "data")))
    parser.add_argument("-d", "--dataset", default="cifar10")
    parser.add_argument("-m", "--method", default="fedala")
    parser.add_argument("--model", help="default: the paper's for the dataset")
    parser.add_argument("--set", action="append", default=[], metavar="METHOD.NAME=VALUE")
    parser.add_argument("--round", type=int, default=STEADY)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    (spec,) = plan(
        RunOptions(
            (options.method,), (options.dataset,), options.data_dir, options.model, tuple(options.set), rounds=options.round
        )
    )
    setting = load_federation_data(spec, options.data_dir).cut(options.share, spec.train.batch_size)
    ceilings = measure(find_device(options.device))
    print(f"{spec.method.name}, {spec.data.label}, {spec.model}, {spec.partition.clients} clients, round {options.round}")
    print(f"{ceilings}\n\n{'phase':12} {'GFLOP':>10} {'MB':>10} {'floor s':>10}  bound by")
    found = floors(work(spec, setting, options.round), ceilings)
    for phase, floor in found.items():
        print(f"{phase:12} {floor.flops / 1e9:10.3f} {floor.bytes / 1e6:10.1f} {floor.seconds:10.4f}  {floor.bound}")
    print(f"{'round':12} {'':10} {'':10} {sum(floor.seconds for floor in found.values()):10.4f}")


if __name__ == "__main__":
    main()
