"""What tests of several files begin with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command import Shell


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """The command line in an empty folder, with none of its settings in the environment."""
    for name in os.environ:
        if name.startswith("PFLBENCH_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return Shell(capsys)
