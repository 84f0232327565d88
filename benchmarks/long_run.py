"""Runs of many rounds by the command line, watched from beside: memory, time a round, the write-ahead log, the database.

Usage: python benchmarks/long_run.py [-m fedavg ...] [--rounds 20000] [--beside serve|track] [--folder DIR]

The embedded digits, three clients, logistic regression, one step a round: next to nothing is trained, so that what a round costs
beside its training is most of it. Then the commands that read such a database, in seconds.
"""

from __future__ import annotations

import argparse
import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PFLBENCH = [sys.executable, "-m", "pflbench"]
TINY = ["-d", "digits", "--clients", "3", "--model", "logreg", "--batch-size", "2000", "--workers", "1", "--lr", "0.01"]
LOOK = 0.25  # seconds between two looks
REACHED = "SELECT max(round) FROM round WHERE run_id = (SELECT id FROM run WHERE method = ?)"
READERS = (
    "runs list",
    "runs show 1",
    "table accuracy",
    "plot curves -o curves.png",
    "report -o report.html",
    "export rounds -o rounds.csv",
)


@dataclass(frozen=True)
class Look:
    """seconds: since the command began; cpu: seconds that it computed; memory, log, database: bytes."""

    seconds: float
    cpu: float
    round: int
    memory: int
    log: int
    database: int


def watch(process: subprocess.Popen[bytes], method: str, database: Path, url: str | None) -> Iterator[Look]:
    begun, reached = time.monotonic(), -1
    log = Path(f"{database}-wal")
    while process.poll() is None:
        time.sleep(LOOK)
        with suppress(OSError, sqlite3.Error):  # not there yet, or no more
            with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
                (round,) = connection.execute(REACHED, (method,)).fetchone()
            if round is not None and round > reached:
                cpu, memory = of_process(process.pid)
                yield Look(time.monotonic() - begun, cpu, round, memory, size(log), size(database))
                reached = round
        if url is not None:
            with suppress(OSError), urllib.request.urlopen(url, timeout=60) as page:
                page.read()


def of_process(pid: int) -> tuple[float, int]:
    """Seconds that it has computed, and bytes that it has in memory."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), resident * os.sysconf("SC_PAGE_SIZE")


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@contextmanager
def beside(what: str | None, database: Path) -> Iterator[str | None]:
    """A command that reads the database all the time; gives the page to ask for, if it has one."""
    if what is None:
        yield None
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = {
        "serve": ["serve", "--port", str(port), "--db", str(database)],
        "track": ["track", "tensorboard", str(database.parent / "events"), "--follow", "--db", str(database)],
    }[what]
    reader = subprocess.Popen([*PFLBENCH, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}/" if what == "serve" else None
    finally:
        reader.terminate()
        reader.wait()


def run(method: str, rounds: int, database: Path, reader: str | None) -> list[Look]:
    # With --every 0 a checkpoint would be written each round; the usual 30 s are what a run has.
    command = [*PFLBENCH, "run", "-m", method, *TINY, "--rounds", str(rounds), "--quiet", "--db", str(database)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        with beside(reader, database) as url:
            looks = list(watch(process, method, database, url))
    finally:
        process.kill()
        process.wait()
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}.")
    return looks


def show(looks: list[Look], rounds: int, parts: int = 10) -> None:
    """A line for each tenth of the rounds."""
    print(f"{'rounds':>14} {'ms':>7} {'CPU ms':>7} {'MB':>6} {'log MB':>7} {'bytes of database / 1,000 rounds':>33}")
    ms, cpu = [], []
    for part in range(parts):
        low, high = part * rounds // parts, (part + 1) * rounds // parts
        some = [look for look in looks if low <= look.round <= high]
        if len(some) < 2:
            continue
        first, last = some[0], some[-1]
        made = last.round - first.round
        ms.append(1e3 * (last.seconds - first.seconds) / made)
        cpu.append(1e3 * (last.cpu - first.cpu) / made)
        grown = 1000 * (last.database - first.database) / made
        print(
            f"{low:>6,}-{high:>7,} {ms[-1]:>7.2f} {cpu[-1]:>7.2f} {last.memory / 1e6:>6.1f}"
            f" {max(look.log for look in some) / 1e6:>7.2f} {grown:>33,.0f}"
        )
    print(f"last / first tenth: time {ms[-1] / ms[0]:.2f}, CPU {cpu[-1] / cpu[0]:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--method", action="append", help="default: fedavg and fedala")
    parser.add_argument("--rounds", type=int, default=20_000)
    parser.add_argument("--beside", choices=("serve", "track"), help="a command that reads the database all the while")
    parser.add_argument("--folder", type=Path, help="where it is made, and removed afterwards; default: TMPDIR")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = str(ROOT)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        database = Path(folder) / "long.db"
        for method in options.method or ("fedavg", "fedala"):
            print(f"{method}, {options.rounds:,} rounds, {options.beside or 'nobody'} beside", flush=True)
            show(run(method, options.rounds, database, options.beside), options.rounds)
            print(
                f"when it is over: database {size(database) / 1e6:.1f} MB, log {size(Path(f'{database}-wal')) / 1e6:.1f} MB",
                flush=True,
            )
        for command in READERS:
            begun = time.perf_counter()
            arguments = [*PFLBENCH, *command.split(), "--db", str(database)]
            subprocess.run(arguments, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            print(f"{time.perf_counter() - begun:6.1f} s  {command.partition(' -o')[0]}", flush=True)


if __name__ == "__main__":
    main()
