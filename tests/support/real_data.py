"""The folder that has the real datasets, if there is one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = os.environ.get("PFLBENCH_TEST_DATA", "")


def real(name: str) -> Path:
    path = Path(ROOT, name)
    if not ROOT or not path.exists():
        pytest.skip(f"{name} is not under PFLBENCH_TEST_DATA={ROOT or '(unset)'}")
    return path
