"""pflbench on a task: whole runs as `pflbench run` makes them, with database, checkpoints and counted FLOPs.

The samples come from the task's files, images as bytes again, which is how pflbench holds them. METHOD:PRESET takes that preset's
hyperparameters; else they are the papers'.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import common
import numpy as np
import torch
from torch import nn

import pflbench
from pflbench import methods
from pflbench.data import Arrays
from pflbench.engine.loop_executor import LoopExecutor
from pflbench.engine.requests import Scan, Sgd
from pflbench.partition import Partition
from pflbench.run import training
from pflbench.run.execution import Execution
from pflbench.run.federation_data import FederationData
from pflbench.run.round import CommunicationRound
from pflbench.spec import RunSpec
from pflbench.store.database import connect
from pflbench.store.partitions import PartitionRecord


@dataclass(frozen=True)
class TaskData(FederationData):
    """The task's federation, whose models begin with the task's weights."""

    weights: dict[str, torch.Tensor] = field(default_factory=dict)

    def model(self, spec: RunSpec) -> nn.Module:
        made = super().model(spec)
        inner = getattr(made, "user_model", None)
        (made if inner is None else made.get_submodule(inner)).load_state_dict(self.weights)
        return made


def specification(task: common.Task, method: str, rounds: int, seed: int) -> RunSpec:
    """The task's, for this method."""
    spec = RunSpec.model_validate(task.facts["spec"])
    chosen = methods.spec(method, {}, task.preset or None)
    return spec.model_copy(update={"method": chosen, "seed": seed, "train": spec.train.model_copy(update={"rounds": rounds})})


def federation(task: common.Task, spec: RunSpec) -> TaskData:
    xs, ys, sides, at = [], [], ([], []), 0
    for client in task.clients:
        for side, x, y in ((0, client.train_x, client.train_y), (1, client.test_x, client.test_y)):
            xs.append(x.numpy())
            ys.append(y.numpy())
            sides[side].append(np.arange(at, at + len(y)))
            at += len(y)
    x, y = np.concatenate(xs), np.concatenate(ys)
    if task.facts["bytes"]:
        x = np.rint((x + 1) * 127.5).astype(np.uint8)
    classes = tuple(map(str, range(task.facts["classes"])))
    partition = Partition(*map(tuple, sides))
    counts = partition.counts(y, len(classes))
    indices = {f"{name}_{i}": part for name, side in zip(("train", "test"), sides, strict=True) for i, part in enumerate(side)}
    hashed = partition.hash(y)
    record = PartitionRecord(
        hashed, spec.partition.scheme, spec.partition.label, spec.data.label, {}, classes, *counts, 0, indices
    )
    arrays = Arrays(x, y, classes, task.facts["vocabulary"])
    return TaskData(arrays, partition, record, {"hash": hashed, "state": "task"}, weights=task.weights())


def arm(task: common.Task, method: str, rounds: int, seed: int, recorder: common.Recorder) -> None:
    spec = specification(task, method, rounds, seed)
    data = federation(task, spec)
    evaluate, do = CommunicationRound.evaluate, LoopExecutor.do

    def timed(self: CommunicationRound, *arguments: Any) -> Any:
        with recorder.evaluating():
            return evaluate(self, *arguments)

    def counted(self: LoopExecutor, request: Any) -> Any:
        if isinstance(request, (Sgd, Scan)):
            recorder.count(int(request.plan.steps().sum()))
        return do(self, request)

    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(mock.patch.object(training, "load_federation_data", return_value=data))
        stack.enter_context(mock.patch.object(CommunicationRound, "evaluate", timed))
        stack.enter_context(mock.patch.object(LoopExecutor, "do", counted))
        store = connect(f"sqlite:///{Path(folder) / 'results.db'}")
        for step in training.execute(spec, store, Path(folder), Execution("cpu", "loop", workers=1)):
            if step.kind == "round" and step.round == 0:
                recorder.begin()
            elif step.kind == "round":
                recorder.end_round(100 * (step.accuracy or 0.0))
        store.dispose()


if __name__ == "__main__":
    common.main("pflbench", lambda: pflbench.__version__, arm)
