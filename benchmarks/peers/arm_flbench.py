"""FL-bench (https://github.com/KarhouTam/FL-bench) on a task: its server classes in serial mode, as its main.py makes them.

The loaders of training samples leave out the last, partial batch, as pflbench does; FL-bench's own keep it. After every round all
clients are tested with the models that the next round would give them (`test_client_models`), ten samples at a time, which is its
batch size in training, too. Its test of clients within a round is switched off. Hyperparameters are pflbench's.
"""

from __future__ import annotations

import json
import pickle
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import common
import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler


@dataclass(frozen=True)
class Method:
    """server: FL-bench's class in src/server/MODULE.py. arguments: its hyperparameters, pflbench's values."""

    module: str
    server: str
    arguments: dict[str, Any] = field(default_factory=dict)


METHODS = {
    "fedavg": Method("fedavg", "FedAvgServer"),
    "local": Method("local", "LocalServer"),
    "fedprox": Method("fedprox", "FedProxServer", {"mu": 0.001}),
    "ditto": Method("ditto", "DittoServer", {"pers_epoch": 2, "lamda": 0.1}),
    "fedper": Method("fedper", "FedPerServer"),
}
NAME = "task"  # of the dataset, in the folder `data` of the checkout


class Batches(Sampler[list[int]]):
    """Shuffled batches without the last, partial one, unless it is the only one."""

    def __init__(self, samples: Any, task: common.Task) -> None:
        self.samples, self.task = samples, task

    def __iter__(self) -> Iterator[list[int]]:
        size, order = self.task.facts["batch_size"], torch.randperm(len(self.samples)).tolist()
        used = len(order) // size * size if self.task.drops_last(len(order)) else len(order)
        for at in range(0, used, size):
            yield order[at : at + size]


def loader(task: common.Task) -> Any:
    """In place of DataLoader in FL-bench's client."""

    def made(samples: Any, batch_size: int, shuffle: bool = False) -> DataLoader[Any]:
        if shuffle:
            return DataLoader(samples, batch_sampler=Batches(samples, task))
        return DataLoader(samples, batch_size=batch_size)

    return made


def write_partition(task: common.Task, folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """What FL-bench reads of a partition; returns all samples and labels."""
    indices, at = [], 0
    for client in task.clients:
        train, test = len(client.train_y), len(client.test_y)
        indices.append({"train": list(range(at, at + train)), "val": [], "test": list(range(at + train, at + train + test))})
        at += train + test
    clients = list(range(len(indices)))
    separation = {"train": clients, "val": clients, "test": clients, "total": len(clients)}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "partition.pkl").write_bytes(pickle.dumps({"separation": separation, "data_indices": indices}))
    (folder / "args.json").write_text(json.dumps({"split": "sample"}))
    x, y = ([part for c in task.clients for part in (getattr(c, f"train_{s}"), getattr(c, f"test_{s}"))] for s in "xy")
    return torch.cat(x), torch.cat(y)


def configuration(task: common.Task, method: Method, rounds: int, seed: int) -> Any:
    """Its default configuration with the task's protocol."""
    from omegaconf import OmegaConf

    facts, root = task.facts, Path(common.made()["source"])
    config = OmegaConf.load(root / "config" / "defaults.yaml")
    config.method, config.dataset.name, config.model.name, config.mode = method.module, NAME, NAME, "serial"
    config.optimizer.lr = facts["lr"]
    common_part = {
        "seed": seed, "join_ratio": 1.0, "global_epoch": rounds, "local_epoch": facts["local_epochs"], "use_cuda": False,
        "batch_size": facts["batch_size"], "client_side_evaluation": False, "verbose_gap": rounds + 1, "save_log": False,
        "save_learning_curve_plot": False, "save_metrics": False,
    }  # fmt: skip
    config.common.update(common_part)
    config.common.test.client.interval = 1
    if method.arguments:
        config[method.module] = method.arguments
    return config


def arm(task: common.Task, name: str, rounds: int, seed: int, recorder: common.Recorder) -> None:
    if name not in METHODS:
        raise common.NotPossible("FL-bench, or this adapter, does not have the method")
    root = Path(common.made()["source"])
    sys.path.insert(0, str(root))
    common.allow_torchvision()
    method = METHODS[name]
    module = import_module(f"src.server.{method.module}")
    server_class = getattr(module, method.server)
    fedavg, client, models, functional = (
        import_module(f"src.{part}") for part in ("server.fedavg", "client.fedavg", "utils.models", "utils.functional")
    )
    datasets = import_module("data.utils.datasets")
    x, y = write_partition(task, root / "data" / NAME)

    class Samples(datasets.BaseDataset):  # type: ignore[misc, name-defined]
        def _rescale_data(self) -> None:
            """They are as pflbench feeds them."""

    class Model(models.DecoupledModel):  # type: ignore[misc, name-defined]
        def __init__(self, dataset: str, pretrained: bool) -> None:
            super().__init__()
            self.base = task.model()
            self.classifier, self.base.output = self.base.output, nn.Identity()

    fedavg.DATASETS[NAME] = lambda root, args, **transforms: Samples(x, y, list(range(task.facts["classes"])))
    fedavg.MODELS[NAME] = Model
    client.DataLoader = loader(task)
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(fedavg, "HydraConfig") as hydra:
        hydra.get.return_value.runtime.output_dir = folder
        config = configuration(task, method, rounds, seed)
        get = getattr(server_class, "get_hyperparams", None)
        server = server_class(args=functional.parse_args(config, method.module, get))
        follow(server, recorder)
        recorder.begin()
        server.train()


def follow(server: Any, recorder: common.Recorder) -> None:
    """Times the tests of the clients, and ends a round after each."""
    test, show = server.test_client_models, server.display_metrics

    def tested() -> None:
        with recorder.evaluating():
            test()

    def shown() -> None:
        show()
        found = server.test_results[server.current_epoch + 1]["all_clients"]["before"]["test"]
        recorder.end_round(float(found.accuracy))

    server.test_client_models, server.display_metrics = tested, shown


if __name__ == "__main__":
    common.main("fl-bench", lambda: common.made()["version"], arm)
