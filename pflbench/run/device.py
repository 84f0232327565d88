"""Finds the device of a run, and checks that it can do what was asked for."""

from __future__ import annotations

import torch

from pflbench.engine import devices
from pflbench.errors import UserError
from pflbench.run.execution import Execution

VALID = "Valid: auto, cpu, cuda, cuda:0, cuda:1, ..."


def checked(how: Execution) -> Execution:
    """Returns `how`. Raises UserError for choices that the executor or the device does not have."""
    place = str(find_device("auto")) if how.device == "auto" else how.device
    _known(place)
    loop, cpu = how.engine_on(place) == "loop", place == "cpu"
    impossible = {
        f"--pack {how.pack} needs --engine batched": how.pack > 1 and loop,
        f"--chunk {how.chunk} needs --engine batched": how.chunk is not None and loop,
        f"--capture {how.capture} needs --engine batched": how.capture != "auto" and loop,
        f"--convolution {how.convolution} needs --engine batched": how.convolution != "auto" and loop,
        f"--workers {how.workers} needs --engine loop and a CPU": how.workers is not None and not (loop and cpu),
        f"--convolution {how.convolution} needs a GPU": how.convolution != "auto" and cpu,
        "--capture graph needs a GPU": how.capture == "graph" and cpu,
        "--convolution search excludes --deterministic": how.convolution == "search" and how.deterministic,
    }
    for reason, holds in impossible.items():
        if holds:
            raise UserError(
                f"{reason}; this command has {'loop' if loop else 'batched'} on {place}.", "Add what it needs, or leave it out."
            )
    return how


def find_device(name: str) -> torch.device:
    """The device of "auto" (the first GPU, else the CPU), "cpu", "cuda" or "cuda:1". Raises UserError for a missing GPU.

    A GPU always gets its index: some functions of torch.cuda refuse a device without one.
    """
    if name == "auto":
        name = devices.accelerator() or "cpu"
    device = _known(name)
    if name == "cpu":
        return device
    if outdated := devices.outdated_driver():  # PyTorch may count the GPUs all the same
        raise UserError(f"Device '{name}' was asked for, but {outdated}.", f"{devices.UPDATE} --device cpu needs neither.")
    count = devices.of(device).device_count()
    if (device.index or 0) >= count:
        raise UserError(f"Device '{name}' was asked for, but PyTorch sees {count or 'no'} GPU{'s' if count > 1 else ''} here.",
                        "Use --device cpu, or install a CUDA build of PyTorch.")  # fmt: skip
    return torch.device(device.type, device.index or 0)


def _known(name: str) -> torch.device:
    """Raises UserError for devices of another kind; whether it is there is not asked."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"Unknown device '{name}'.", VALID) from None
    if device.type == "mps":
        raise UserError("Apple's GPUs (mps) have no float64, in which losses and distances of models are summed.", VALID)
    if name != "cpu" and device.type not in ("cuda", devices.accelerator()):
        raise UserError(f"Device '{name}' is not supported.", VALID)
    return device


def why_no_gpu(name: str) -> str:
    """Why "auto" means the CPU if an outdated driver prevents the use of a GPU; else ""."""
    outdated = devices.outdated_driver() if name == "auto" else ""
    return outdated and f"The CPU is used, since {outdated}. {devices.UPDATE}"
