"""How a run is executed: what the user chose, and the device that it means."""

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
    """How a run is executed; recorded with it, no part of its key."""

    device: str = "auto"
    engine: Literal["auto", "loop", "batched"] = "auto"
    workers: int | None = None  # loop on a CPU: clients side by side; None: one per core
    chunk: int | None = None  # batched: clients at a time; None: as many as there is memory for
    estimate: int | None = None  # how many these were thought to be when the run was begun; None: now it is
    pack: int = 1  # batched: runs that differ in the seed alone, made together
    capture: Literal["auto", "graph", "none"] = "auto"  # batched: how steps become programs
    convolution: Literal["auto", "groups", "search", "unfold"] = "auto"  # batched on a GPU: engine.batched.convolutions
    deterministic: bool = False  # on a GPU: the same bits each time, or a refusal; a CPU gives them anyway
    save_artifacts_every: int = 0  # rounds between those in which large arrays are kept as artifacts; 0: none
    follow: Follow | None = None  # the client whose models are kept
    checkpoint_every: float = 30.0  # seconds between checkpoints
    checkpoints: str | None = None  # where they lie: run.places
    command: str = ""  # as the user gave it
    record_host: bool = False  # whether the machine's name, and paths in full, are recorded
    scale: str | None = None  # of the reproduction that a run is made for, if it is

    def engine_on(self, device: str) -> Literal["loop", "batched"]:
        """The executor, on a device such as "cpu" or "cuda:0"."""
        if self.engine == "auto":
            return "loop" if device == "cpu" else "batched"
        return self.engine

    def captures(self, device: str) -> bool:
        """Whether steps become programs there."""
        return self.engine_on(device) == "batched" and device != "cpu" and self.capture != "none"

    def unfolds(self, device: str) -> bool:
        """Whether convolutions may be unfolded there."""
        asked = "groups" if self.convolution == "auto" and self.deterministic else self.convolution
        return self.engine_on(device) == "batched" and device != "cpu" and asked in ("auto", "unfold")


def checked(how: Execution) -> Execution:
    """The same. Raises UserError for ways of computing that the executor or the device does not have."""
    place = str(find_device("auto")) if how.device == "auto" else how.device
    engine = how.engine_on(place)
    if how.pack > 1 and engine == "loop":
        chosen_engine = "loop" if how.engine == "loop" else f"{how.engine}, which is loop on {place}"
        raise UserError(
            f"--pack {how.pack} is not possible with --engine {chosen_engine}: it makes one run after another.",
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
        raise UserError(f"--workers {how.workers}: clients go side by side on a CPU alone.", "Add --device cpu, or leave it out.")
    if how.convolution != "auto" and place == "cpu":
        raise UserError(
            f"--convolution {how.convolution}: it says how a GPU convolves; on a CPU there is one way.", "Leave it out."
        )
    if how.convolution == "search" and how.deterministic:
        raise UserError(
            "--convolution search: what cuDNN measures may differ each time, and --deterministic has nothing measured.",
            "Leave one of them out.",
        )
    if how.capture == "graph" and place == "cpu":
        raise UserError("--capture graph: a CUDA graph needs a GPU.", "Add --device cuda, or leave it out.")
    return how


def find_device(name: str) -> torch.device:
    """ "auto" is the first GPU if there is one, else the CPU; "cuda" is the first. A GPU that is not there is a UserError.

    A GPU always has its index: some functions of torch.cuda refuse a device without one, and no tensor's device is without.
    """
    if name == "auto":
        name = devices.accelerator() or "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"Unknown device '{name}'.", VALID) from None
    if name == "cpu":
        return device
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
    """Why "auto" is the CPU, where only the driver keeps a GPU from being used; else ""."""
    outdated = devices.outdated_driver() if name == "auto" else ""
    return outdated and f"The CPU is used, since {outdated}. {devices.UPDATE}"
