"""A round of each method beside a round of FedAvg: how many times as long it takes, and how many times as much work it is.

    python benchmarks/method_work.py --data-dir DATA [-d mnist] [--share 0.05] [--engine batched] [--device cuda] [-m METHOD ...]

With --share 0.05 all methods take about five minutes on two cores; --ala adds those that ALA is plugged into. A round is
reception, evaluation and update. One of FedAvg goes before each of the method's in the same process; "measured" is the median
over these pairs. The first two rounds, with ALA's initial stage, are not timed.

The work is what pflbench/bench counts in a round, over FedAvg's, in two measures. "passes": FLOPs and bytes of all passes through
models, in seconds at this machine's ceilings; that binds a CPU, and a GPU with large batches. "steps": gradients that have to
wait for one another, each by the layers it goes through; that binds a GPU at a batch of 10, where a step takes the same time
however little it computes. The larger of the two is what the method's work implies. "quotient" is measured over implied; it is
marked above 1.3, where a method wastes time. What a method does once a round besides (distances of models, mixing them) is no
pass: it counts in the measured time alone, and the more, the smaller --share is.
"""

from __future__ import annotations

import argparse
import os
import statistics
from dataclasses import dataclass
from pathlib import Path

from pflbench import methods
from pflbench.bench import ceilings, floor
from pflbench.bench.ceilings import Ceilings
from pflbench.bench.counting import Work
from pflbench.bench.floor import UNTIMED
from pflbench.run.arithmetic import exact_arithmetic
from pflbench.run.execution import Execution, find_device
from pflbench.run.plan import Wish, plan
from pflbench.run.prepared import prepare
from pflbench.run.round import rounds
from pflbench.run.setting import Setting, load_setting
from pflbench.spec import RunSpec

BASE = "fedavg"
LIMIT = 1.3


@dataclass(frozen=True)
class Multiples:
    """Of FedAvg's round. passes, steps: by its work."""

    measured: float
    passes: float
    steps: float

    @property
    def quotient(self) -> float:
        return self.measured / max(self.passes, self.steps)


def multiples(found: dict[str, Work], base: dict[str, Work], measured: float, limits: Ceilings) -> Multiples:
    """Of the work of a method's phases and of FedAvg's."""
    own_seconds, base_seconds = (sum(f.seconds for f in floor.floors(of, limits).values()) for of in (found, base))
    own_steps, base_steps = (sum(work.steps for work in of.values()) for of in (found, base))
    return Multiples(measured, own_seconds / base_seconds, own_steps / base_steps)


def seconds(name: str, options: argparse.Namespace, setting: Setting) -> list[tuple[float, float]]:
    """Of the timed rounds: FedAvg's and, just after it, that of `name`."""
    how = Execution(engine=options.engine)
    device = find_device(options.device)
    specs = [specification(method, options) for method in (BASE, name)]
    feds = [prepare(spec, setting, device, how).federation() for spec in specs]
    made = [rounds(methods.make(spec.method), fed) for spec, fed in zip(specs, feds, strict=True)]
    try:
        with exact_arithmetic(device):
            found = [tuple(sum(next(one)[0].values()) for one in made) for _ in range(UNTIMED + options.rounds)]
    finally:
        for fed in feds:
            fed.executor.close()
    return [(base, own) for base, own in found[UNTIMED:]]


def specification(name: str, options: argparse.Namespace) -> RunSpec:
    asked = Wish((name,), (options.dataset,), options.data_dir, options.model, lr=options.lr, rounds=UNTIMED + options.rounds)
    (spec,) = plan(asked)
    return spec


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path(os.environ.get("PFLBENCH_DATA", "data")))
    parser.add_argument("-d", "--dataset", default="mnist")
    parser.add_argument("-m", "--method", action="append", default=[])
    parser.add_argument("--ala", action="store_true", help="also the methods with ALA plugged in")
    parser.add_argument("--model", help="default: the paper's for the dataset")
    # APPLE trains its core models at N times the rate, and diverges at the paper's rate for MNIST.
    parser.add_argument("--lr", type=float, default=0.005, help="no round takes longer for it (default: 0.005)")
    parser.add_argument("--share", type=float, default=1.0, help="of every client's samples")
    parser.add_argument("--rounds", type=int, default=3, help="timed ones (default: 3)")
    parser.add_argument("--engine", choices=("auto", "loop", "batched"), default="auto")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    base = specification(BASE, options)
    setting = load_setting(base, options.data_dir).cut(options.share, base.train.batch_size)
    limits, base_work = ceilings.measure(find_device(options.device)), floor.work(base, setting)
    print(f"{'method':16} {'s/round':>8} {'FedAvg':>8} {'measured':>9} {'passes':>7} {'steps':>7} {'quotient':>9}")
    for name in options.method or methods.names(with_ala=options.ala):
        timed = seconds(name, options, setting)
        measured = statistics.median(own / beside for beside, own in timed)
        found = multiples(floor.work(specification(name, options), setting), base_work, measured, limits)
        beside, own = (statistics.median(of) for of in zip(*timed, strict=True))
        mark = f"  above {LIMIT}" if found.quotient > LIMIT else ""
        times = f"{own:8.2f} {beside:8.2f} {found.measured:9.2f} {found.passes:7.2f} {found.steps:7.2f}"
        print(f"{name:16} {times} {found.quotient:9.2f}{mark}", flush=True)


if __name__ == "__main__":
    main()
