"""`pflbench doctor`: versions, device, data, database. Faults are findings, not errors."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pflbench import __version__, environment
from pflbench.errors import NothingYet, UserError

PACKAGES = ("torch", "torchvision", "torchtext", "numpy", "scikit-learn", "sqlalchemy", "alembic", "pydantic", "matplotlib")


def examine(db: str, data_dir: Path) -> dict[str, Any]:
    """Sections of names and values. problems: sentences about what will not work."""
    problems: list[str] = []
    return {
        "versions": {"pflbench": __version__, "python": platform.python_version()} | {name: version(name) for name in PACKAGES},
        "device": _device(problems),
        "data": _data(data_dir),
        "database": _database(db, problems),
        "problems": problems,
    }


def _device(problems: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"system": platform.platform(), "cores": environment.cores()}
    try:
        import torch
    except (ImportError, OSError) as error:
        problems.append(f"torch cannot be imported: {error}")
        return found
    from pflbench.engine import devices

    if outdated := devices.outdated_driver():
        problems.append(f"No GPU can be used: {outdated}. {devices.UPDATE}")
    kind = devices.accelerator()
    here = [torch.device(kind, i) for i in range(torch.accelerator.device_count())] if kind else []
    found["gpus"] = [devices.name(device) for device in here]
    found["auto"] = f"{kind}, engine batched, capture graph" if here else "cpu, engine loop"
    found["capture"] = ["graph", "none"] if found["gpus"] else ["none"]
    return found


def _data(data_dir: Path) -> dict[str, Any]:
    """The datasets in the data folder. Only `pflbench data verify` reads them completely."""
    folder = str(data_dir.absolute())
    if not data_dir.is_dir():
        return {"folder": folder, "found": [], "note": "no such folder; `digits` needs none"}
    found = sorted(path.name for path in data_dir.iterdir() if not path.name.startswith("."))
    return {"folder": folder, "found": found, "note": "`pflbench data verify` checks them"}


def _database(db: str, problems: list[str]) -> dict[str, Any]:
    from pflbench.store import inspection
    from pflbench.store.database import to_url
    from pflbench.store.failures import friendly

    try:
        url = to_url(db)
        with friendly(url):
            return {"state": "usable", **inspection.info(url)}
    except NothingYet:
        return {"state": "none yet", "path": db}
    except UserError as error:
        problems.append(f"database: {error.message}")
        return {"state": error.message}
