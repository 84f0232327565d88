"""Seconds per round with the paper's CNN: pflbench beside plain PyTorch, one core beside all, threads beside processes.

    python benchmarks/round_time.py --data-dir DATA -d mnist -d folder:CIFAR10 [-m METHOD] [--share 0.1] [--rounds 4]

Twenty clients, Dir(0.1), batches of 10, one local epoch, every client tested after every round. The arms, on Linux:

plain       one client after another in plain PyTorch (plain_rounds.py), intra-op threads at their default
plain, one  the same pinned to a single core
one core    pflbench pinned to a single core
cores       pflbench on all cores, as `run` would take them: one thread per core, clients side by side
processes   a process pinned to each core, each with its part of the clients. They exchange nothing: the most that
            processes could gain over threads

Each arm has processes of its own, and one round of each goes in turn: quote the ratios, which are medians over the turns, with
their range. The first round is not timed. A machine that does other work hurts `plain` most, whose threads wait for one another
in every operation: measure on a quiet one. --share takes that part of every client's samples. FedALA's initial stage is one
epoch, so that all rounds are alike. As above it takes about five minutes on two cores.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from plain_rounds import METHODS, cnn
from torch.utils.data import TensorDataset

from pflbench import methods
from pflbench.errors import UserError
from pflbench.partition import Partition
from pflbench.run.device import find_device
from pflbench.run.execution import Execution
from pflbench.run.federation_data import FederationData, load_federation_data
from pflbench.run.options import RunOptions
from pflbench.run.plan import plan
from pflbench.run.prepared import prepare
from pflbench.run.round import HEADLINE, CommunicationRound
from pflbench.spec import RunSpec

Round = Callable[[], float]
"""Does a round and returns the accuracy."""


@dataclass(frozen=True)
class Process:
    """One process of an arm: what it runs (plain, loop), the cores it is pinned to, and its part of the clients."""

    runs: str
    cores: frozenset[int]
    part: int = 0
    parts: int = 1


Arms = dict[str, tuple[Process, ...]]
Ratios = dict[str, tuple[str, str]]


def arms_and_ratios() -> tuple[Arms, Ratios]:
    cores = sorted(os.sched_getaffinity(0))
    every, apart = frozenset(cores), [frozenset({core}) for core in cores]
    arms = {
        "plain": (Process("plain", every),),
        "plain, one": (Process("plain", apart[0]),),
        "one core": (Process("loop", apart[0]),),
        "cores": (Process("loop", every),),
        "processes": tuple(Process("loop", core, k, len(apart)) for k, core in enumerate(apart)),
    }
    return arms, {
        "plain / cores": ("plain", "cores"),
        "plain / one core": ("plain, one", "one core"),
        "one core / cores": ("one core", "cores"),
        "cores / processes": ("cores", "processes"),
    }


# -- in a process of an arm ---------------------------------------------------------------------------------------------


def specification(dataset: str, method: str, data_dir: Path) -> RunSpec:
    settings = ("fedala.max_init_epochs=1",) if method == "fedala" else ()
    (spec,) = plan(RunOptions((method,), (dataset,), data_dir, model="cnn", settings=settings))
    return spec


def plain(spec: RunSpec, setting: FederationData) -> Round:
    arrays, partition = setting.arrays, setting.partition
    x = (torch.from_numpy(np.array(arrays.x)).float() / 255 - 0.5) / 0.5
    y = torch.from_numpy(np.array(arrays.y))
    train, test = ([TensorDataset(x[i], y[i]) for i in side] for side in (partition.train, partition.test))
    model = cnn(*x.shape[1:3], len(arrays.classes))
    return METHODS[spec.method.name](model, train, test, spec.train.lr).round


class Ours:
    """pflbench's rounds, each from local training to the next evaluation."""

    def __init__(self, spec: RunSpec, setting: FederationData) -> None:
        self.fed = prepare(spec, setting, find_device("cpu"), Execution("cpu", "loop")).federation()
        self.method = methods.make(spec.method)
        self.now = CommunicationRound(self.method, self.fed, 1)
        self.state = self.now.receive(self.method.init(self.fed))

    def round(self) -> float:
        before = self.now.update(self.state)
        self.now = CommunicationRound(self.method, self.fed, self.now.t + 1)
        self.state = self.now.receive(before)
        scores, _ = self.now.evaluate(before, self.state)
        return scores[HEADLINE].accuracy


def part(setting: FederationData, which: int, of: int) -> FederationData:
    """The setting with a part of the clients: the parts have nearly equally many samples."""
    whole = setting.partition
    mine: list[list[int]] = [[] for _ in range(of)]
    for client in sorted(range(len(whole.train)), key=lambda i: -len(whole.train[i])):
        min(mine, key=lambda clients: sum(len(whole.train[i]) for i in clients)).append(client)
    return replace(setting, partition=Partition(*(tuple(side[i] for i in mine[which]) for side in (whole.train, whole.test))))


def serve(options: argparse.Namespace) -> None:
    """A round for every line of stdin; its accuracy on stdout."""
    (dataset,), (method,) = options.dataset, options.method
    spec = specification(dataset, method, options.data_dir)
    setting = load_federation_data(spec, options.data_dir).cut(options.share, least=spec.train.batch_size)
    setting = part(setting, *options.part)
    played = plain(spec, setting) if options.runs == "plain" else Ours(spec, setting).round
    for _ in sys.stdin:
        print(f"{played():.4f}", flush=True)


# -- in the process that measures ---------------------------------------------------------------------------------------


def start(process: Process, case: Sequence[str]) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, *case, "--runs", process.runs, "--part", str(process.part), str(process.parts)]
    # PyTorch takes as many threads as it finds cores, unless it is told otherwise.
    environment = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=lambda: os.sched_setaffinity(0, process.cores),
    )


def a_round(processes: Sequence[subprocess.Popen[str]]) -> tuple[float, str]:
    """Seconds until all of an arm's processes have done a round, and the accuracy that the last one printed."""
    begun = time.perf_counter()
    for process in processes:
        print(file=process.stdin, flush=True)
    said = [process.stdout.readline().strip() for process in processes]
    if not all(said):
        raise SystemExit(2)  # it has said why
    return time.perf_counter() - begun, said[-1]


def measure(arms: Arms, case: Sequence[str], rounds: int) -> dict[str, list[float]]:
    """Seconds per round and arm."""
    running = {name: [start(process, case) for process in processes] for name, processes in arms.items()}
    try:
        turns = [{name: a_round(processes) for name, processes in running.items()} for _ in range(1 + rounds)]
    finally:
        for process in (p for processes in running.values() for p in processes):
            process.communicate()
    reached = ", ".join(f"{name} {turns[-1][name][1]}" for name, processes in arms.items() if len(processes) == 1)
    print(f"accuracy: {reached}", file=sys.stderr)
    return {name: [turn[name][0] for turn in turns[1:]] for name in arms}


def median_and_range(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path(os.environ.get("PFLBENCH_DATA", "data")))
    parser.add_argument("-d", "--dataset", action="append", help="images; default: mnist")
    parser.add_argument("-m", "--method", action="append", choices=list(METHODS), help="default: all")
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--runs", help=argparse.SUPPRESS)
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.runs:
        serve(options)
        return
    datasets, chosen = options.dataset or ["mnist"], options.method or list(METHODS)
    try:
        for dataset in datasets:  # here, where what is wrong is said once
            load_federation_data(specification(dataset, chosen[0], options.data_dir), options.data_dir)
    except UserError as error:
        print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    arms, ratios = arms_and_ratios()
    shown = f"{'dataset':12} {'method':7}" + "".join(f" {name:>10}" for name in arms)
    print("seconds per round, then ratios of arms\n" + shown + "".join(f" {name:>18}" for name in ratios))
    for dataset in datasets:
        for method in chosen:
            case = ["-d", dataset, "-m", method, "--data-dir", str(options.data_dir), "--share", str(options.share)]
            seconds = measure(arms, case, options.rounds)
            found = {name: [x / y for x, y in zip(seconds[a], seconds[b], strict=True)] for name, (a, b) in ratios.items()}
            row = "".join(f" {statistics.median(seconds[name]):10.2f}" for name in arms)
            row += "".join(f" {median_and_range(values):>18}" for values in found.values())
            print(f"{dataset.rpartition('/')[2][:12]:12} {method:7}{row}", flush=True)


if __name__ == "__main__":
    main()
