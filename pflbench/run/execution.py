"""How a run is executed: the user's choices, and the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from pflbench.engine import devices
from pflbench.errors import UserError
from pflbench.run.follow import Follow

VALID = "Valid: auto, cpu, cuda, cuda:0, cuda:1, ..."


@dataclass(frozen=True)
class Execution:
    """How a run is executed. Recorded with the run, not part of its key."""

    device: str = "auto"
    engine: Literal["auto", "loop", "batched"] = "auto"
    workers: int | None = None  # loop on a CPU: clients side by side; None: one per core
    chunk: int | None = None  # batched: clients at a time; None: as many as there is memory for
    estimate: int | None = None  # clients at a time by the estimate of the run's first start; None: estimate now
    pack: int = 1  # batched: runs that differ only in the seed and train together
    capture: Literal["auto", "graph", "none"] = "auto"  # batched: whether steps are captured as CUDA graphs
    convolution: Literal["auto", "groups", "search", "unfold"] = "auto"  # batched on a GPU: engine.batched.convolutions
    deterministic: bool = False  # on a GPU: the same bits each time, or an error; a CPU always gives them
    save_artifacts_every: int = 0  # every so many rounds large arrays are kept as artifacts; 0: never
    follow: Follow | None = None  # the client whose models are kept for a trajectory
    checkpoint_every: float = 30.0  # seconds between checkpoints
    checkpoints: str | None = None  # folder or URL: run.places
    command: str = ""  # as typed
    record_host: bool = False  # whether the machine's name, and paths in full, are recorded
    scale: str | None = None  # of `reproduce`, for whose table or figure the run is

    def engine_on(self, device: str) -> Literal["loop", "batched"]:
        """The executor, on a device such as "cpu" or "cuda:0"."""
        if self.engine == "auto":
            return "loop" if device == "cpu" else "batched"
        return self.engine

    def captures(self, device: str) -> bool:
        """Whether steps are captured on this device."""
        return self.engine_on(device) == "batched" and device != "cpu" and self.capture != "none"

    def unfolds(self, device: str) -> bool:
        """Whether convolutions may be unfolded on this device."""
        asked = "groups" if self.convolution == "auto" and self.deterministic else self.convolution
        return self.engine_on(device) == "batched" and device != "cpu" and asked in ("auto", "unfold")


def checked(how: Execution) -> Execution:
    """Returns `how`. Raises UserError for choices that the executor or the device does not have."""
    place = str(find_device("auto")) if how.device == "auto" else how.device
    engine = how.engine_on(place)
    if how.pack > 1 and engine == "loop":
        chosen_engine = "loop" if how.engine == "loop" else f"{how.engine}, which is loop on {place}"
        raise UserError(
            f"--pack {how.pack} is not possible with --engine {chosen_engine}, which trains one run after another.",
            "Add --engine batched, or leave out --pack.",
        )
    if engine == "loop":
        chosen: dict[str, object] = {"chunk": how.chunk, "capture": how.capture, "convolution": how.convolution}
    else:
        chosen = {"workers": how.workers}
    asked = [f"--{name} {value}" for name, value in chosen.items() if value not in (None, "auto")]
    if asked:
        other = "batched" if engine == "loop" else "loop"
        raise UserError(
            f"{' and '.join(asked)}: the {engine} executor has no such choice.", f"Add --engine {other}, or leave it out."
        )
    if how.workers is not None and place != "cpu":
        raise UserError(f"--workers {how.workers} works on a CPU only.", "Add --device cpu, or leave it out.")
    if how.convolution != "auto" and place == "cpu":
        raise UserError(f"--convolution {how.convolution} works on a GPU only.", "Leave it out.")
    if how.convolution == "search" and how.deterministic:
        raise UserError(
            "--convolution search depends on measurements, and --deterministic excludes them.",
            "Leave one of them out.",
        )
    if how.capture == "graph" and place == "cpu":
        raise UserError("--capture graph: a CUDA graph needs a GPU.", "Add --device cuda, or leave it out.")
    return how


def find_device(name: str) -> torch.device:
    """The device of "auto" (the first GPU, else the CPU), "cpu", "cuda" or "cuda:1". Raises UserError for a missing GPU.

    A GPU always gets its index: some functions of torch.cuda refuse a device without one.
    """
    if name == "auto":
        name = devices.accelerator() or "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"Unknown device '{name}'.", VALID) from None
    if name == "cpu":
        return device
    if device.type == "mps":
        raise UserError("Apple's GPUs (mps) have no float64, in which losses and distances of models are summed.", VALID)
    if device.type not in ("cuda", devices.accelerator()):
        raise UserError(f"Device '{name}' is not supported.", VALID)
    if outdated := devices.outdated_driver():  # PyTorch may count the GPUs all the same
        raise UserError(f"Device '{name}' was asked for, but {outdated}.", f"{devices.UPDATE} --device cpu needs neither.")
    count = devices.of(device).device_count()
    if (device.index or 0) >= count:
        raise UserError(f"Device '{name}' was asked for, but PyTorch sees {count or 'no'} GPU{'s' if count > 1 else ''} here.",
                        "Use --device cpu, or install a CUDA build of PyTorch.")  # fmt: skip
    return torch.device(device.type, device.index or 0)


def why_no_gpu(name: str) -> str:
    """Why "auto" means the CPU if an outdated driver prevents the use of a GPU; else ""."""
    outdated = devices.outdated_driver() if name == "auto" else ""
    return outdated and f"The CPU is used, since {outdated}. {devices.UPDATE}"
