"""Writes a task: a federation's arrays and initial weights as pflbench has them, for tools that do not know pflbench.

    python task.py OUT --dataset mnist --model mlp --clients 20 --partition dir --alpha 0.1 --rounds 10 --data-dir DATA

OUT gets task.json, weights.pt (a state dict of the model in nets.py) and client_000.npz, ... with train_x, train_y, test_x and
test_y: float32 images [n, c, h, w] in [-1, 1], as pflbench feeds them, or int64 token ids [n, positions]. --share takes that part
of every client's samples. steps_per_round in task.json is the number of local steps of FedAvg in a round, of all clients.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import nets
import numpy as np
import torch

from pflbench.engine.batches import batch_sizes
from pflbench.engine.samples import Samples
from pflbench.errors import UserError
from pflbench.run.device import find_device
from pflbench.run.execution import Execution
from pflbench.run.federation_data import FederationData, load_federation_data
from pflbench.run.options import RunOptions
from pflbench.run.plan import plan
from pflbench.run.prepared import prepare
from pflbench.spec import RunSpec

SCHEMES = {"dir": "dirichlet", "iid": "iid", "pat": "pathological"}


def specification(options: argparse.Namespace) -> RunSpec:
    """FedAvg's; adapters take its protocol for all methods."""
    (spec,) = plan(
        RunOptions(
            ("fedavg",),
            (options.dataset,),
            options.data_dir,
            model=options.model,
            seed=options.seed,
            partition=SCHEMES[options.partition],
            clients=options.clients,
            beta=options.alpha if options.partition == "dir" else None,
            lr=options.lr,
            rounds=options.rounds,
            local_epochs=1,
            batch_size=10,
        )
    )
    return spec


def write(folder: Path, spec: RunSpec, data: FederationData) -> dict[str, Any]:
    """Writes the task's files; returns what task.json holds."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays, partition = data.arrays, data.partition
    samples = Samples(arrays.x, arrays.y, torch.float32, torch.device("cpu"))
    for i, (train, test) in enumerate(zip(partition.train, partition.test, strict=True)):
        parts = {}
        for name, indices in (("train", train), ("test", test)):
            x, y = samples.batch(torch.from_numpy(np.asarray(indices)))
            parts |= {f"{name}_x": x.numpy(), f"{name}_y": y.numpy()}
        np.savez(folder / f"client_{i:03d}.npz", **parts)
    weights = prepare(spec, data, find_device("cpu"), Execution("cpu", "loop")).initial_model().module.state_dict()
    torch.save(weights, folder / "weights.pt")
    facts = {
        "dataset": spec.data.label,
        "model": spec.model,
        "partition": spec.partition.label,
        "clients": len(partition.train),
        "classes": len(arrays.classes),
        "lr": spec.train.lr,
        "batch_size": spec.train.batch_size,
        "local_epochs": spec.train.local_epochs,
        "rounds": spec.train.rounds,
        "seed": spec.seed,
        "input_shape": list(arrays.x.shape[1:]),
        "vocabulary": arrays.vocabulary,
        "bytes": arrays.x.dtype == np.uint8,
        "train_samples": sum(map(len, partition.train)),
        "test_samples": sum(map(len, partition.test)),
        "smallest_client": min(map(len, partition.train)),
        "steps_per_round": sum(len(batch_sizes(len(mine), 10, "auto", 1)) for mine in partition.train),
        "spec": spec.model_dump(mode="json"),
    }
    (folder / "task.json").write_text(json.dumps(facts, indent=1))
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dataset", required=True, help="as `pflbench run -d` takes it")
    parser.add_argument("--data-dir", type=Path, default=Path(os.environ.get("PFLBENCH_DATA", "data")))
    parser.add_argument("--model", required=True, choices=nets.NAMES)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--partition", choices=SCHEMES, default="dir")
    parser.add_argument("--alpha", type=float, default=0.1, help="of Dir(alpha)")
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights")
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--lr", type=float, help="default: pflbench's for the dataset and model")
    options = parser.parse_args()
    try:
        spec = specification(options)
        data = load_federation_data(spec, options.data_dir)
    except UserError as error:
        raise SystemExit(f"Error: {error}") from None
    if options.share < 1:
        data = data.cut(options.share, least=spec.train.batch_size)
    facts = write(options.out, spec, data)
    shown = ("dataset", "model", "partition", "clients", "train_samples", "test_samples", "smallest_client", "steps_per_round")
    print(f"{options.out}: " + ", ".join(f"{name} {facts[name]}" for name in shown))


if __name__ == "__main__":
    main()
