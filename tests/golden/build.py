"""Builds golden.db.xz anew: real runs by the command line, short ones, on small data in the formats of the originals.

    python tests/golden/build.py [--add] [NAME of a group of runs, ...]

With names only these groups are run, and nothing is written: to see what they do; with --add they follow the runs that are there,
and are written. See README.md beside this file.
"""

from __future__ import annotations

import lzma
import os
import sqlite3
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import small_data

from pflbench.cli import main

TARGET = Path(__file__).with_name("golden.db.xz")
THREE = "-m fedavg -m ditto -m fedala --seeds 0-1"
PAIRS = "-m fedprox -m fedprox+ala -m ditto -m ditto+ala -m fedrep -m fedrep+ala -m fedala --seeds 0-1"
DIGITS = "-d digits --rounds 5 --batch-size 30"
TINY = "-d tiny --rounds 2 --clients 10 --local-epochs 4 --lr 0.1"
RESNET = "-d tiny --model resnet18 --rounds 1 --clients 4 --set fedala.max_init_epochs=3"
POSTER = "-d mnist --model logreg --central-test --partition pathological --rounds 2 --clients 5"
CIFAR100 = "-d cifar100 --rounds 1 --local-epochs 2 --lr 0.1"

# What a table or figure needs, by the dataset or by what it is for. All are arguments of `pflbench run`.
RUNS: dict[str, tuple[str, ...]] = {
    "digits": (
        f"{THREE} {DIGITS}",
        f"{THREE} {DIGITS} --beta 1",
        f"{THREE} {DIGITS} --clients 5",
        f"{THREE} {DIGITS} --partition pathological",
    ),
    "observed": (
        "-m fedamp -m apple -d digits --model logreg --partition groups --rounds 4 --save-artifacts-every 2",
        "-m fedala -d digits --rounds 4 --batch-size 32 --save-artifacts-every 2 --set fedala.p=2 --set fedala.min_epochs=3",
        "-m fedavg -m fedala -d digits --model logreg --rounds 6 --trajectory 4:3-6 --set fedala.start_round=4",
    ),
    "elastic": (f"-m fedavg -m elastic --seeds 0-1 {POSTER}",),
    "tiny": (
        f"{THREE} {TINY} --beta 0.01",
        f"{THREE} {TINY} --beta 0.5",
        f"{PAIRS} {TINY}",
        f"-m fedala --seeds 0-1 {TINY} --set fedala.p=2",
        f"-m fedala --seeds 0-1 {TINY} --set fedala.p=3",
        f"-m fedala --seeds 0-1 {TINY} --set fedala.adapt=false",
        f"-m fedala --seeds 0-1 {RESNET} --set fedala.s=5",
        f"-m fedala --seeds 0-1 {RESNET}",
        f"-m fedala --seeds 0-1 {RESNET} --set fedala.p=2",
    ),
    "cifar100": (
        f"{PAIRS} {CIFAR100} --clients 5",
        f"{THREE} {CIFAR100} --clients 50",
        f"{THREE} {CIFAR100} --clients 100",
        f"{THREE} {CIFAR100} --clients 100 --join-ratio 0.5",
    ),
    "agnews": (
        "-m fedala --seeds 0-1 -d agnews --rounds 2 --clients 5",
        "-m fedala --seeds 0-1 -d agnews --rounds 2 --clients 5 --set fedala.p=2",
        "-m fedala --seeds 0-1 -d agnews --rounds 2 --clients 5 --set fedala.p=3",
        "-m fedavg -m fedala -d agnews --beta 1",  # the paper's protocol, all of it: minutes
    ),
    "partitions": tuple(
        f"-m local -m fedavg -m fedamp --seeds 0-1 -d fashionmnist --rounds 3 --clients 10 --lr 0.05 --partition {partition}"
        for partition in ("iid", "pathological", "groups")
    ),
    "elastic-varied": (
        # At the usual rate all of them end at 100 %.
        f"-m fedavg -m elastic --seeds 0-1 {POSTER} --lr 0.001 --join-ratio 0.4",
        f"-m fedavg -m elastic --seeds 0-1 {POSTER} --lr 0.001 --join-ratio 0.4 --classes-per-client 5",
        f"-m fedavg -m elastic --seeds 0-1 {POSTER} --lr 0.001",
        f"-m fedavg -m elastic --seeds 0-1 {POSTER} --lr 0.001 --join-ratio 0.4 --local-epochs 3",
    ),
    # On a partition of their own. FedAMP does not say what a new client gets.
    "new-clients": (
        "-m local -m fedprox -m per-fedavg -m fedamp --seeds 0-1 -d digits --model logreg --partition iid --clients 6 --rounds 2 "
        "--new-clients 2 --new-epochs 3 --new-samples 20",
    ),
}

# Of a long run, the clients of its best round are enough: they are all that a figure draws.
STRIP = """
delete from artifact where name = 'traffic';
delete from client_round where round not in (
    select min(round.round) from round where round.run_id = client_round.run_id and round.accuracy =
        (select max(accuracy) from round as every where every.run_id = client_round.run_id)
) and run_id in (select id from run where rounds > 100);
update partition set indices = null;
update run set environment = json_remove(environment, '$.host');
pragma journal_mode = delete;
vacuum;
"""


def build(names: list[str], before: bytes | None = None) -> bytes:
    """The database of these groups of runs, compressed. before: of the runs that they follow."""
    began = Path.cwd()
    with TemporaryDirectory() as folder:
        os.chdir(folder)  # so that no command, which a run keeps, names a path
        os.environ["XDG_CACHE_HOME"] = folder
        try:
            if before is not None:
                Path("pflbench.db").write_bytes(lzma.decompress(before))
            with small_data.written(Path("data")):
                for name in names:
                    for arguments in RUNS[name]:
                        _call(f"run {arguments} --quiet")
                    if name == "observed":
                        _call("plot trajectory --surface")
            database = Path("pflbench.db")
            with sqlite3.connect(database) as connection:
                connection.executescript(STRIP)
            connection.close()
            return lzma.compress(database.read_bytes(), preset=9)
        finally:
            os.chdir(began)


def _call(arguments: str) -> None:
    start = time.perf_counter()
    if main(arguments.split()) != 0:
        raise SystemExit(f"pflbench {arguments} failed.")
    print(f"{time.perf_counter() - start:.1f} s: {arguments}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    added = "--add" in sys.argv
    groups = [name for name in sys.argv[1:] if name != "--add"]
    made = build(groups or list(RUNS), TARGET.read_bytes() if added else None)
    print(f"{len(made) / 1e6:.2f} MB", file=sys.stderr)
    if added or not groups:
        TARGET.write_bytes(made)
