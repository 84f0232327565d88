"""Estimates the memory of a run with tensors on "meta". The number of clients at a time follows from it."""

from __future__ import annotations

import weakref
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pflbench import environment, methods
from pflbench.engine import memory
from pflbench.engine.batched.batched_executor import EVALUATED_AT_ONCE, EVALUATED_PER_CLIENT, BatchedExecutor
from pflbench.engine.batched.program import COPIES
from pflbench.engine.evaluation import EVALUATION_BATCH
from pflbench.engine.federation import Federation
from pflbench.engine.flat import Flat
from pflbench.engine.optimizers import WORKSPACE
from pflbench.engine.samples import Samples
from pflbench.errors import UserError
from pflbench.methods.base import Method
from pflbench.run.checkpoint import tensors
from pflbench.run.device import find_device
from pflbench.run.execution import Execution
from pflbench.run.federation_data import FederationData
from pflbench.run.round import require_global_model
from pflbench.spec import RunSpec


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Bytes: the first three for the whole run, the others for each client that is computed at a time."""

    data: int  # the samples and labels
    models: int  # states of method and optimizer, as many copies as exist at once; the cohort's models before and after training
    batch_norm: int  # buffers, as many copies
    copies: int  # the client's model and its gradient, and the optimizer's temporary tensors
    activations: int  # of a training step
    programs: int  # memory of captured steps: copies of the model, and the activations of their graphs

    def fitting(self, room: int, runs: int = 1) -> int:
        """The number of clients at a time that fit into `room` bytes, at least 1. runs: that share the data."""
        taken = self.data + runs * (self.models + self.batch_norm)
        return max(1, int(memory.SHARE * (room - taken) / (self.copies + self.activations + self.programs)))


@dataclass(frozen=True, kw_only=True)
class Footprint(Needs):
    """Bytes of all tensors, of all clients that are computed at a time.

    PyTorch itself, a GPU's context and the workspaces of kernels come on top: about a gigabyte. The method's own inner loops may
    hold more for each client than plain SGD, which is what `activations` is of.
    """

    device: str
    engine: str
    clients: int  # computed at a time
    evaluation: int  # a batch of all of them
    free: int | None  # for new tensors; None if the system does not say

    @property
    def total(self) -> int:
        kept = self.data + self.models + self.batch_norm + self.programs
        return kept + max(self.copies + self.activations, self.evaluation)

    def plain(self) -> dict[str, Any]:
        """As JSON types, with the total."""
        return {**asdict(self), "total": self.total}

    def problem(self) -> str:
        """A warning if it does not fit."""
        if self.free is None or self.total <= self.free:
            return ""
        needs = f"needs about {readable(self.total)} of memory with {self.clients} clients at a time"
        return f"{needs}, but {readable(self.free)} are free on {self.device}"


def estimate(spec: RunSpec, data: FederationData, how: Execution, device: str) -> Needs | None:
    """The run's on a device such as "cuda:0". None for a method of one's own whose `init` looks at values, and for such a model.

    Raises UserError where the method does not go with the model or the protocol.
    """
    fed, samples = _without_data(spec, data)
    state = _initial_state(spec, methods.make(spec.method), fed)
    if state is None:
        return None
    kept = sum(value.nbytes for value in tensors(state).values())
    try:
        row, step = fed.dtype.itemsize * fed.flat.size, _step(fed, samples, how.unfolds(device))
    except Exception:  # the model reads values, or makes tensors on a device of its own choice
        if spec.own_model is None:
            raise
        return None
    optimizer = 0 if fed.optimizer is None else fed.optimizer.kept * row  # of a client
    workspace = 0 if fed.optimizer is None else WORKSPACE * row + optimizer
    # The optimizer's state may last for each model of a client that is trained.
    lasting = 0 if spec.train.optimizer_state == "fresh" else len({"model", methods.load(spec.method.name).tested_model})
    # What new clients begin with, and have adapted before and after an epoch.
    new = 3 * spec.train.new_clients * (row + optimizer)
    left_out = fed.size * row if spec.train.kept_share is not None else 0  # by topk
    # Of this round and the last one, and of the tests of clients outside the cohort.
    states = 3 if spec.train.tests_outsiders else 2
    return Needs(
        data=samples.x.nbytes + samples.y.nbytes,
        models=states * (kept + lasting * fed.size * optimizer + left_out) + 2 * len(fed.cohort(1)) * (row + optimizer) + new,
        batch_norm=states * fed.size * fed.dtype.itemsize * fed.flat.buffer_size,
        copies=2 * row + optimizer + workspace,
        activations=step - row,
        # A step in the graph's memory, with reordered weights of convolutions and all gradients at once.
        programs=(COPIES + 2) * row + COPIES * optimizer + workspace + step if how.captures(device) else 0,
    )


def footprint(spec: RunSpec, data: FederationData, how: Execution) -> Footprint | None:
    """The run's memory on a device, which may be absent. None if `estimate` returns None."""
    try:
        device: torch.device | None = find_device(how.device)
    except UserError:
        device = None
    place = how.device if device is None else str(device)
    engine = how.engine_on(place)
    each = estimate(spec, data, how, place)
    if each is None:
        return None
    fed, samples = _without_data(spec, data)
    cohort, room = len(fed.cohort(1)), None if device is None else memory.room(device, fixed=how.deterministic)
    if engine == "loop":
        clients = min(cohort, (how.workers or environment.cores()) if place == "cpu" else 1)
    else:
        clients = min(cohort, how.chunk or (cohort if room is None else each.fitting(room)))
    per_client = {name: clients * getattr(each, name) for name in ("copies", "activations", "programs")}
    return Footprint(
        **{**vars(each), **per_client},
        device=place,
        engine=engine,
        clients=clients,
        evaluation=fed.dtype.itemsize * fed.flat.size * clients + _forward(fed, samples, _tested(fed, engine, clients)),
        free=None if device is None else memory.free(device),
    )


def require_possible(spec: RunSpec, data: FederationData) -> None:
    """Raises UserError if the method does not work with the model, the protocol or the central test set."""
    method, (fed, _) = methods.make(spec.method), _without_data(spec, data)
    state = _initial_state(spec, method, fed)
    if state is not None and data.central is not None:
        require_global_model(spec.method.name, method, state)


def readable(size: float) -> str:
    return f"{size / 1e9:.3g} GB"


def _without_data(spec: RunSpec, data: FederationData) -> tuple[Federation, Samples]:
    """The federation with its samples, all on the device "meta"."""
    with torch.device("meta"):
        module = data.model(spec)
    dtype, partition = getattr(torch, spec.train.floats), data.partition
    flat, samples = Flat(module), Samples(data.arrays.x, data.arrays.y, dtype, torch.device("meta"))
    executor, labels = BatchedExecutor(flat, samples), data.arrays.y
    return Federation(flat, executor, spec.train, partition.train, partition.test, spec.seed, labels), samples


def _batch(samples: Samples, size: int) -> tuple[Tensor, Tensor]:
    return samples.batch(torch.zeros(size, dtype=torch.int64, device="meta"))


def _initial_state(spec: RunSpec, method: Method, fed: Federation) -> Any:
    """The method's state; None if its `init` looks at values."""
    try:
        return method.init(fed)
    except UserError as error:
        raise UserError(f"{spec.method.name} on {spec.data.label}, model {spec.model}: {error.message}", error.hint) from error
    except Exception:
        return None


def _step(fed: Federation, samples: Samples, unfolded: bool) -> int:
    """Bytes of forward and backward of a client's batch, including the gradient. unfolded: convolutions may be."""
    largest, columns = max(map(len, fed.train_indices)), [0]
    module = fed.flat.module.to(fed.dtype).train()
    for layer in module.modules():
        if unfolded and isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(lambda layer, _, out: columns.append(out[:, 0].nbytes * layer.weight[0].numel()))
    with Peak() as peak, torch.enable_grad():
        x, y = _batch(samples, max(2, min(fed.protocol.batch_size, largest)))
        torch.autograd.grad(F.cross_entropy(module(x), y), list(module.parameters()), allow_unused=True)
    # Columns and their gradient exist for one layer at a time.
    return int(peak.most) + 2 * max(columns)


def _forward(fed: Federation, samples: Samples, count: int) -> int:
    """Bytes of an evaluation of so many samples at once."""
    module = fed.flat.module.to(fed.dtype).eval()
    with Peak() as peak, torch.no_grad():
        module(_batch(samples, count)[0])
    return int(peak.most)


def _tested(fed: Federation, engine: str, clients: int) -> int:
    """Samples in an evaluation batch of all clients that are computed at a time."""
    of_one = min(EVALUATION_BATCH if engine == "loop" else EVALUATED_PER_CLIENT, max(map(len, fed.test_indices)))
    return max(1, clients * of_one if engine == "loop" else min(EVALUATED_AT_ONCE, clients * of_one))


class Peak(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the memory of the tensors that are made inside, in bytes. On the device "meta" they have none, and cost nothing.

    now: of those that still live; most: of those that lived at once; largest: of a single one.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = self.largest = 0
        self._seen: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._note((args, kwargs), new=False)
        result = func(*args, **(kwargs or {}))
        self._note(result, new=True)
        return result

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._seen.clear()  # tensors freed later no longer count

    def _note(self, tensors: Any, new: bool) -> None:
        for tensor in tree_leaves(tensors):
            # Views share memory: it counts once, and not at all if it existed before.
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in self._seen:
                self._begin(tensor.untyped_storage(), new)

    def _begin(self, storage: torch.UntypedStorage, new: bool) -> None:
        where, size = storage._cdata, storage.nbytes() if new else 0

        def end(_: object) -> None:
            self.now -= size
            del self._seen[where]

        self._seen[where] = weakref.ref(storage, end)
        self.now += size
        self.most, self.largest = max(self.most, self.now), max(self.largest, size)
