"""What a run takes of memory, found on tensors without data: how many of its clients are computed at a time depends on it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pflbench import methods
from pflbench.engine import memory
from pflbench.engine.batched.chunks import SHARE
from pflbench.engine.batched.executor import BatchedExecutor
from pflbench.engine.batched.program import COPIES
from pflbench.engine.federation import Federation
from pflbench.engine.flat import Flat
from pflbench.engine.optimizers import WORKSPACE
from pflbench.engine.samples import Samples
from pflbench.errors import UserError
from pflbench.run.checkpoint import tensors
from pflbench.run.peak import Peak
from pflbench.run.setting import Setting
from pflbench.spec import RunSpec


@dataclass(frozen=True)
class Needs:
    """Bytes: the first three of the whole run, the others for each client that is computed at a time."""

    data: int  # the samples and labels
    models: int  # what method and optimizer keep, as often as it is there at a time; the cohort's before and after training
    batch_norm: int  # buffers, as often
    copies: int  # the client's model and its gradient, and what the optimizer makes of them
    activations: int  # of a training step
    programs: int  # what captured steps keep

    def clients(self, room: int, runs: int = 1) -> int:
        """How many fit a device with so much room at a time, at least 1; runs: that share the data."""
        taken = self.data + runs * (self.models + self.batch_norm)
        return max(1, int(SHARE * (room - taken) / (self.copies + self.activations + self.programs)))


def estimate(spec: RunSpec, setting: Setting, *, captured: bool, unfolded: bool = False) -> Needs | None:
    """The run's. None for a method of one's own whose `init` looks at values, and for such a model.

    unfolded: convolutions may be (engine.batched.convolutions).
    Raises UserError where the method does not go with the model or the protocol.
    """
    fed, samples = without_data(spec, setting)
    kept = _kept(spec, fed)
    if kept is None:
        return None
    try:
        row, step = fed.dtype.itemsize * fed.flat.size, _step(fed, samples, unfolded)
    except Exception:  # of a model that looks at values, or makes tensors on a device of its own choice
        if spec.own_model is None:
            raise
        return None
    optimizer = 0 if fed.optimizer is None else fed.optimizer.kept * row  # what a client has of it
    workspace = 0 if fed.optimizer is None else WORKSPACE * row + optimizer
    # Of this round and of the last one, and what those outside the cohort are tested with.
    states = 3 if spec.train.tests_outsiders else 2
    return Needs(
        data=samples.x.nbytes + samples.y.nbytes,
        models=states * (kept + _lasting(spec) * fed.size * optimizer) + 2 * len(fed.cohort(1)) * (row + optimizer),
        batch_norm=states * fed.size * fed.dtype.itemsize * fed.flat.buffer_size,
        copies=2 * row + optimizer + workspace,
        activations=step - row,
        # A step in the graph's memory, with the weights as convolutions take them and the gradients side by side.
        programs=(COPIES + 2) * row + COPIES * optimizer + workspace + step if captured else 0,
    )


def require_possible(spec: RunSpec, setting: Setting) -> None:
    """Raises UserError where the method does not go with the model or the protocol, or no memory here holds the model."""
    fed = without_data(spec, setting)[0]
    _require_memory(fed)
    _kept(spec, fed)


def _require_memory(fed: Federation) -> None:
    """Raises UserError where one model and its gradient are more than the machine has."""
    half = memory.room(torch.device("cpu"))
    if half is None or fed.flat.size * fed.dtype.itemsize <= half:
        return
    raise UserError(
        f"The model has {fed.flat.size:,} parameters: with their gradient more than this machine's {2 * half / 1e9:,.0f} GB.",
        f"At most {half // fed.dtype.itemsize:,} fit: a smaller model has fewer, and of texts a smaller vocabulary.",
    )


def without_data(spec: RunSpec, setting: Setting) -> tuple[Federation, Samples]:
    """The federation with its samples, all on the device "meta"."""
    with torch.device("meta"):
        module = setting.model(spec)
    dtype, partition = getattr(torch, spec.train.floats), setting.partition
    flat, samples = Flat(module), Samples(setting.arrays.x, setting.arrays.y, dtype, torch.device("meta"))
    return Federation(flat, BatchedExecutor(flat, samples), spec.train, partition.train, partition.test, spec.seed), samples


def batch(samples: Samples, size: int) -> tuple[Tensor, Tensor]:
    return samples.batch(torch.zeros(size, dtype=torch.int64, device="meta"))


def _kept(spec: RunSpec, fed: Federation) -> int | None:
    """Bytes of the method's state."""
    try:
        state = methods.make(spec.method).init(fed)
    except UserError:
        raise
    except Exception:
        return None
    return sum(value.nbytes for value in tensors(state).values())


def _lasting(spec: RunSpec) -> int:
    """Of how many models of a client the optimizer lasts from round to round: of those that it may train."""
    if spec.train.optimizer_state == "fresh":
        return 0
    return len({"model", methods.make(spec.method).slot})


def _step(fed: Federation, samples: Samples, unfolded: bool) -> int:
    """Bytes that forward and backward of one client's batch take, the gradient included."""
    largest, columns = max(map(len, fed.train_indices)), [0]
    module = fed.flat.module.to(fed.dtype).train()
    for layer in module.modules():
        if unfolded and isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(lambda layer, _, out: columns.append(out[:, 0].nbytes * layer.weight[0].numel()))
    with Peak() as peak, torch.enable_grad():
        x, y = batch(samples, max(2, min(fed.train.batch_size, largest)))
        torch.autograd.grad(F.cross_entropy(module(x), y), list(module.parameters()))
    # Of one layer at a time there are columns and their gradient.
    return int(peak.most) + 2 * max(columns)
