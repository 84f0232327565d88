"""How many jobs a machine runs at a time, and on which devices, by its cores and memory and the runs' needs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch

from pflbench import environment
from pflbench.engine import devices, memory
from pflbench.run.execution import Execution, find_device
from pflbench.run.federation_data import load_federation_data
from pflbench.run.memory_estimate import footprint
from pflbench.spec import RunSpec

ITSELF = 600_000_000  # bytes of a process with PyTorch, without tensors
ON_GPU = 1_000_000_000  # bytes of a process on a GPU, without tensors: context, kernels, their workspaces

GpuShare = float | Literal["auto"] | None
"""Share of a GPU for each job, at most 1; "auto": by the memory that runs need; None: the default."""


def devices_for(how: Execution) -> tuple[str, ...]:
    """The CPU, the named GPU, or all GPUs if none is named."""
    device = find_device(how.device)
    if device.type == "cpu" or ":" in how.device:
        return (str(device),)
    return tuple(f"{device.type}:{i}" for i in range(devices.of(device).device_count()))


def capacity(specs: Sequence[RunSpec], data_dir: Path, how: Execution, cores: int | None = None, share: GpuShare = None) -> int:
    """Jobs at a time on this machine, never more than there are runs.

    On a CPU one for each core, or for each `cores` of them, as memory allows. On GPUs one for each, or several if a share below
    1 is given: no measurement shows yet that a GPU gains by them.
    """
    found = devices_for(how)
    if found[0] == "cpu":
        free = memory.free(torch.device("cpu"))
        most = min(len(specs), environment.cores() // (cores or 1))
        return max(1, most if free is None else min(most, free // needed(specs, data_dir, how)))
    if share == "auto":
        room = memory.free(torch.device(found[0])) or 0
        together = min(together_on_gpu(specs, data_dir, how, room), environment.cores() // len(found))
    else:
        together = int(1 / (share or 1))
    return max(1, min(len(specs), max(1, together) * len(found)))


def needed(specs: Sequence[RunSpec], data_dir: Path, how: Execution) -> int:
    """Bytes of memory that the largest run needs on a CPU, with its process."""
    return ITSELF + _largest(specs, data_dir, how)


def together_on_gpu(specs: Sequence[RunSpec], data_dir: Path, how: Execution, free: int) -> int:
    """How many runs as large as the largest fit on a GPU with so many bytes free: at least 1."""
    return max(1, int(memory.SHARE * free / (ON_GPU + _largest(specs, data_dir, how))))


def _largest(specs: Sequence[RunSpec], data_dir: Path, how: Execution) -> int:
    settings = {(spec.data, spec.partition, spec.model, spec.method.name): spec for spec in specs}.values()
    needs = [footprint(spec, load_federation_data(spec, data_dir), how) for spec in settings]
    return max((need.total for need in needs if need is not None), default=0)
