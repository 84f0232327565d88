"""Too little disk, too short files, too little memory: a clear word, what was committed stays, and with more it is finished."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from support.cases import rest_slow
from support.command import Done
from support.faults.client import Disturbance
from support.faults.tally import Tally
from support.faults.victims import BOTH, Disturb, Of, Trials, Victim

PAGE = 4096
REFUSED = (2,)
WRITING = ("run", "import", "db upgrade of schema 0001", "export csv", "report", "plot")


def size(folder: Path) -> int:
    """Bytes of whole pages."""
    return sum(-(-path.stat().st_size // PAGE) * PAGE for path in folder.rglob("*") if path.is_file())


def growth(of: Trials) -> int:
    """By how much a folder grows by the command."""
    folder = of.fresh()
    before = size(folder)
    assert of.made(folder).code == 0
    after = size(folder)
    shutil.rmtree(folder)
    return max(16 * PAGE, after - before)


def pages(database: Path) -> int:
    with closing(sqlite3.connect(database)) as connection:
        return int(connection.execute("PRAGMA page_count").fetchone()[0])


def disturbed(of: Trials, what: Disturbance) -> Disturb:
    return lambda folder, more: of.made(folder, what, more)


@contextmanager
def small_disk(folder: Path, bytes: int) -> Iterator[None]:
    """The folder with what is in it on a file system of its own. Skips the test where none may be mounted."""
    aside = folder.with_name(f"{folder.name}.aside")
    folder.rename(aside)
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={bytes}", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no file system may be mounted here: {mounted.stderr.strip()}")
    try:
        shutil.copytree(aside, folder, dirs_exist_ok=True)
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)
        shutil.rmtree(aside)


@pytest.mark.skipif(shutil.which("mount") is None, reason="no file system may be mounted here")
@pytest.mark.parametrize("name", rest_slow(WRITING))
def test_disk(name: str, trials: Of, tally: Tally) -> None:
    """disk full"""
    of = trials(name)
    for free in tally.some(range(growth(of) // PAGE + 12), 3):
        with ExitStack() as disk:

            def disturb(folder: Path, more: Disturbance, free: int = free, disk: ExitStack = disk) -> Done:
                disk.enter_context(small_disk(folder, size(folder) + free * PAGE))
                done = of.made(folder, more)
                subprocess.run(["mount", "-o", f"remount,size={512 << 20}", str(folder)], check=True)
                return done

            of.one(tally, f"{free} pages free", disturb, REFUSED)


@pytest.mark.parametrize("name", rest_slow(("run", "db upgrade of nothing", "db copy")))
def test_full(name: str, trials: Of, tally: Tally) -> None:
    """SQLite finds the disk full"""
    of = trials(name)
    before = 1 if name != "run" else pages(of.material.path("new"))
    for limit in tally.some(range(before, before + growth(of) // PAGE), 3):
        full: Disturbance = ("full_after", {"pages": limit})
        of.one(tally, f"{limit} pages", disturbed(of, full), REFUSED, "disk is full")


@pytest.mark.parametrize("name", rest_slow(WRITING))
def test_file_size(name: str, trials: Of, tally: Tally) -> None:
    """file size limit (ulimit -f)"""
    of = trials(name)
    for limit in tally.some([step << power for power in range(8, 21) for step in (2, 3)], 3):
        of.one(tally, f"{limit} bytes", disturbed(of, ("small_files", {"size": limit})), REFUSED)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no such limit here")
@pytest.mark.parametrize("name", ["run", "import", "export parquet"])
def test_memory(name: str, trials: Of, tally: Tally) -> None:
    """memory limit (ulimit -v)"""
    of = trials(name)
    for more in tally.some(range(0, 24 << 20, 3 << 18), 4):
        little: Disturbance = ("little_memory", {"more": more})
        # Without memory for the index of its log SQLite says that reading failed.
        of.one(tally, f"{more} bytes more", disturbed(of, little), REFUSED, "[Mm]emory|Reading or writing .* failed")


OUTPUTS = {
    "export csv": ("export", "clients", "--format", "csv", "-o", "/dev/full"),
    "export parquet": ("export", "clients", "--format", "parquet", "-o", "/dev/full"),
    "export json": ("export", "runs", "--format", "json", "-o", "/dev/full"),
    "report": ("report", "-o", "/dev/full"),
    "table": ("table", "accuracy", "-o", "/dev/full"),
}


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
@pytest.mark.parametrize("name", rest_slow(OUTPUTS))
def test_dev_full(name: str, trials: Of, tally: Tally) -> None:
    """output to a full device"""
    of = Trials(Victim(name, ("db", "check"), BOTH), trials("run").forks, trials("run").material, trials("run").scratch())
    said = "Cannot write" if "table" not in name else ""
    for _ in range(tally.number(1, 3)):
        of.one(tally, name, lambda folder, _: of.forks(*OUTPUTS[name], folder=folder), REFUSED, said)
