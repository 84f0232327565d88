"""What a run will need of its device's memory, by parts, before anything is trained."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pflbench import environment, methods
from pflbench.engine import memory
from pflbench.engine.batched.chunks import SHARE
from pflbench.engine.batched.executor import EVALUATED_AT_ONCE, EVALUATED_PER_CLIENT, BatchedExecutor
from pflbench.engine.batched.program import COPIES, capture
from pflbench.engine.evaluation import EVALUATION_BATCH
from pflbench.engine.federation import Federation
from pflbench.engine.flat import Flat
from pflbench.engine.samples import Samples
from pflbench.errors import UserError
from pflbench.models import build
from pflbench.run.checkpoint import tensors
from pflbench.run.execution import Execution, find_device
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
    models: int  # what the method keeps, as often as it is there at a time; the cohort's models before and after training
    batch_norm: int  # buffers, as often
    copies: int  # models and gradients of the clients computed at a time
    activations: int  # of a training step of theirs
    evaluation: int  # a batch of all of them
    free: int | None  # what new tensors can have; None where nothing says

    @property
    def total(self) -> int:
        return self.data + self.models + self.batch_norm + max(self.copies + self.activations, self.evaluation)

    def plain(self) -> dict[str, Any]:
        """As JSON types, with the total."""
        return {**asdict(self), "total": self.total}

    def problem(self) -> str:
        """In words, if it does not fit."""
        if self.free is None or self.total <= self.free:
            return ""
        needed, there_is = memory.readable(self.total), memory.readable(self.free)
        return f"needs about {needed} of memory with {self.clients} clients at a time, but {there_is} are free on {self.device}"


def footprint(spec: RunSpec, setting: Setting, how: Execution) -> Footprint | None:
    """The run's, on a device that need not be here. None for a method of one's own whose `init` looks at values."""
    try:
        device: torch.device | None = find_device(how.device)
    except UserError:
        device = None
    place = how.device if device is None else str(device)
    engine = how.engine_on(place)
    fed, samples = _federation(spec, setting)
    kept = _kept(spec, fed)
    if kept is None:
        return None
    row, cohort = fed.dtype.itemsize * fed.flat.size, len(fed.cohort(1))
    step = _step(fed, samples)
    # Model and gradient, and what a captured step keeps of them.
    copies = 2 + (COPIES if engine == "batched" and capture(how.capture, torch.device(place)) else 0)
    free, room = (None, None) if device is None else (memory.free(device), memory.room(device))
    # Of this round and of the last one, and what those outside the cohort are tested with.
    states = 3 if spec.train.initialised == "all" else 2
    data, held = samples.x.nbytes + samples.y.nbytes, states * kept + 2 * cohort * row
    buffers = states * fed.size * fed.dtype.itemsize * fed.flat.buffer_size
    if engine == "loop":
        clients = min(cohort, (how.workers or environment.cores()) if place == "cpu" else 1)
    else:
        clients = min(cohort, how.chunk or _fitting(room, data + held + buffers, step + (copies - 1) * row))
    tested = _tested(fed, engine, clients)
    return Footprint(
        device=place,
        engine=engine,
        clients=clients,
        data=data,
        models=held,
        batch_norm=buffers,
        copies=copies * row * clients,
        activations=(step - row) * clients,
        evaluation=row * clients + _forward(fed, samples, tested),
        free=free,
    )


def require_possible(spec: RunSpec, setting: Setting) -> None:
    """Raises UserError where the method does not go with the model or the protocol."""
    _kept(spec, _federation(spec, setting)[0])


def _federation(spec: RunSpec, setting: Setting) -> tuple[Federation, Samples]:
    """With its samples, all on the device "meta"."""
    with torch.device("meta"):
        arrays = setting.arrays
        module = build(spec.model, tuple(arrays.x.shape[1:]), len(arrays.classes), arrays.vocabulary)
    dtype, partition = getattr(torch, spec.train.floats), setting.partition
    flat, samples = Flat(module), Samples(setting.arrays.x, setting.arrays.y, dtype, torch.device("meta"))
    return Federation(flat, BatchedExecutor(flat, samples), spec.train, partition.train, partition.test, spec.seed), samples


def _kept(spec: RunSpec, fed: Federation) -> int | None:
    """Bytes of the method's state. Raises UserError where the method does not go with the model or the protocol."""
    try:
        state = methods.make(spec.method).init(fed)
    except UserError:
        raise
    except Exception:
        return None
    return sum(value.nbytes for value in tensors(state).values())


def _batch(samples: Samples, size: int) -> tuple[Tensor, Tensor]:
    return samples.batch(torch.zeros(size, dtype=torch.int64, device="meta"))


def _step(fed: Federation, samples: Samples) -> int:
    """Bytes that forward and backward of one client's batch take, the gradient included."""
    largest = max(map(len, fed.train_indices))
    module = fed.flat.module.to(fed.dtype).train()
    with memory.Peak() as peak, torch.enable_grad():
        x, y = _batch(samples, max(2, min(fed.train.batch_size, largest)))
        torch.autograd.grad(F.cross_entropy(module(x), y), list(module.parameters()))
    return int(peak.most)


def _forward(fed: Federation, samples: Samples, count: int) -> int:
    """Bytes that evaluation of so many samples at once takes."""
    module = fed.flat.module.to(fed.dtype).eval()
    with memory.Peak() as peak, torch.no_grad():
        module(_batch(samples, count)[0])
    return int(peak.most)


def _tested(fed: Federation, engine: str, clients: int) -> int:
    """Samples in a batch of evaluation, of all clients computed at a time."""
    of_one = min(EVALUATION_BATCH if engine == "loop" else EVALUATED_PER_CLIENT, max(map(len, fed.test_indices)))
    return max(1, clients * of_one if engine == "loop" else min(EVALUATED_AT_ONCE, clients * of_one))


def _fitting(room: int | None, taken: int, each: int) -> int:
    """Clients at a time on a device of which so much is taken already; all, where it does not say what is free."""
    return 2**31 if room is None else max(1, int(SHARE * (room - taken) / each))
