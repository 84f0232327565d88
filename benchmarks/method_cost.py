"""What a round of each method costs beside a round of FedAvg, and what the FedALA paper's Table 3 has.

    python benchmarks/method_cost.py -d folder:PATH --lr 0.005 [--model cnn] [--share 0.2] [--rounds 3] [-m METHOD ...]

A round is reception and update of all clients, without evaluation, as in `pflbench table overhead`. A round of FedAvg goes before
each of the method's in the same process, and the ratio is the median over these pairs: a busy machine slows both. The first two
rounds, with ALA's initial stage, are not timed. --share takes that part of every client's samples, at least a batch for training.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pflbench import methods
from pflbench.bench.floor import UNTIMED
from pflbench.report.paper import seconds_per_iteration
from pflbench.run.execution import Execution, find_device
from pflbench.run.plan import Wish, plan
from pflbench.run.prepared import prepare
from pflbench.run.round import RECEPTION, UPDATE, rounds
from pflbench.run.setting import load_setting


def ratios(name: str, options: argparse.Namespace, how: Execution) -> tuple[list[float], list[float]]:
    """Seconds of the timed rounds of `name`, and of the FedAvg rounds just before them."""
    feds, made = [], []
    for method in ("fedavg", name):
        request = Wish(
            (method,), (options.dataset,), options.data_dir, options.model, lr=options.lr, rounds=UNTIMED + options.rounds
        )
        (spec,) = plan(request)
        setting = load_setting(spec, options.data_dir).cut(options.share, spec.train.batch_size)
        feds.append(prepare(spec, setting, find_device(options.device), how).federation())
        made.append(rounds(methods.make(spec.method), feds[-1]))
    base, own = made
    seconds = [(seconds_of(base), seconds_of(own)) for _ in range(UNTIMED + options.rounds)][UNTIMED:]
    for fed in feds:
        fed.executor.close()
    return [pair[1] for pair in seconds], [pair[0] for pair in seconds]


def seconds_of(made: Iterator[tuple[dict[str, float], Any]]) -> float:
    """Of the next round, without its evaluation."""
    seconds, _ = next(made)
    return seconds[RECEPTION] + seconds[UPDATE]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path(os.environ.get("PFLBENCH_DATA", "data")))
    parser.add_argument("-d", "--dataset", default="cifar10")
    parser.add_argument("-m", "--method", action="append", default=[])
    parser.add_argument("--model", help="default: the paper's for the dataset")
    parser.add_argument("--lr", type=float)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    paper = seconds_per_iteration()
    print(f"{'method':18} {'s/round':>8} {'FedAvg':>8} {'ratio':>6} {'paper':>6}  ratios")
    for name in options.method or methods.names():
        own, base = ratios(name, options, Execution())
        found = [a / b for a, b in zip(own, base, strict=True)]
        printed = f"{paper[name] / paper['fedavg']:6.2f}" if name in paper else "     -"
        medians = f"{statistics.median(own):8.2f} {statistics.median(base):8.2f} {statistics.median(found):6.2f}"
        print(f"{name:18} {medians} {printed}  {', '.join(f'{r:.2f}' for r in found)}", flush=True)


if __name__ == "__main__":
    main()
