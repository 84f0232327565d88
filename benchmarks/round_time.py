"""Seconds per FedAvg round on MNIST with the 4-layer CNN: pflbench beside a straightforward loop. Evaluation included.

    python benchmarks/round_time.py --data-dir DATA [--share 0.2] [--repeats 3]

The straightforward loop is what a federated round looks like in plain PyTorch: one client after another, a DataLoader each,
torch.optim.SGD, intra-op threads at their default. Both train the same clients (Dir(0.1), 20 clients) for one epoch with batches
of 10 and evaluate all of them on their own test data. The arms run in turn, each in a process of its own; quote the ratio, since
machines drift. --share takes that part of every client's samples.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from pflbench import methods
from pflbench.bench.rounds import cut
from pflbench.execution import Execution, federation, find_device
from pflbench.models import build
from pflbench.setting import Setting, load_setting
from pflbench.spec import DataSpec, Dirichlet, MethodSpec, RunSpec, TrainSpec

ROUNDS = 2  # timed, after one that is not


def specification(method: str) -> RunSpec:
    return RunSpec(
        data=DataSpec(name="mnist"),
        partition=Dirichlet(clients=20, beta=0.1),
        model="cnn",
        train=TrainSpec(rounds=ROUNDS + 1, lr=0.1),
        method=MethodSpec(name=method),
    )


def setting(data_dir: Path, share: float) -> Setting:
    return cut(load_setting(specification("fedavg"), data_dir), share, least=10)


def plain(data_dir: Path, share: float) -> list[float]:
    """One client after another; nothing is done that plain PyTorch would not do."""
    held = setting(data_dir, share)
    arrays, partition = held.arrays, held.partition
    x = (torch.from_numpy(np.array(arrays.x)).float() / 255 - 0.5) / 0.5
    y = torch.from_numpy(np.array(arrays.y))
    train, test = ([TensorDataset(x[i], y[i]) for i in side] for side in (partition.train, partition.test))
    server = build("cnn", (1, 28, 28), 10)
    clients = [copy.deepcopy(server) for _ in train]
    weights = [len(d) / sum(map(len, train)) for d in train]
    seconds = []
    for _ in range(ROUNDS + 1):
        begun = time.perf_counter()
        for model, data in zip(clients, train, strict=True):
            model.load_state_dict(server.state_dict())
            model.train()
            optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
            for inputs, labels in DataLoader(data, batch_size=10, shuffle=True, drop_last=True):
                optimiser.zero_grad()
                F.cross_entropy(model(inputs), labels).backward()
                optimiser.step()
        average(server, clients, weights)
        correct = sum(evaluate(server, data) for data in test)
        seconds.append(time.perf_counter() - begun)
    print(f"plain: accuracy {correct / sum(map(len, test)):.4f}", file=sys.stderr)
    return seconds[1:]


@torch.no_grad()
def average(server: nn.Module, clients: list[nn.Module], weights: list[float]) -> None:
    for name, parameter in server.named_parameters():
        parameter.copy_(sum(w * c.get_parameter(name) for w, c in zip(weights, clients, strict=True)))


@torch.no_grad()
def evaluate(model: nn.Module, data: TensorDataset) -> int:
    model.eval()
    return sum(int((model(x).argmax(1) == y).sum()) for x, y in DataLoader(data, batch_size=10))


def pflbench(data_dir: Path, share: float, method: str, engine: str, device: str) -> list[float]:
    spec = specification(method)
    fed = federation(spec, setting(data_dir, share), find_device(device), Execution(engine=engine))
    chosen = methods.make(spec.method)
    state, seconds = chosen.init(fed), []
    state = chosen.receive(fed.at(1), state, fed.cohort(1))
    for t in range(1, ROUNDS + 2):
        begun = time.perf_counter()
        now, following = fed.at(t), fed.at(t + 1)
        state = chosen.update(now, state, now.cohort(t))
        state = chosen.receive(following, state, following.cohort(t + 1))
        scores = following.evaluate(chosen.deployed(state), following.cohort(t + 1), chosen.slot)
        seconds.append(time.perf_counter() - begun)
    print(f"pflbench {fed.executor.name}: accuracy {scores.accuracy:.4f}", file=sys.stderr)
    return seconds[1:]


def arm(name: str, options: argparse.Namespace) -> dict[str, float]:
    """Runs one arm in a process of its own: median seconds per round and peak memory in MB."""
    command = [sys.executable, __file__, "--arm", name, "--data-dir", str(options.data_dir), "--share", str(options.share)]
    command += ["--method", options.method, "--device", options.device]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path(os.environ.get("PFLBENCH_DATA", "data")))
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--device", default="cpu", help="on a GPU: loop and batched are compared there")
    parser.add_argument("--arm")
    options = parser.parse_args()
    if options.arm:
        if options.arm == "plain":
            seconds = plain(options.data_dir, options.share)
        else:
            seconds = pflbench(options.data_dir, options.share, options.method, options.arm, options.device)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"seconds": statistics.median(seconds), "peak_mb": peak}))
        return
    arms = ("plain", "loop") if options.device == "cpu" else ("loop", "batched")
    results: dict[str, list[dict[str, float]]] = {name: [] for name in arms}
    for _ in range(options.repeats):
        for name in arms:
            results[name].append(arm(name, options))
    for name in arms:
        times = [r["seconds"] for r in results[name]]
        peak = max(r["peak_mb"] for r in results[name])
        print(f"{name:8} {statistics.median(times):7.2f} s a round ({listed(times)})  peak {peak:.0f} MB")
    ratios = [a["seconds"] / b["seconds"] for a, b in zip(results[arms[0]], results[arms[1]], strict=True)]
    print(f"{arms[0]} / {arms[1]}: {statistics.median(ratios):.2f} ({listed(ratios)})")


def listed(values: list[float]) -> str:
    return ", ".join(f"{v:.2f}" for v in values)


if __name__ == "__main__":
    main()
