"""What the adapters share: the task that they read, the clock that splits rounds, the JSON object that they write.

Nothing of pflbench is used: each adapter runs in the environment of its tool, which needs torch and numpy only.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import nets
import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook


@dataclass(frozen=True)
class Client:
    """Its samples: x float32 images [n, c, h, w] or int64 token ids [n, positions], y int64 labels [n]."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


@dataclass(frozen=True)
class Task:
    """A folder that task.py wrote. `facts` is its task.json.

    preset: of pflbench's hyperparameters, such as pfllib2025, which follows PFLlib's code; other tools have theirs.
    """

    folder: Path
    facts: dict[str, Any]
    preset: str = ""

    @classmethod
    def read(cls, folder: Path) -> Task:
        return cls(folder, json.loads((folder / "task.json").read_text()))

    @cached_property
    def clients(self) -> list[Client]:
        return [self._client(i) for i in range(self.facts["clients"])]

    def _client(self, i: int) -> Client:
        with np.load(self.folder / f"client_{i:03d}.npz") as arrays:
            return Client(*(torch.from_numpy(arrays[name]) for name in ("train_x", "train_y", "test_x", "test_y")))

    def model(self) -> nn.Module:
        """A new model with the task's initial weights."""
        facts = self.facts
        model = nets.build(facts["model"], tuple(facts["input_shape"]), facts["classes"], facts["vocabulary"])
        model.load_state_dict(self.weights())
        return model

    def weights(self) -> dict[str, Tensor]:
        """The initial weights, by the names of nets.py."""
        found: dict[str, Tensor] = torch.load(self.folder / "weights.pt", weights_only=True)
        return found

    def drops_last(self, samples: int) -> bool:
        """Whether a client of so many training samples drops its last, partial batch: unless it is the only one."""
        return samples >= int(self.facts["batch_size"])


def _number(counts: list[int]) -> int | list[int]:
    return counts[0] if len(set(counts)) == 1 else counts


def cpu_seconds() -> float:
    """Of this process since it started, and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def peak_rss_mib() -> float:
    """The peak of resident memory of this process."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@dataclass
class Recorder:
    """Splits a tool's rounds into training and evaluation, in CPU and wall seconds, and counts the work of training.

    Counted outside evaluation: the steps of torch's optimizers, or what the adapter of a tool without them counts, and the
    gradients that are computed, which is the same for all tools that compute in this process.

    Call `begin` where the first round begins, `evaluating` around the tool's evaluation, and `end_round` after each round.
    Whatever is not evaluation is training: local training, messages, aggregation.
    """

    cpu: Callable[[], float] = cpu_seconds
    start_cpu_s: float = 0.0
    train_cpu_s: list[float] = field(default_factory=list)
    eval_cpu_s: list[float] = field(default_factory=list)
    train_wall_s: list[float] = field(default_factory=list)
    eval_wall_s: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    steps_per_round: list[int] = field(default_factory=list)
    gradients_per_round: list[int] = field(default_factory=list)
    steps: int = 0
    gradients: int = 0
    _testing: bool = False
    _undo: ExitStack = field(default_factory=ExitStack)
    _round: tuple[float, float] = (0.0, 0.0)
    _evaluated: tuple[float, float] = (0.0, 0.0)

    def __enter__(self) -> Recorder:
        """Begins to count."""
        self._undo.callback(register_optimizer_step_post_hook(lambda *_: self.count(1)).remove)
        for name in ("backward", "grad"):
            self._undo.enter_context(mock.patch.object(torch.autograd, name, self._counted(getattr(torch.autograd, name))))
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _counted(self, differentiate: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **named: Any) -> Any:
            self.gradients += not self._testing
            return differentiate(*given, **named)

        return counted

    def count(self, steps: int) -> None:
        """Further steps of optimization in this round."""
        self.steps += 0 if self._testing else steps

    def begin(self, start_cpu_s: float | None = None) -> None:
        """start_cpu_s: where an evaluation before the first round, which the start does not contain, began."""
        self.start_cpu_s = self.cpu() if start_cpu_s is None else start_cpu_s
        self._next_round()

    def _next_round(self) -> None:
        self.steps, self.gradients, self._evaluated = 0, 0, (0.0, 0.0)
        self._round = self._now()

    def _now(self) -> tuple[float, float]:
        return self.cpu(), time.perf_counter()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        begun, self._testing = self._now(), True
        yield
        ended, self._testing = self._now(), False
        self._evaluated = tuple(e + b - a for e, a, b in zip(self._evaluated, begun, ended, strict=True))

    def end_round(self, accuracy: float) -> None:
        """accuracy: in percent, pooled over all clients' test samples."""
        whole = [b - a for a, b in zip(self._round, self._now(), strict=True)]
        for total, evaluated, train, test in (
            (whole[0], self._evaluated[0], self.train_cpu_s, self.eval_cpu_s),
            (whole[1], self._evaluated[1], self.train_wall_s, self.eval_wall_s),
        ):
            train.append(total - evaluated)
            test.append(evaluated)
        self.accuracy.append(accuracy)
        self.steps_per_round.append(self.steps)
        self.gradients_per_round.append(self.gradients)
        self._next_round()

    def result(self) -> dict[str, Any]:
        """The fields of the adapter's JSON object that are measured. Counts: a number if equal in all rounds, else their list."""
        return {
            "rounds": len(self.accuracy),
            "steps_per_round": _number(self.steps_per_round),
            "gradients_per_round": _number(self.gradients_per_round),
            "start_cpu_s": self.start_cpu_s,
            "train_cpu_s": self.train_cpu_s,
            "eval_cpu_s": self.eval_cpu_s,
            "train_wall_s": self.train_wall_s,
            "eval_wall_s": self.eval_wall_s,
            "peak_rss_mib": peak_rss_mib(),
            "accuracy": self.accuracy,
        }


def made() -> dict[str, Any]:
    """What make_env.py noted of this environment: `version`, and `source`, the folder of a checkout; empty if there is none."""
    note = Path(sys.prefix) / "made.json"
    found: dict[str, Any] = json.loads(note.read_text()) if note.exists() else {}
    return found


def allow_torchvision() -> None:
    """Lets torchvision be imported where its compiled operators are of another build of torch: these tools use its data only.

    PyPI's torchvision is the CUDA build, which does not load beside the CPU build of torch. Call it before the tool is imported.
    """
    try:
        import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        with mock.patch.object(torch.library, "register_fake", return_value=lambda function: function):
            import_module("torchvision")


class NotPossible(Exception):
    """The tool cannot do this task or method; the text is the reason."""


Arm = Callable[[Task, str, int, int, Recorder], None]
"""Trains a method: task, method (pflbench's name), rounds, seed, recorder."""


def main(tool: str, version: Callable[[], str], arm: Arm) -> None:
    """The command line of an adapter. Its JSON object is written also after an error, whose text is in `error`."""
    parser = argparse.ArgumentParser(description=f"Trains a method on a task with {tool}.")
    parser.add_argument("task", type=Path, help="folder that task.py wrote")
    parser.add_argument("method", help="by the name that pflbench gives it; pflbench takes METHOD:PRESET, too")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0, help="of the order of batches, as far as the tool has one")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the JSON file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    recorder, error = Recorder(), None
    method, _, preset = options.method.partition(":")
    try:
        with recorder:
            arm(replace(Task.read(options.task), preset=preset), method, options.rounds, options.seed, recorder)
    except NotPossible as reason:
        error = str(reason)
    except Exception as problem:
        traceback.print_exc()
        error = f"{type(problem).__name__}: {problem}"
    found = {"tool": tool, "version": version(), "method": options.method, "task": options.task.resolve().name}
    found |= {"seed": options.seed, **recorder.result(), "error": error}
    found |= {"torch": torch.__version__, "threads": torch.get_num_threads()}
    written = options.output.with_name(f"{options.output.name}.part")
    written.write_text(json.dumps(found))
    os.replace(written, options.output)
