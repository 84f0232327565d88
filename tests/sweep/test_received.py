"""A sweep out of somebody else's database: what it would execute or contact is named, and done only where the user types it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.command import Shell, write

from pflbench import plugins
from pflbench.errors import UserError
from pflbench.run.surface import losses
from pflbench.store.database import connect, to_url

# Each leaves a trace when it is executed.
TRACE = 'import pathlib\n\npathlib.Path("executed").touch()\n'
NETS = """
from torch import nn


def layers(input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, classes))
"""
SETS = """
import numpy as np


def blobs():
    rng = np.random.default_rng(0)
    return rng.normal(size=(200, 12)), rng.integers(4, size=200)
"""
METHOD = """
from pflbench.methods.base import method
from pflbench.methods.fedavg import FedAvg


@method
class Own(FedAvg):
    title = "Own"
"""
GRID = "method: [own]\ndataset: sets.py:blobs\nmodel: [nets.py:layers, mlp]\nclients: 2\nrounds: 1\nbeta: 10\n"
FILES = ("own.py", "nets.py", "sets.py")


@pytest.fixture
def sent(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that Slurm's stand-in writes with what it is told. There is a sweep "own" with code of its own."""
    program = write("bin/sbatch", f'#!/bin/sh\necho "$@" > {tmp_path}/sent\necho 17\n')
    Path(program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=":")
    for name, text in zip(FILES, (METHOD, NETS, SETS), strict=True):
        write(name, TRACE + text)
    write("own.yaml", GRID)
    assert shell("sweep", "own.yaml", "--plugin", "own.py", "--executor", "slurm", "--slurm", "time=5").code == 0
    forget(monkeypatch, tmp_path)
    return tmp_path / "sent"


def forget(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Another command."""
    monkeypatch.setattr(plugins, "_executed", {})
    for name in ("sent", "executed"):
        (folder / name).unlink(missing_ok=True)


def forged(**changed: Any) -> None:
    """What the table says of how the sweep is made."""
    with sqlite3.connect("pflbench.db") as connection:
        (text,) = connection.execute("SELECT environment FROM sweep").fetchone()
        connection.execute("UPDATE sweep SET environment = ?", (json.dumps({**json.loads(text), **changed}),))


def test_who_began_a_sweep_types_nothing_again(shell: Shell, sent: Path) -> None:
    """What is typed takes the place of what is stored."""
    assert shell("sweep", "resume", "own").code == 0
    assert "--time=5" in sent.read_text()
    forged(workers={"executor": "slurm", "slurm": ["setup=touch executed"]})
    assert shell("sweep", "resume", "own", "--executor", "slurm", "--slurm", "time=9").code == 0
    assert "--time=9" in sent.read_text()


def test_somebody_elses_code_is_typed_again(shell: Shell, sent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once: then this user has typed it on this machine, too."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    code = [f"--plugin {tmp_path / name}" for name in FILES]
    for command in ("resume", "work"):
        told = shell.refused("sweep", command, "own")
        assert all(one in told for one in code)
    shell("sweep", "cancel", "own")
    assert "--executor slurm --slurm time=5" in shell.refused("sweep", "resume", "own")
    typed = [word for name in FILES for word in ("--plugin", name)]
    told = shell.refused("sweep", "resume", "own", *typed[:-2], "--executor", "slurm", "--slurm", "time=5")
    assert (code[-1] in told, code[0] in told, "--executor" in told) == (True, False, False)
    assert not sent.exists()
    assert not (tmp_path / "executed").exists()
    assert "Cancelled" in shell("sweep", "status", "own").err, "nor was it opened again"
    for more in ((*typed, "--executor", "slurm", "--slurm", "time=5"), ()):
        assert shell("sweep", "resume", "own", *more).code == 0
        assert sent.exists()
        forget(monkeypatch, tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("workers", {"executor": "slurm", "slurm": ["setup=touch x"]}, "--executor slurm --slurm 'setup=touch x'"),
        ("workers", {"executor": "ray", "ray_address": "far:6379"}, "--executor ray --ray-address far:6379"),
        ("execution", {"checkpoints": "s3://x", "device": "cpu", "engine": "auto", "pack": None}, "--checkpoints s3://x"),
        ("plugins", ["/tmp/other.py"], "--plugin /tmp/other.py"),
    ],
)
def test_what_was_put_into_a_known_sweep_is_not_done(shell: Shell, sent: Path, name: str, value: Any, named: str) -> None:
    forged(**{name: value})
    assert f"yet: {named}\n" in shell.refused("sweep", "resume", "own"), "that, and nothing else"
    assert not sent.exists()
    assert not Path("executed").exists()


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_file_that_names_code_says_so_first(shell: Shell, more: tuple[str, ...]) -> None:
    write("own.yaml", "method: fedavg\ndataset: [digits]\ninclude:\n  - {method: local, model: nets.py:layers}\n")
    write("nets.py", "raise ValueError('executed')\n")
    told = shell.refused("sweep", "own.yaml", *more)
    assert told.startswith("own.yaml names Python files, which are executed: nets.py:layers\nError: ")
    assert "ValueError: executed" in told


def test_code_of_somebody_elses_run_is_not_executed_for_a_figure(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss around a trajectory is computed anew, with the run's model."""
    write("nets.py", TRACE + NETS.replace("12", "64"))
    command = ("run", "-m", "fedavg", "-d", "digits", "-r", "1", "--clients", "2", "--model", "nets.py:layers", "-q")
    assert shell(*command).code == 0
    forget(monkeypatch, tmp_path)
    store = connect(to_url("pflbench.db"))
    assert len(losses(store, 1, 0, [np.zeros((3, 64 * 8 + 8 + 8 * 10 + 10))], Path("data"))) == 3
    forget(monkeypatch, tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    with pytest.raises(UserError, match=f"Run 1 comes with code .*: --plugin {tmp_path}/nets.py"):
        losses(store, 1, 0, [], Path("data"))
    assert not (tmp_path / "executed").exists()
    store.dispose()
