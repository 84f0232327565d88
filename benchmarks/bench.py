"""What a round costs on this machine, by method and executor, beside FedAvg's rounds and beside what it must cost.

    python benchmarks/bench.py -d cifar10 [-m fedala ...] [--share 0.1] [--engine batched ...] [--json before.json]
    python benchmarks/bench.py --compare before.json after.json

One round of each method on each executor goes in turn, so that a machine that slows down slows all; the first two, with ALA's
initial stage, are not timed. FedAvg is always measured, too. --engine: loop, batched, packed (five seeds as one program); a way
after it is an arm of its own: batched:none, batched:graph, batched:groups, batched:search, batched:unfold.

Compare multiples rather than seconds:
  x FedAvg   the method's round over FedAvg's of the same turn
  x work     that, over how many times FedAvg's work the method's is, as counting.py counts it: by FLOPs and bytes,
             or by gradients that wait for one another, whichever is more. Above 1.3 a method wastes time.
  x floor    the round over what it must cost at this machine's own speed in matrix products and copies (benchmarks/floor.py)
  training   as x FedAvg, without evaluation; beside it the same of the FedALA paper's Table 3
--compare tells a difference from the noise between rounds by a 95 % bootstrap of the ratio of medians.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal, cast

import floor
import numpy as np
import torch
from counting import STEADY, Work, work

from pflbench import environment
from pflbench.engine import devices
from pflbench.engine.batched import convolutions
from pflbench.engine.packed.packed_executor import Pack
from pflbench.errors import UserError, unknown
from pflbench.report.paper import seconds_per_iteration
from pflbench.run.arithmetic import exact_arithmetic
from pflbench.run.device import checked, find_device
from pflbench.run.execution import Execution
from pflbench.run.federation_data import FederationData, load_federation_data
from pflbench.run.options import RunOptions
from pflbench.run.plan import plan
from pflbench.run.prepared import prepare
from pflbench.run.round import PHASES, RECEPTION, UPDATE, rounds
from pflbench.spec import RunSpec

BASE = "fedavg"  # the method that others are held against
SEEDS = 5  # of a pack: the paper's runs of a method
UNTIMED = STEADY - 1
ENGINES = ("loop", "batched", "packed")
WAYS = {"capture": ("none", "graph"), "convolution": convolutions.CONVOLUTIONS}
# With fewer, an interval from resampling them is too narrow: of two samples of one distribution, more than 5 % would differ.
FEWEST = 5
DRIFT = 0.1  # by more than that share the ceilings differ only if the machine itself was not equally fast

Plain = dict[str, Any]


class Arm:
    """A method on an executor, made one way or another, on its way through the rounds."""

    def __init__(self, spec: RunSpec, setting: FederationData, device: torch.device, name: str) -> None:
        self.method, self.name, self.device, self.runs = spec.method.name, name, device, 1
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.peak = 0
        run = prepare(spec, setting, device, execution(name, device))
        if name.startswith("packed"):
            self.runs = SEEDS
            seeds = [replace(run, spec=spec.model_copy(update={"seed": seed})) for seed in range(SEEDS)]
            self.executor = run.executor(run.initial_model(), SEEDS)
            pack = Pack(self.executor, SEEDS)
            feds = [one.federation(own) for one, own in zip(seeds, pack.executors, strict=True)]
            made = pack.together([(this.seconds for this, *_ in rounds(run.method, fed)) for fed in feds])
            self._rounds: Generator[dict[str, float]] = (found for _, found in made)
        else:
            fed = run.federation()
            self.executor = fed.executor
            self._rounds = (this.seconds for this, *_ in rounds(run.method, fed))

    def round(self, timed: bool) -> None:
        """The next round, of a pack that of every run."""
        devices.reset_peak(self.device)
        each = [next(self._rounds) for _ in range(self.runs)]
        if timed:
            self.peak = max(self.peak, devices.peak(self.device))
            for phase in PHASES:
                self.seconds[phase].append(sum(seconds[phase] for seconds in each))

    def close(self) -> None:
        self._rounds.close()
        self.executor.close()

    def record(self, of: dict[str, Work], limits: floor.Ceilings) -> Plain:
        found = {phase: asdict(one) for phase, one in floor.floors(of, limits).items()}
        for phase, one in found.items():
            one |= {name: self.runs * one[name] for name in ("flops", "bytes", "seconds")} | {"steps": of[phase].steps}
        steps = self.executor.record().get("steps")
        return {
            "method": self.method, "engine": self.name, "seconds": dict(self.seconds), "floor": found, "runs": self.runs,
            "steps": steps, "peak_memory": self.peak,
        }  # fmt: skip


def execution(name: str, device: torch.device) -> Execution:
    """Raises UserError for an unknown executor or way, and for one that the device does not have."""
    engine, *choices = name.split(":")
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    found: Plain = {}
    for choice in choices:
        kind = next((kind for kind, valid in WAYS.items() if choice in valid), None)
        if kind is None:
            raise unknown("way of computing", choice, [value for valid in WAYS.values() for value in valid])
        found[kind] = choice
    return checked(Execution(str(device), cast(Literal["loop", "batched"], "loop" if engine == "loop" else "batched"), **found))


def measure(options: argparse.Namespace) -> Plain:
    names = list(dict.fromkeys([BASE, *(options.method or ["fedala"])]))
    typed = {name: getattr(options, name) for name in ("model", "partition", "clients", "beta", "lr", "dtype")}
    asked = {name: value for name, value in typed.items() if value is not None}
    specs = plan(
        RunOptions(tuple(names), (options.dataset,), options.data_dir, settings=tuple(options.set),
             rounds=UNTIMED + options.rounds, **asked)
    )  # fmt: skip
    device, first = find_device(options.device), specs[0]
    ways = list(dict.fromkeys(options.engine or ("loop", "batched")))
    for name in ways:
        execution(name, device)
    setting = load_federation_data(first, options.data_dir).cut(options.share, first.train.batch_size)
    limits = floor.measure(device)
    works = {spec.method.name: work(spec, setting) for spec in specs}
    with exact_arithmetic(device, first.train.dtype), ExitStack() as held:
        arms = [Arm(spec, setting, device, name) for spec in specs for name in ways]
        for arm in arms:
            held.callback(arm.close)
        for t in range(UNTIMED + options.rounds):
            for arm in arms:
                arm.round(timed=t >= UNTIMED)
        records = [arm.record(works[arm.method], limits) for arm in arms]
    described = environment.describe()
    return {
        "device": devices.name(device),
        "work": {
            "dataset": f"{first.data.label} {first.data.content or ''}".strip(), "partition": first.partition.label,
            "clients": first.partition.clients, "model": first.model, "share": options.share, "dtype": first.train.dtype,
            "train_samples": sum(map(len, setting.partition.train)), "test_samples": sum(map(len, setting.partition.test)),
        },
        "ceilings": asdict(limits),
        "arms": records,
        "machine": {name: described.get(name) for name in ("processor", "cores", "packages", "commit")}
        | {"torch_threads": torch.get_num_threads()},
    }  # fmt: skip


def whole(arm: Plain, phases: Sequence[str] = PHASES) -> list[float]:
    """Seconds of each round, these phases together."""
    return [sum(of) for of in zip(*(arm["seconds"][phase] for phase in phases), strict=True)]


def summary(found: Plain, arm: Plain) -> Plain:
    """An arm's rounds in a few numbers: medians over the rounds, and multiples of FedAvg's in turn, on the same executor."""
    base = next(one for one in found["arms"] if one["method"] == BASE and one["engine"] == arm["engine"])

    def multiple(phases: Sequence[str]) -> float:
        return median(own / beside for own, beside in zip(whole(arm, phases), whole(base, phases), strict=True))

    def least(of: Plain, what: str) -> float:
        return float(sum(phase[what] for phase in of["floor"].values()))

    times = multiple(PHASES)
    return {
        "median": median(whole(arm)),
        **{phase: median(arm["seconds"][phase]) for phase in PHASES},
        "times_fedavg": times,
        "times_work": times / max(least(arm, what) / least(base, what) for what in ("seconds", "steps")),
        "times_floor": median(whole(arm)) / least(arm, "seconds"),
        "training": multiple((RECEPTION, UPDATE)),
    }


def show(found: Plain) -> None:
    paper = seconds_per_iteration()
    heads = ("s/round", "fastest", "slowest", *PHASES, "x FedAvg", "x work", "x floor", "training", "paper", "peak MB")
    print(f"{'method':14} {'executor':16} " + " ".join(f"{head:>10}" for head in heads))
    for arm in found["arms"]:
        s, taken, name = summary(found, arm), whole(arm), arm["method"]
        seconds = (s["median"], min(taken), max(taken), *(s[phase] for phase in PHASES))
        times = (s["times_fedavg"], s["times_work"], s["times_floor"], s["training"])
        cells = [*(f"{value:.3g}" for value in seconds), *(f"{value:.2f}" for value in times)]
        cells += [f"{paper[name] / paper[BASE]:.2f}" if name in paper else "-", f"{arm['peak_memory'] / 1e6:.0f}"]
        print(f"{name:14} {arm['engine']:16} " + " ".join(f"{cell:>10}" for cell in cells))
    print(f"\n{found['device']}: {floor.Ceilings(**found['ceilings'])}.")


def compare(before: Plain, after: Plain) -> None:
    """Arm by arm: is the second faster, or is the difference noise? Raises UserError if the two did not measure the same work."""
    differing = [name for name, value in before["work"].items() if after["work"].get(name) != value]
    if differing:
        told = ", ".join(f"{name} {before['work'][name]} and {after['work'].get(name)}" for name in differing)
        raise UserError(f"They did not measure the same work: {told}.")
    for name in ("device", "machine"):
        if before[name] != after[name]:
            print(f"Note: {name} {before[name]} and {after[name]}.")
    for name in ("flops", "bandwidth"):
        low, high = sorted(one["ceilings"][name] for one in (before, after))
        if high > (1 + DRIFT) * low:
            print(f"Note: the machine itself was not equally fast ({name} {low:.3g} and {high:.3g}): that is in the differences.")
    later = {(arm["method"], arm["engine"]): arm for arm in after["arms"]}
    for arm in before["arms"]:
        if other := later.get((arm["method"], arm["engine"])):
            a, b = whole(arm), whole(other)
            print(f"{arm['method']:14} {arm['engine']:16} {median(a):10.3g} {median(b):10.3g}  {verdict(a, b)}")


def verdict(a: Sequence[float], b: Sequence[float]) -> str:
    if min(len(a), len(b)) < FEWEST:
        return "too few rounds to tell"
    speedup, (low, high) = median(a) / median(b), interval(a, b)
    if low > 1:
        return f"faster {speedup:.2f}x ({low:.2f}-{high:.2f})"
    if high < 1:
        return f"slower {1 / speedup:.2f}x ({1 / high:.2f}-{1 / low:.2f})"
    return f"no difference within noise ({low:.2f}-{high:.2f})"


def interval(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """Percentile bootstrap of median(a) / median(b), 95 %. The resamples are the same in every call."""
    from scipy.stats import bootstrap

    def ratio(a: Any, b: Any, axis: int) -> Any:
        return np.median(a, axis=axis) / np.median(b, axis=axis)

    draw = np.random.default_rng(0)
    found = bootstrap((np.asarray(a), np.asarray(b)), ratio, method="percentile", vectorized=True, rng=draw).confidence_interval
    return float(found.low), float(found.high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path(os.environ.get("PFLBENCH_DATA", "data")))
    parser.add_argument("-d", "--dataset", default="digits")
    parser.add_argument("-m", "--method", action="append", help="repeatable (default: fedala)")
    parser.add_argument("--engine", action="append", metavar="ENGINE[:WAY]", help="repeatable (default: loop and batched)")
    parser.add_argument("--model", help="default: the paper's for the dataset")
    parser.add_argument("--set", action="append", default=[], metavar="METHOD.NAME=VALUE")
    parser.add_argument("--partition")
    parser.add_argument("--clients", type=int)
    parser.add_argument("--beta", type=float)
    # APPLE trains its core models at N times the rate, and diverges at the paper's rate for MNIST.
    parser.add_argument("--lr", type=float, help="no round takes longer for it")
    parser.add_argument("--dtype", choices=("float32", "tf32", "float64"))
    parser.add_argument("--share", type=float, default=1.0, help="of every client's samples")
    parser.add_argument("--rounds", type=int, default=5, help="timed ones (default: 5)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write down the seconds of every round")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("BEFORE", "AFTER"))
    options = parser.parse_args()
    try:
        if options.compare:
            return compare(*(json.loads(path.read_text(encoding="utf-8")) for path in options.compare))
        found = measure(options)
        if options.json:
            options.json.write_text(json.dumps(found), encoding="utf-8")
        show(found)
    except UserError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
