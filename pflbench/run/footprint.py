"""What a run will need of its device's memory, by parts, before anything is trained."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from pflbench import environment
from pflbench.engine import memory
from pflbench.engine.batched.executor import EVALUATED_AT_ONCE, EVALUATED_PER_CLIENT
from pflbench.engine.evaluation import EVALUATION_BATCH
from pflbench.engine.federation import Federation
from pflbench.engine.samples import Samples
from pflbench.errors import UserError
from pflbench.run.estimate import batch, estimate, without_data
from pflbench.run.execution import Execution, find_device
from pflbench.run.peak import Peak
from pflbench.run.setting import Setting
from pflbench.spec import RunSpec


@dataclass(frozen=True)
class Footprint:
    """Bytes of tensors. PyTorch itself, a GPU's context and the workspaces of kernels come on top: about a gigabyte.

    The method's own inner loops may hold more for each client than plain SGD, which is what `activations` is of.
    """

    device: str
    engine: str
    clients: int  # computed at a time
    data: int  # the samples and labels
    models: int  # what method and optimizer keep, as often as it is there at a time; the cohort's before and after training
    batch_norm: int  # buffers, as often
    copies: int  # models and gradients of the clients computed at a time, and what the optimizer makes of them
    activations: int  # of a training step of theirs
    evaluation: int  # a batch of all of them
    free: int | None  # what new tensors can have; None where nothing says
    programs: int = 0  # what captured steps keep: copies of models, and the activations in the memory of their graphs

    @property
    def total(self) -> int:
        kept = self.data + self.models + self.batch_norm + self.programs
        return kept + max(self.copies + self.activations, self.evaluation)

    def plain(self) -> dict[str, Any]:
        """As JSON types, with the total."""
        return {**asdict(self), "total": self.total}

    def problem(self) -> str:
        """In words, if it does not fit."""
        if self.free is None or self.total <= self.free:
            return ""
        needed, there_is = readable(self.total), readable(self.free)
        return f"needs about {needed} of memory with {self.clients} clients at a time, but {there_is} are free on {self.device}"


def footprint(spec: RunSpec, setting: Setting, how: Execution) -> Footprint | None:
    """The run's, on a device that need not be here. None where `estimate` has none."""
    try:
        device: torch.device | None = find_device(how.device)
    except UserError:
        device = None
    place = how.device if device is None else str(device)
    engine = how.engine_on(place)
    each = estimate(spec, setting, captured=how.captures(place), unfolded=how.unfolds(place))
    if each is None:
        return None
    fed, samples = without_data(spec, setting)
    cohort, room = len(fed.cohort(1)), None if device is None else memory.room(device, fixed=how.deterministic)
    if engine == "loop":
        clients = min(cohort, (how.workers or environment.cores()) if place == "cpu" else 1)
    else:
        clients = min(cohort, how.chunk or (cohort if room is None else each.clients(room)))
    return Footprint(
        device=place,
        engine=engine,
        clients=clients,
        data=each.data,
        models=each.models,
        batch_norm=each.batch_norm,
        copies=each.copies * clients,
        activations=each.activations * clients,
        programs=each.programs * clients,
        evaluation=fed.dtype.itemsize * fed.flat.size * clients + _forward(fed, samples, _tested(fed, engine, clients)),
        free=None if device is None else memory.free(device),
    )


def _forward(fed: Federation, samples: Samples, count: int) -> int:
    """Bytes that evaluation of so many samples at once takes."""
    module = fed.flat.module.to(fed.dtype).eval()
    with Peak() as peak, torch.no_grad():
        module(batch(samples, count)[0])
    return int(peak.most)


def _tested(fed: Federation, engine: str, clients: int) -> int:
    """Samples in a batch of evaluation, of all clients computed at a time."""
    of_one = min(EVALUATION_BATCH if engine == "loop" else EVALUATED_PER_CLIENT, max(map(len, fed.test_indices)))
    return max(1, clients * of_one if engine == "loop" else min(EVALUATED_AT_ONCE, clients * of_one))


def readable(size: float) -> str:
    """In decimal units: "3.2 GB"."""
    power = min(4, (len(str(int(size))) - 1) // 3)
    return f"{size / 1000**power:.3g} {('bytes', 'kB', 'MB', 'GB', 'TB')[power]}"
