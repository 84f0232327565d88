"""Where a GPU's time goes: the kernels of a round of FedAvg, and the ways to convolve, by shape.

    python benchmarks/gpu_kernels.py OUT -d npz:OUT/data/cifar10.npz [--share 0.2] [--beta 0.1] [--device cuda] [--patience 60]

First PyTorch's profiler names the kernels of a round and their time; TFLOP are those that the round must cost
(counting.py). Then one convolution of so many clients, in batches of 10, forward and backward, captured: TFLOP/s in
each way of pflbench/engine/batched/convolutions.py, in float32 and with TF32. OUT/kernels.json has all of it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from counting import STEADY, work
from torch import Tensor, nn
from torch.autograd import DeviceType
from torch.func import functional_call, grad, vmap
from torch.profiler import ProfilerActivity, profile

from pflbench import methods
from pflbench.engine import devices
from pflbench.engine.batched.convolutions import convolve_by, convolving, fastest, seconds
from pflbench.engine.batched.program import capture
from pflbench.run.arithmetic import exact_arithmetic
from pflbench.run.device import find_device
from pflbench.run.execution import Execution
from pflbench.run.federation_data import load_federation_data
from pflbench.run.options import RunOptions
from pflbench.run.plan import plan
from pflbench.run.prepared import prepare
from pflbench.run.round import rounds

BATCH, CALLS, SHOWN = 10, 10, 12
CLIENTS = (20, 100, 5)
# In and out channels, kernel, stride, padding, size of the image; whether it is the first layer, whose images need no gradient.
SHAPES: dict[str, tuple[int, int, int, int, int, int, bool]] = {
    "CNN, Cifar10, layer 1": (3, 32, 5, 1, 0, 32, True),
    "CNN, Cifar10, layer 2": (32, 64, 5, 1, 0, 14, False),
    "ResNet-18, 64 channels": (64, 64, 3, 1, 1, 16, False),
    "ResNet-18, to 256 channels": (128, 256, 3, 2, 1, 8, False),
    "ResNet-18, 512 channels": (512, 512, 3, 1, 1, 2, False),
}


def profiled(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """A round: seconds, seconds in kernels, TFLOP, and milliseconds and launches by kernel."""
    wish = RunOptions(("fedavg",), (options.dataset,), Path("data"), model="cnn", beta=options.beta, rounds=STEADY + 1)
    (spec,) = plan(wish)
    setting = load_federation_data(spec, Path("data")).cut(options.share, spec.train.batch_size)
    on = ProfilerActivity.CPU if device.type == "cpu" else ProfilerActivity.CUDA
    with exact_arithmetic(device):
        fed = prepare(spec, setting, device, Execution(str(device), "batched")).federation()
        made = rounds(methods.make(spec.method), fed)
        for _ in range(STEADY - 1):
            next(made)
        taken = sum(next(made)[0].seconds.values())
        with profile(activities=[on]) as found:
            next(made)
            devices.synchronise(device)
        steps = fed.executor.record()["steps"]
        fed.executor.close()
    kernels: Counter[str] = Counter()
    launches: Counter[str] = Counter()
    for one in found.key_averages():
        spent = one.self_cpu_time_total if device.type == "cpu" else one.self_device_time_total
        if spent and (one.device_type == DeviceType.CPU) == (device.type == "cpu"):
            kernels[one.key] += spent / 1000
            launches[one.key] += one.count
    flops = sum(phase.flops for phase in work(spec, setting).values())
    return {
        "seconds": taken,
        "busy": sum(kernels.values()) / 1000,
        "tflop": flops / 1e12,
        "steps": steps,
        "kernels": [(name, spent, launches[name]) for name, spent in kernels.most_common()],
    }


def compared(shape: tuple[int, int, int, int, int, int, bool], clients: int, device: torch.device) -> dict[str, float]:
    """TFLOP/s by way, forward and backward."""
    channels, out, kernel, stride, padding, size, first = shape
    side = (size + 2 * padding - kernel) // stride + 1
    flops = (2 if first else 3) * 2 * clients * BATCH * out * side**2 * channels * kernel**2
    weight = torch.randn(clients, out, channels, kernel, kernel, device=device)
    x = torch.randn(BATCH, clients, channels, size, size, device=device).transpose(0, 1)
    found: dict[str, float] = {}

    def timed(way: str) -> float:
        layer = nn.Conv2d(channels, out, kernel, stride, padding, bias=False, device=device)
        convolve_by(layer, way)

        def loss(weight: Tensor, x: Tensor) -> Tensor:
            return functional_call(layer, {"weight": weight}, (x,)).square().sum()  # type: ignore[no-any-return]

        gradient = vmap(grad(loss, argnums=0 if first else (0, 1)))
        with convolving(way):
            call = captured(lambda: gradient(weight, x), device)
            spent = seconds(device, lambda: [call() for _ in range(CALLS)])
        found[way] = CALLS * flops / spent / 1e12
        return spent

    fastest(timed)
    return found


def captured(step: Callable[[], Any], device: torch.device) -> Callable[[], Any]:
    graph = capture("auto", device)
    if graph is None:
        return step
    for _ in range(2):
        graph.warm_up(step)
    return graph(step)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("-d", "--dataset", required=True)
    parser.add_argument("--beta", type=float, default=0.1)
    parser.add_argument("--share", type=float, default=0.2)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--patience", type=float, default=60, help="seconds after which no further shape is begun")
    options = parser.parse_args()
    device = find_device(options.device)
    told = profiled(options, device)
    result: dict[str, Any] = {"round": told, "shapes": []}
    file = options.out / "kernels.json"
    file.write_text(json.dumps(result))
    print(
        f"A round: {told['tflop']:.3g} TFLOP in {told['seconds']:.3g} s = {told['tflop'] / told['seconds']:.3g} TFLOP/s", end=""
    )
    print(f"; kernels are at work for {told['busy']:.3g} s; steps: {told['steps']}\n")
    print(f"{'ms':>9} {'share':>6} {'launches':>9}  kernel")
    for name, spent, count in told["kernels"][:SHOWN]:
        print(f"{spent:9.2f} {spent / told['busy'] / 10:5.1f}% {count:9}  {name[:110]}")
    begun = time.monotonic()
    arithmetic = ("float32",) if device.type == "cpu" else ("float32", "tf32")
    print(f"\nTFLOP/s, forward and backward\n{'convolution':28} {'clients':>7} {'':8} {'groups':>8} {'search':>8} {'unfold':>8}")
    for clients, (name, shape), dtype in ((n, s, d) for n in CLIENTS for s in SHAPES.items() for d in arithmetic):
        if time.monotonic() - begun > options.patience:
            print("No time for more.")
            break
        with exact_arithmetic(device, dtype):
            speed = compared(shape, clients, device)
        result["shapes"].append({"convolution": name, "clients": clients, "dtype": dtype, **speed})
        file.write_text(json.dumps(result))
        print(f"{name:28} {clients:7} {dtype:8} " + " ".join(f"{speed[way]:8.3g}" for way in speed), flush=True)


if __name__ == "__main__":
    main()
