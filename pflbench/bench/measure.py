"""Measures this machine: its ceilings, and rounds of every method on every executor, one round of each in turn."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

import torch

from pflbench import environment
from pflbench.bench import ceilings, floor
from pflbench.bench.arms import Way, arm
from pflbench.engine import devices, memory
from pflbench.errors import UserError
from pflbench.run.arithmetic import exact_arithmetic
from pflbench.run.setting import Setting
from pflbench.spec import RunSpec
from pflbench.store.measurements import Arm, Measurement
from pflbench.store.paths import in_spec

Progress = Callable[[str, int, int], None]


def measure(
    specs: Sequence[RunSpec],
    setting: Setting,
    ways: Sequence[Way],
    device: torch.device,
    rounds: int,
    name: str | None = None,
    share: float = 1.0,
    command: str = "",
    progress: Progress | None = None,
) -> Measurement:
    """Specifications that differ in the method alone, `rounds` timed rounds of each, in every way.

    share: of every client's samples that the setting was cut to; recorded. progress: (what, done, total).
    """
    limits = ceilings.measure(device)
    of_method = {spec.method.name: floor.floors(floor.work(spec, setting), limits) for spec in specs}
    with exact_arithmetic(device, specs[0].train.dtype), _memory_errors(device), ExitStack() as held:
        running = [_Running(spec, setting, device, way) for spec in specs for way in ways]
        for one in running:
            held.callback(one.close)
        turns = [(t, one) for t in range(floor.UNTIMED + rounds) for one in running]
        for done, (t, one) in enumerate(turns):
            one.round(timed=t >= floor.UNTIMED)
            if progress is not None:
                progress("rounds", done + 1, len(turns))
        steps = {f"{one.method} {one.way.name}": told for one in running if (told := one.arm.steps())}
        described = {**environment.describe(), "torch_threads": torch.get_num_threads(), "command": command, "steps": steps}
        described |= devices.software(device)
    arms = tuple(one.record(of_method[one.method]) for one in running)
    return Measurement(devices.name(device), _work(specs[0], setting, share), asdict(limits), arms, described, name)


class _Running:
    """A method on an executor, on its way through the rounds."""

    def __init__(self, spec: RunSpec, setting: Setting, device: torch.device, way: Way) -> None:
        self.spec, self.device, self.way = spec, device, way
        self.method = spec.method.name
        self.arm = arm(way, spec, setting, device)
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.peak = 0

    def round(self, timed: bool) -> None:
        devices.reset_peak(self.device)
        seconds = self.arm.round()
        if timed:
            self.peak = max(self.peak, devices.peak(self.device))
            for phase, found in seconds.items():
                self.seconds[phase].append(found)

    def record(self, of_phases: dict[str, floor.Floor]) -> Arm:
        floors = {phase: asdict(floor.times(found, self.way.runs)) for phase, found in of_phases.items()}
        return Arm(
            self.method,
            self.way.name,
            in_spec(self.spec.model_dump(mode="json"), lambda path: Path(path).name),
            dict(self.seconds),
            floors,
            self.peak,
        )

    def close(self) -> None:
        self.arm.close()


@contextmanager
def _memory_errors(device: torch.device) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not memory.ran_out(error):
            raise
        raise UserError(
            f"Out of GPU memory on {device}.", "All methods and executors are held at once: measure fewer, or a smaller --share."
        ) from None


def _work(spec: RunSpec, setting: Setting, share: float) -> dict[str, object]:
    """What decides the work of a round. Own data bear a hash of their content: they may lie elsewhere on another machine."""
    data = spec.data
    return {
        "dataset": data.label if data.content is None else f"{data.name}:{data.content[:16]}",
        "partition": spec.partition.label,
        "clients": spec.partition.clients,
        "model": spec.model,
        "share": share,
        "train_samples": sum(map(len, setting.partition.train)),
        "test_samples": sum(map(len, setting.partition.test)),
        "batch_size": spec.train.batch_size,
        "local_epochs": spec.train.local_epochs,
    }
