"""Many processes at one database: none fails, nothing is lost, and of those that want the same run one makes it."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
from support.command import Done
from support.faults import aftermath
from support.faults.client import Child, Forks
from support.faults.tally import Tally
from support.faults.victims import FEDALA, OFTEN, SMALL, Material

WRITERS = 16
SAID = "Another process is at this run"


def writer(seed: int) -> tuple[str, ...]:
    return ("run", "-m", "fedavg", "--seed", str(seed), *SMALL, *OFTEN)


@pytest.fixture(scope="session")
def one_by_one(forks: Forks, material: Material, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the writers have written one after the other."""
    folder = tmp_path_factory.mktemp("one-by-one")
    shutil.copy(material.path("new"), folder / "pflbench.db")
    for seed in range(WRITERS):
        assert forks(*writer(seed), folder=folder).code == 0
    return folder


READERS = (("runs", "list", "--json"), ("table", "accuracy"), ("db", "check"), ("export", "clients"))


@pytest.mark.slow
def test_writers(forks: Forks, material: Material, one_by_one: Path, tmp_path: Path, tally: Tally) -> None:
    """16 processes that write one SQLite file, and readers beside them"""
    whole = aftermath.left(one_by_one)
    for i in range(tally.number(1, 3)):
        folder = tmp_path / str(i)
        folder.mkdir()
        if i % 2:  # else the first of them makes the database
            shutil.copy(material.path("new"), folder / "pflbench.db")
        children = [forks.start(*writer(seed), folder=folder) for seed in range(WRITERS)]
        readings: list[Done] = []
        while any(alive(child) for child in children):
            if (folder / "pflbench.db").exists():
                readings.append(forks(*READERS[len(readings) % len(READERS)], folder=folder))
        done = [child.wait() for child in children]
        wrong = [f"a writer: {one.code} {one.err}" for one in done if one.code]
        # Before the first run there is nothing to read.
        wrong += [f"a reader: {one.code} {one.err}" for one in readings if one.code and "No results" not in one.err]
        found = aftermath.left(folder)
        tally.count(f"try {i}", *aftermath.lost(found, whole), [*wrong, *aftermath.differences(found, whole)])


def alive(child: Child) -> bool:
    """Whether it has not ended; one that has waits for its parent to look."""
    return Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 8])
def test_same(processes: int, forks: Forks, material: Material, tmp_path: Path, tally: Tally) -> None:
    """processes that want the same run at the same moment"""
    reference = material.path("first")
    whole = aftermath.tables(reference)
    for i in range(tally.number(1, 20 if processes == 2 else 8)):
        folder = tmp_path / str(i)
        folder.mkdir()
        shutil.copy(material.path("new"), folder / "pflbench.db")
        logs = [forks.path("sql") for _ in range(processes)]
        asked = [("counted", {"kinds": ["sql"], "into": str(log)}) for log in logs]
        children = [forks.start(*FEDALA, folder=folder, disturbed=[one]) for one in asked]
        done = [child.wait() for child in children]
        wrong = [f"{one.code} {one.err}" for one in done if not (one.code == 0 or (one.code == 2 and SAID in one.err))]
        makers = sum("INSERT INTO round" in log.read_text() for log in logs)
        wrong += [] if makers == 1 else [f"{makers} processes made it"]
        found = aftermath.left(folder)
        wanted = aftermath.Left(frozenset({"pflbench.db", "pflbench.db.checkpoints"}), {"pflbench.db": whole})
        tally.count(f"try {i}", *aftermath.lost(found, wanted), [*wrong, *aftermath.differences(found, wanted)])
        shutil.rmtree(folder)


@pytest.mark.slow
def test_taken_over(forks: Forks, material: Material, tmp_path: Path, tally: Tally) -> None:
    """a process that is killed while another waits for its run"""
    whole = aftermath.tables(material.path("first"))
    chance = random.Random(0)
    for i in range(tally.number(2, 15)):
        folder = tmp_path / str(i)
        folder.mkdir()
        shutil.copy(material.path("new"), folder / "pflbench.db")
        first = forks.start(*FEDALA, folder=folder)
        time.sleep(chance.random())
        second = forks.start(*FEDALA, folder=folder)
        time.sleep(0.1 * chance.random())
        first.signal(signal.SIGKILL)
        first.wait()
        told = second.wait()
        again = forks(*FEDALA, folder=folder)
        wrong = [f"{one.code} {one.err}" for one in (told, again) if one.code and SAID not in one.err]
        wrong += [] if again.code == 0 else ["it was not taken over"]
        found = aftermath.left(folder)
        wanted = aftermath.Left(frozenset({"pflbench.db", "pflbench.db.checkpoints"}), {"pflbench.db": whole})
        tally.count(f"try {i}", *aftermath.lost(found, wanted), [*wrong, *aftermath.differences(found, wanted)])
        shutil.rmtree(folder)


@pytest.mark.slow
def test_on_a_server(forks: Forks, one_by_one: Path, tmp_path: Path, tally: Tally, request: pytest.FixtureRequest) -> None:
    """8 processes on PostgreSQL, two for each of four runs"""
    server = request.getfixturevalue("server")
    for i in range(tally.number(1, 3)):
        url = server.new(filled=i % 2 == 1)
        folder = tmp_path / str(i)
        folder.mkdir()
        variables = {"XDG_STATE_HOME": str(folder / "state"), "PFLBENCH_DB": url}
        children = [forks.start(*writer(seed % 4), folder=folder, **variables) for seed in range(8)]
        done = [child.wait() for child in children]
        wrong = [f"{one.code} {one.err}" for one in done if not (one.code == 0 or (one.code == 2 and SAID in one.err))]
        copied = forks("db", "copy", url, "copy.db", "-q", folder=folder)
        wrong += [] if copied.code == 0 else [copied.err]
        here, there = aftermath.tables(folder / "copy.db"), aftermath.tables(one_by_one / "pflbench.db")
        runs = rows = 0
        for table, number in (("run", 4), ("round", 16), ("client_round", 48)):
            made = here[table] & there[table]
            rows += number - made.total()
            runs += number - made.total() if table == "run" else 0
            wrong += [f"{table}: {here[table].total()} rows"] if here[table].total() != number else []
        tally.count(f"try {i}", runs, rows, wrong)
        server.drop(url)


def children_of(pid: int) -> list[int]:
    """Processes that this one has started and that work: Python's, which are no tracker of resources."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((each / "stat").read_text().rpartition(")")[2].split()[1])
            command = (each / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == pid and b"spawn_main" in command:
            found.append(int(each.name))
    return found


GRID = ("--grid", "method=fedavg,ditto", "--grid", "seeds=0-1")
SWEEP = ("sweep", "run", *GRID, "--name", "s", "--jobs", "2", *SMALL[:-3], *OFTEN, "-q")


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["worker", "sweep"])
def test_sweep(whom: str, forks: Forks, material: Material, tmp_path: Path, tally: Tally) -> None:
    """kill -9 at a random time, of a sweep with two workers"""
    chance, references = random.Random(0), []
    for i in range(1 + tally.number(1, 3)):
        folder = tmp_path / str(i)
        folder.mkdir()
        shutil.copy(material.path("new"), folder / "pflbench.db")
        begun = time.monotonic()
        child = forks.start(*SWEEP, folder=folder)
        if not references:
            assert (done := child.wait()).code == 0, done.err
            references.append((aftermath.left(folder), time.monotonic() - begun))
            continue
        whole, seconds = references[0]
        time.sleep((0.2 + 0.8 * chance.random()) * seconds)
        for pid in [child.pid] if whom == "sweep" else children_of(child.pid)[:1]:
            os.kill(pid, signal.SIGKILL)
        child.wait()
        again = forks("sweep", "resume", "s", "-q", "--jobs", "2", folder=folder)
        found = aftermath.left(folder)
        wrong = [] if again.code == 0 else [f"{again.code} {again.err}"]
        tally.count(f"try {i}", *aftermath.lost(found, whole), [*wrong, *aftermath.differences(found, whole)])
