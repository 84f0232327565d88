"""A sweep of 60 small runs on PostgreSQL whose server is stopped and started again in the middle, beside the same on SQLite.

Usage: PYTHONPATH=tests python benchmarks/server_restart.py [--jobs 8] [--rounds 10] [--away 5]

Prints how long both take, what the server's absence cost, and whether runs, rounds and clients' rows are the same: none
missing, none twice, all numbers equal. Exit code 1 if not. The server is started by the script, on 127.0.0.1.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from support.postgres import Server, server

from pflbench.plain import without_passwords
from pflbench.store import database as db

ROOT = Path(__file__).parents[1]
STUDY = """
name: restart
method: [fedavg, local, fedprox, ditto, fedala]
dataset: digits
partition: [dirichlet, pathological, iid]
beta: [0.1, 1]
seeds: 0-2
clients: 5
rounds: {rounds}
"""
QUERIES = {
    "runs": "SELECT key, attempt, status, method, partition_label, seed FROM run ORDER BY 1, 2",
    "rounds": """SELECT key, attempt, round, accuracy, accuracy_mean, accuracy_std, test_loss, train_loss, participants,
        params_up, params_down FROM run JOIN round ON run_id = run.id ORDER BY 1, 2, 3""",
    "clients' rows": """SELECT key, attempt, round, client, correct, total, loss FROM run JOIN client_round ON run_id = run.id
        ORDER BY 1, 2, 3, 4""",
    "series": "SELECT key, attempt, name, round, accuracy, test_loss FROM run JOIN series ON run_id = run.id ORDER BY 1, 2, 3, 4",
    "arrays": "SELECT key, attempt, round, name, data FROM run JOIN artifact ON run_id = run.id ORDER BY 1, 2, 3, 4",
}


def ask(engine: sa.Engine, query: str) -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.exec_driver_sql(query)]


def sweep(url: str, jobs: int, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pflbench", "sweep", "restart.yaml", "--jobs", str(jobs), "--device", "cpu", "--db", url]
    print("$", without_passwords(" ".join(["pflbench", *command[3:]])), flush=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(folder / "state")}
    return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str], begun: float) -> float:
    _, err = process.communicate()
    lines = [line for line in err.splitlines() if "/60  " not in line]
    print("  " + "\n  ".join(dict.fromkeys(lines)))
    if process.returncode:
        sys.exit(f"the sweep ended with exit code {process.returncode}")
    return time.monotonic() - begun


def restart_in_the_middle(running: Server, engine: sa.Engine, whole: int, away: float) -> None:
    """Stops the server once half of the rounds are there."""
    while ask(engine, "SELECT count(*) FROM round")[0][0] < whole / 2:
        time.sleep(0.1)
    stored = ask(engine, "SELECT count(*) FROM round")[0][0]
    running.stop("immediate")
    time.sleep(away)
    running.start()
    print(f"  The server was killed after {stored} of {whole} rounds, and back {away:.0f} s later.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--away", type=float, default=5.0, help="seconds for which the server is away")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, server(fsync="on") as running:
        folder = Path(name)
        (folder / "restart.yaml").write_text(STUDY.format(rounds=options.rounds))
        urls = {"PostgreSQL": running.new(), "SQLite": db.to_url(str(folder / "restart.db"))}
        engines = {kind: db.connect(url) for kind, url in urls.items()}
        for kind, url in urls.items():
            begun = time.monotonic()
            process = sweep(url, options.jobs, folder)
            if kind == "PostgreSQL":
                restart_in_the_middle(running, engines[kind], 60 * (options.rounds + 1), options.away)
            print(f"  {kind}: {ended(process, begun):.1f} s")
        same = True
        for what, query in QUERIES.items():
            here, there = (ask(engine, query) for engine in engines.values())
            equal = here == there
            same &= equal
            print(f"{what}: {len(here)} on PostgreSQL, {len(there)} on SQLite: {'the same' if equal else 'NOT the same'}")
        for engine in engines.values():
            engine.dispose()
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
