"""FLGo (https://github.com/WwZzz/easyFL) on a task: a benchmark that it makes from a file, its FedAvg, its simple logger.

Clients make as many local steps as pflbench: the last, partial batch is left out. The server tests the clients' test samples,
pooled, 512 at a time, which is FLGo's default; no data are held out for validation.
"""

from __future__ import annotations

import copy
import os
import sys
import tempfile
from dataclasses import replace
from importlib import import_module, metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import common
import torch
from torch.utils.data import TensorDataset

METHODS = ("fedavg", "fedprox")
MU = 0.001  # of FedProx, pflbench's
CONFIGURATION = """
import arm_flgo
train_data, test_data, val_data, get_model = arm_flgo.held.train, arm_flgo.held.test, None, arm_flgo.held.model
"""
held = SimpleNamespace()  # what FLGo's benchmark imports of the task


def hold(task: common.Task) -> list[list[int]]:
    """Keeps the task for the benchmark; returns the numbers of each client's training samples."""

    def pooled(side: str) -> TensorDataset:
        return TensorDataset(*(torch.cat([getattr(c, f"{side}_{part}") for c in task.clients]) for part in "xy"))

    model = task.model()
    held.train, held.test, held.model = pooled("train"), pooled("test"), lambda *_, **__: copy.deepcopy(model)
    sys.modules["arm_flgo"] = sys.modules[__name__]
    numbers, at = [], 0
    for client in task.clients:
        numbers.append(list(range(at, at + len(client.train_y))))
        at += len(client.train_y)
    return numbers


def runner(task: common.Task, name: str, rounds: int, seed: int) -> Any:
    import flgo
    from flgo.benchmark.partition import BasicPartitioner

    facts, numbers = task.facts, hold(task)

    class Given(BasicPartitioner):  # type: ignore[misc]
        def __call__(self, data: Any) -> list[list[int]]:
            self.num_parties = len(numbers)
            return numbers

    Path("configuration.py").write_text(CONFIGURATION)
    sys.path.insert(0, os.getcwd())
    benchmark = import_module(flgo.gen_benchmark_from_file("its_benchmark", "configuration.py"))
    benchmark.visualize = lambda *_: None  # a figure of the partition
    # Recent PyTorch refuses FLGo's samples without it; this is what its message asks for.
    samples = import_module(f"{benchmark.__name__}.core").TaskPipe.TaskDataset
    samples.__getitems__ = lambda self, numbers: [self[number] for number in numbers]
    flgo.gen_task_by_(benchmark, Given(), "its_task")
    option = {
        "num_rounds": rounds, "num_epochs": facts["local_epochs"], "batch_size": facts["batch_size"],
        "learning_rate": facts["lr"], "proportion": 1.0, "sample": "full", "train_holdout": 0.0, "test_holdout": 0.0,
        "learning_rate_decay": 1.0, "seed": seed,
        "no_log_console": True,
    }  # fmt: skip
    if name == "fedprox":
        option["algo_para"] = MU
    with mock.patch.object(sys, "argv", sys.argv[:1]):  # it reads options from the command line, too
        made = flgo.init("its_task", import_module(f"flgo.algorithm.{name}"), option)
    for client in made.clients:
        if task.drops_last(client.datavol):
            client.num_steps = client._working_amount = client.datavol // facts["batch_size"] * facts["local_epochs"]
    return made


def arm(task: common.Task, name: str, rounds: int, seed: int, recorder: common.Recorder) -> None:
    if name not in METHODS:
        raise common.NotPossible("of FLGo this adapter has FedAvg and FedProx, which have one global model")
    here, task = Path.cwd(), replace(task, folder=task.folder.resolve())
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            made = runner(task, name, rounds, seed)
            logger = made.gv.logger
            log = logger.log_once

            def logged(*given: Any, **named: Any) -> None:
                before = recorder.cpu()
                with recorder.evaluating():
                    log(*given, **named)
                if len(logger.output["test_accuracy"]) == 1:  # of the initial model
                    recorder.begin(before)
                else:
                    recorder.end_round(100 * logger.output["test_accuracy"][-1])

            logger.log_once = logged
            made.run()
        finally:
            os.chdir(here)


if __name__ == "__main__":
    common.main("flgo", lambda: metadata.version("flgo"), arm)
