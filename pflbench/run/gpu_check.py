"""The results of `doctor --gpu`, kept in the user's state folder, since there may be many databases.

They are printed and recorded with runs, and do not change how a run is executed. `contract.device` makes the checks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from pflbench.engine import devices
from pflbench.run.places import state_folder
from pflbench.store.files import atomic_write
from pflbench.store.schema import now

NVIDIA = Path("/proc/driver/nvidia/version")
COMMAND = "`pflbench doctor --gpu`"


def identity(device: torch.device) -> dict[str, str]:
    """Identifies the device of a result. Another driver or PyTorch version may compute differently."""
    return {"device": devices.name(device), "driver": driver(device), "torch": torch.__version__}


def driver(device: torch.device) -> str:
    """The version of NVIDIA's driver, else "unknown"."""
    with suppress(OSError):
        if device.type == "cuda" and (version := re.search(r"\d+\.\d[\d.]*", NVIDIA.read_text())):
            return version[0]
    return "unknown"


def note(device: torch.device) -> str:
    """A line before a run: at its first run that a GPU is unchecked, or at each run that checks have failed."""
    if device.type == "cpu":
        return ""
    found = _read(device)
    if found is None:
        with suppress(OSError, RuntimeError):  # if it cannot be stored, the line is printed again
            keep(device, [])
        return f"{devices.name(device)} has not been checked with this driver and PyTorch: {COMMAND} does that in some minutes."
    failed = ", ".join(_failed(found))
    return f"checks of this GPU have failed: {failed}. {COMMAND} checks anew." if failed else ""


def in_short(device: torch.device) -> str | None:
    """The result for the record of a run; None on a CPU."""
    if device.type == "cpu":
        return None
    found = _read(device)
    if not found:
        return "not checked"
    failed = _failed(found)
    return f"{len(failed)} of {len(found)} failed: {', '.join(failed)}" if failed else "passed"


def keep(device: torch.device, checks: Sequence[dict[str, Any]]) -> None:
    """Stores checks, which have at least a name and a status. Raises OSError or RuntimeError if that fails."""
    path = place(device)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as out:
        out.write(json.dumps({**identity(device), "checked_at": now(), "checks": checks}, indent=1).encode())


def place(device: torch.device) -> Path:
    """A device's file in the user's state folder. Raises RuntimeError if the user has no home."""
    return state_folder() / "gpu" / (re.sub(r"[^\w.]+", "-", " ".join(identity(device).values())) + ".json")


def _read(device: torch.device) -> list[dict[str, Any]] | None:
    """The stored checks; empty if only the line was printed; None if neither."""
    with suppress(OSError, RuntimeError):
        return list(json.loads(place(device).read_text(encoding="utf-8"))["checks"])
    return None


def _failed(checks: Sequence[dict[str, Any]]) -> list[str]:
    return [check["check"] for check in checks if check["status"] == "failed"]
