"""The guard's table: rounds of methods on the GPU made of Python, beside the loop executor's on the CPU.

    PYTHONPATH=tests python -m support.gpu [METHODS [MODELS]]

Names with commas between them; "all" methods, "ala" for those with ALA. Kernels, replays and waits are those of the second round,
when all is captured; off: the largest difference from the loop executor in any number, in float64.
"""

from __future__ import annotations

import sys

import torch
from support.gpu import plugged_in
from support.gpu.trial import compare

from pflbench import methods

HEAD = ("method", "model", "kernels", "replays", "kernels in them", "waits", "programs", "apart", "off", "found", "seconds")


def main(names: str = "all", models: str = "mlp") -> int:
    """The number of rows in which something is wrong."""
    torch.set_num_threads(1)
    every = methods.names(with_ala=True)
    sets = {"all": [name for name in every if "+" not in name], "ala": [name for name in every if "+" in name]}
    print("| " + " | ".join(HEAD) + " |\n|" + " --- |" * len(HEAD), flush=True)
    wrong = 0
    for model in models.split(","):
        for name in sets.get(names) or names.split(","):
            with plugged_in() as world:
                row = compare(world, name, model)
                found = [*world.seen.races, *(f"{what}, {where}" for what, where in world.seen.odd)]
            apart = ", ".join(f"{count} ({why})" for why, count in row.apart.items())
            counts = row.kernels, row.replays, row.replayed, row.waited, row.programs
            cells = name, model, *counts, apart, f"{row.off:.0e}", "; ".join(found), f"{row.seconds:.1f}"
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)
            wrong += bool(found) or not row.off <= 1e-9
    return wrong


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
