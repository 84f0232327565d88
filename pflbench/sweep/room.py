"""How many jobs this machine makes at a time, and on which devices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from pflbench import environment
from pflbench.engine import devices, memory
from pflbench.run.execution import Execution, find_device
from pflbench.run.footprint import footprint
from pflbench.run.setting import load_setting
from pflbench.spec import RunSpec

ITSELF = 600_000_000  # bytes of a process with PyTorch, beside its tensors


def devices_for(how: Execution) -> tuple[str, ...]:
    """All GPUs of a kind, where none of them is named; else the one device that is asked for."""
    device = find_device(how.device)
    if device.type == "cpu" or device.index is not None:
        return (str(device),)
    return tuple(f"{device.type}:{i}" for i in range(devices.of(device).device_count()))


def places(specs: Sequence[RunSpec], data_dir: Path, how: Execution) -> int:
    """On a CPU one for each core, as far as memory goes; on GPUs one for each. Never more than there are runs."""
    found = devices_for(how)
    if found[0] != "cpu":
        return max(1, min(len(specs), len(found)))
    free = memory.free(torch.device("cpu"))
    most = min(len(specs), environment.cores())
    if free is None:
        return max(1, most)
    return max(1, min(most, free // _largest(specs, data_dir, how)))


def _largest(specs: Sequence[RunSpec], data_dir: Path, how: Execution) -> int:
    """Bytes that the most demanding of the runs needs, with its process."""
    settings = {(spec.data, spec.partition, spec.model, spec.method.name): spec for spec in specs}.values()
    needs = [footprint(spec, load_setting(spec, data_dir), how) for spec in settings]
    return ITSELF + max((need.total for need in needs if need is not None), default=0)
