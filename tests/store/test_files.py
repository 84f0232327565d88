"""What is written is there whole or not at all; what cannot be written can be read."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from support.command import Shell
from support.report_database import add_partition, add_run, spec
from support.store_samples import write_round

from pflbench.store import database as db
from pflbench.store import files
from pflbench.store.write import RoundRecord

GOOD = "what was there before"


@pytest.fixture
def filled(shell: Shell, new_database: Path, tmp_path: Path) -> Path:
    """A database with two runs in a folder of its own."""
    path = tmp_path / "stored" / "pflbench.db"
    path.parent.mkdir()
    engine = db.connect(db.to_url(shutil.copy(new_database, str(path))))
    partition = add_partition(engine)
    for seed in (0, 1):
        run = add_run(engine, spec(seed=seed), [0.1, 0.8, 0.9], partition=partition)
    write_round(engine, run, RoundRecord(round=3, artifacts={"seen": np.arange(3)}))
    engine.dispose()
    return path


@pytest.mark.parametrize(
    "command",
    [
        ("table", "accuracy", "-o", "out.md"),
        ("plot", "curves", "-o", "out.png"),
        ("export", "rounds", "-o", "out.csv"),
        ("report", "-o", "out.html"),
        ("runs", "artifact", "2", "seen", "-o", "out.npy"),
    ],
)
def test_a_full_disk_leaves_the_good_file(
    shell: Shell, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    out = tmp_path / command[-1]
    out.write_text(GOOD)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert "No space left on device" in shell.refused(*command, "--db", str(filled))
    assert out.read_text() == GOOD
    assert sorted(path.name for path in tmp_path.iterdir()) == [out.name, "stored"]
    done = shell(*command, "--db", str(filled))
    assert done.code == 0, done
    assert out.read_bytes() not in (b"", GOOD.encode())


@pytest.fixture
def sealed(tmp_path: Path) -> Iterator[Callable[[Path], None]]:
    """Makes a folder read-only: for root, whom permissions do not hold, by a mount."""
    mounted: list[Path] = []

    def seal(folder: Path) -> None:
        if os.geteuid() != 0:
            folder.chmod(0o500)
            return
        made = [["mount", "--bind", folder, folder], ["mount", "-o", "remount,ro,bind", folder]]
        for call in made:
            if shutil.which("mount") is None or subprocess.run(call, capture_output=True, check=False).returncode:
                pytest.skip("root cannot mount here, and nothing else is read-only to it")
            if not mounted:
                mounted.append(folder)

    yield seal
    for folder in mounted:
        subprocess.run(["umount", folder], check=True)
    for folder in tmp_path.iterdir():
        folder.chmod(0o700)


READING = [
    ("table", "accuracy"),
    ("plot", "curves", "-o", "out.svg"),
    ("runs", "list"),
    ("runs", "show", "1"),
    ("export", "rounds"),
    ("db", "info"),
    ("db", "check"),
]


def test_a_database_on_a_read_only_file_system_can_be_read(shell: Shell, filled: Path, sealed: Callable[[Path], None]) -> None:
    expected = {command: shell(*command, "--db", str(filled)) for command in READING}
    sealed(filled.parent)
    for command, before in expected.items():
        done = shell(*command, "--db", str(filled))
        assert (done.code, done.out) == (before.code, before.out), done
    assert "read-only" in shell.refused("runs", "rm", "1", "--yes", "--db", str(filled))
    assert shell("db", "backup", "copy.db", "--db", str(filled)).code == 0


def test_what_cannot_be_run_leaves_no_run(shell: Shell) -> None:
    """Nor does anything run before it is found."""
    assert "p = 9, but" in shell.refused("run", "-m", "fedavg", "-m", "fedala", "--rounds", "1", "--set", "fedala.p=9")
    if Path("pflbench.db").exists():
        assert shell("runs", "list", "--json").out.strip() == "[]"


def test_options_of_the_other_executor_are_refused(shell: Shell) -> None:
    for words, told in {
        "--engine loop --chunk 3": "--chunk 3 needs --engine batched",
        "--device cpu --chunk 3": "--chunk 3 needs --engine batched",
        "--engine batched --workers 2": "--workers 2 needs --engine loop and a CPU",
    }.items():
        assert told in shell.refused("run", "-m", "fedavg", *words.split())
        assert told in shell.refused("reproduce", "accuracy", "--scale", "smoke", *words.split())
    assert not Path("pflbench.db").exists()


def test_what_a_killed_process_left_aside_goes_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    over = subprocess.Popen(["true"])
    over.wait()
    (tmp_path / f".out.csv.{over.pid}.partial").mkdir()
    living = tmp_path / f".out.csv.{os.getppid()}.partial"
    living.write_text("half")
    with files.atomic_write(target) as out:
        out.write(b"whole")
        assert len(list(tmp_path.iterdir())) == 2
    assert {path: path.read_text() for path in tmp_path.iterdir()} == {target: "whole", living: "half"}
