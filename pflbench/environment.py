"""Where a run was made: versions, commit, machine. Recorded with every run, no part of its key."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pflbench import __version__

PACKAGES = ("torch", "torchvision", "numpy", "sqlalchemy", "scikit-learn")
_version = cache(version)


def describe(host: bool = False) -> dict[str, Any]:
    """Versions, commit and machine, as plain JSON types. host: with its name, which may tell whose it is."""
    return {
        "pflbench": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
        **({"host": platform.node()} if host else {}),
    }


@cache  # later commits and edits are not in the code that this process has loaded
def commit() -> str | None:
    """The git commit of a checkout, with "+" if files differ from it; None for an installed package."""
    root = Path(__file__).parents[1]
    if not (root / ".git").exists():
        return None
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()


def processor() -> str:
    """The CPU's name."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def cores() -> int:
    """Cores this process may use: in a container often fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def reset_peak_memory() -> None:
    """Makes the peak begin anew, so that a run does not inherit that of the one before. Linux only; elsewhere nothing happens."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_resident_memory() -> int:
    """Largest resident set of this process since `reset_peak_memory`, in bytes; where that is not possible, since its start."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
