"""What a round must cost, phase by phase, and the seconds that takes at this machine's ceilings (matrix product, copy).

    python benchmarks/floor.py -d cifar10 [--model cnn] [-m fedala] [--data-dir DATA] [--device cpu] [--round 3] [--share 0.2]

What counts is said in pflbench/bench/floor.py and pflbench/bench/counting.py. Round 2 has ALA's initial stage, at its shortest.
`pflbench bench` measures rounds beside their floor.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pflbench.bench.ceilings import measure
from pflbench.bench.floor import STEADY, floors, work
from pflbench.run.execution import find_device
from pflbench.run.plan import Wish, plan
from pflbench.run.setting import load_setting


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path(os.environ.get("PFLBENCH_DATA", "data")))
    parser.add_argument("-d", "--dataset", default="cifar10")
    parser.add_argument("-m", "--method", default="fedala")
    parser.add_argument("--model", help="default: the paper's for the dataset")
    parser.add_argument("--set", action="append", default=[], metavar="METHOD.NAME=VALUE")
    parser.add_argument("--round", type=int, default=STEADY)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    (spec,) = plan(
        Wish((options.method,), (options.dataset,), options.data_dir, options.model, tuple(options.set), rounds=options.round)
    )
    setting = load_setting(spec, options.data_dir).cut(options.share, spec.train.batch_size)
    ceilings = measure(find_device(options.device))
    tf32 = f" ({ceilings.tf32 / 1e9:,.0f} with TF32)" if ceilings.tf32 else ""
    print(f"{spec.method.name}, {spec.data.label}, {spec.model}, {spec.partition.clients} clients, round {options.round}")
    print(f"matrix product {ceilings.flops / 1e9:,.0f} GFLOP/s{tf32}, copy {ceilings.bandwidth / 1e9:,.1f} GB/s\n")
    print(f"{'phase':12} {'GFLOP':>10} {'MB':>10} {'floor s':>10}  bound by")
    found = floors(work(spec, setting, options.round), ceilings)
    for phase, floor in found.items():
        print(f"{phase:12} {floor.flops / 1e9:10.3f} {floor.bytes / 1e6:10.1f} {floor.seconds:10.4f}  {floor.bound}")
    print(f"{'round':12} {'':10} {'':10} {sum(floor.seconds for floor in found.values()):10.4f}")


if __name__ == "__main__":
    main()
