"""How a specification is executed: the device, the executor, the clients on it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from pflbench.engine import devices, memory, rng
from pflbench.engine.batched import convolutions
from pflbench.engine.batched.chunks import Chunks
from pflbench.engine.batched.executor import BatchedExecutor
from pflbench.engine.batched.program import capture
from pflbench.engine.batches import Plan
from pflbench.engine.federation import Federation
from pflbench.engine.flat import Flat
from pflbench.engine.loop import LoopExecutor
from pflbench.engine.requests import Evaluate, Executor, Sgd
from pflbench.engine.samples import Samples
from pflbench.errors import UserError
from pflbench.plugins import in_a_line
from pflbench.run.estimate import estimate
from pflbench.run.follow import Follow
from pflbench.run.setting import Setting
from pflbench.spec import RunSpec

VALID = "Valid: auto, cpu, cuda, cuda:0, cuda:1, ..."
STEPS = 4  # with which ways of convolving are compared
NEWER = "fp32_precision"  # PyTorch's newer setting of float32's arithmetic
CUBLAS, CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"  # with workspaces of this size cuBLAS gives the same bits


@dataclass(frozen=True)
class Execution:
    """How a run is executed; recorded with it, no part of its key."""

    device: str = "auto"
    engine: Literal["auto", "loop", "batched"] = "auto"
    workers: int | None = None  # loop on a CPU: clients side by side; None: one per core
    chunk: int | None = None  # batched: clients at a time; None: as many as there is memory for
    estimate: int | None = None  # how many these were thought to be when the run was begun; None: now it is
    pack: int | None = 1  # batched: runs that differ in the seed alone, made together; None: as many as there is memory for
    capture: Literal["auto", "graph", "none"] = "auto"  # batched: how steps become programs
    convolution: Literal["auto", "groups", "search", "unfold"] = "auto"  # batched on a GPU: engine.batched.convolutions
    deterministic: bool = False  # on a GPU: the same bits each time, or a refusal; a CPU gives them anyway
    observe_every: int = 0  # rounds between those in which large arrays are kept as artifacts; 0: none
    follow: Follow | None = None  # the client whose models are kept
    checkpoint_every: float = 30.0  # seconds between checkpoints
    checkpoints: str | None = None  # where they lie: run.places
    command: str = ""  # as the user gave it
    record_host: bool = False  # whether the machine's name, and paths in full, are recorded
    scale: str | None = None  # of the reproduction that a run is made for, if it is

    def engine_on(self, device: str) -> Literal["loop", "batched"]:
        """The executor, on a device such as "cpu" or "cuda:0"."""
        if self.engine == "auto":
            return "loop" if device == "cpu" else "batched"
        return self.engine

    def captures(self, device: str) -> bool:
        """Whether steps become programs there."""
        return self.engine_on(device) == "batched" and device != "cpu" and self.capture != "none"

    def unfolds(self, device: str) -> bool:
        """Whether convolutions may be unfolded there."""
        asked = "groups" if self.convolution == "auto" and self.deterministic else self.convolution
        return self.engine_on(device) == "batched" and device != "cpu" and asked in ("auto", "unfold")


def checked(how: Execution) -> Execution:
    """The same. Raises UserError for ways of computing that the executor or the device does not have."""
    place = str(find_device("auto")) if how.device == "auto" else how.device
    engine = how.engine_on(place)
    if engine == "loop":
        chosen: dict[str, object] = {"chunk": how.chunk, "capture": how.capture, "convolution": how.convolution}
    else:
        chosen = {"workers": how.workers}
    asked = [f"--{name} {value}" for name, value in chosen.items() if value not in (None, "auto")]
    if asked:
        other = "batched" if engine == "loop" else "loop"
        raise UserError(
            f"{' and '.join(asked)}: the {engine} executor has no such choice.", f"Add --engine {other}, or leave it out."
        )
    if how.workers is not None and place != "cpu":
        raise UserError(f"--workers {how.workers}: clients go side by side on a CPU alone.", "Add --device cpu, or leave it out.")
    if how.convolution != "auto" and place == "cpu":
        raise UserError(
            f"--convolution {how.convolution}: it says how a GPU convolves; on a CPU there is one way.", "Leave it out."
        )
    if how.convolution == "search" and how.deterministic:
        raise UserError(
            "--convolution search: what cuDNN measures may differ each time, and --deterministic has nothing measured.",
            "Leave one of them out.",
        )
    if how.capture == "graph" and place == "cpu":
        raise UserError("--capture graph: a CUDA graph needs a GPU.", "Add --device cuda, or leave it out.")
    return how


def find_device(name: str) -> torch.device:
    """ "auto" is the first GPU if there is one, else the CPU; "cuda" is the first. A GPU that is not there is a UserError.

    A GPU always has its index: some functions of torch.cuda refuse a device without one, and no tensor's device is without.
    """
    if name == "auto":
        name = devices.accelerator() or "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"Unknown device '{name}'.", VALID) from None
    if name == "cpu":
        return device
    if device.type not in ("cuda", devices.accelerator()):
        raise UserError(f"Device '{name}' is not supported.", VALID)
    if outdated := devices.outdated_driver():  # PyTorch may count the GPUs all the same
        raise UserError(f"Device '{name}' was asked for, but {outdated}.", f"{devices.UPDATE} --device cpu needs neither.")
    count = devices.of(device).device_count()
    if (device.index or 0) >= count:
        raise UserError(f"Device '{name}' was asked for, but PyTorch sees {count or 'no'} GPU{'s' if count > 1 else ''} here.",
                        "Use --device cpu, or install a CUDA build of PyTorch.")  # fmt: skip
    return torch.device(device.type, device.index or 0)


def why_no_gpu(name: str) -> str:
    """Why "auto" is the CPU, where only the driver keeps a GPU from being used; else ""."""
    outdated = devices.outdated_driver() if name == "auto" else ""
    return outdated and f"The CPU is used, since {outdated}. {devices.UPDATE}"


def federation(spec: RunSpec, setting: Setting, device: torch.device, how: Execution) -> Federation:
    """The clients of a specification on a device, with the initial model of its seed."""
    flat = initial_model(spec, setting)
    return clients(spec, setting, flat, executor(spec, setting, flat, device, how))


def initial_model(spec: RunSpec, setting: Setting) -> Flat:
    """Of the run's seed, with its layout, which does not depend on the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.torch_seed(spec.seed, "model"))
        return Flat(setting.model(spec))


def executor(spec: RunSpec, setting: Setting, flat: Flat, device: torch.device, how: Execution, runs: int = 1) -> Executor:
    """What computes the clients of a specification, of several runs if need be, with the samples on the device."""
    chunks = Chunks(how.chunk, _clients_at_a_time(spec, setting, device, how, runs), firm=how.deterministic)
    samples = Samples(setting.arrays.x, setting.arrays.y, getattr(torch, spec.train.floats), device)
    if how.engine_on(str(device)) == "loop":
        return LoopExecutor(flat, samples, how.workers)
    if spec.own_model is not None:
        _require_together(spec, setting, flat, samples)
    together = int(spec.train.join_ratio * len(setting.partition.train)) * runs
    chosen = convolution(spec, setting, flat, samples, how, min(together, chunks.most or chunks.estimate or together))
    return BatchedExecutor(flat, samples, chunks, capture=capture(how.capture, device), convolution=chosen)


def _require_together(spec: RunSpec, setting: Setting, flat: Flat, samples: Samples) -> None:
    """Raises UserError where a step of a model of one's own cannot be made for two clients at once, or they cannot be tested."""
    batch = np.concatenate(setting.partition.train)[:2]
    plan = Plan((batch, batch), (np.full(1, len(batch)),) * 2)
    rows, buffers = (row.to(samples.device, samples.dtype).repeat(2, 1) for row in (flat.row(), flat.buffer_row(samples.dtype)))
    made = BatchedExecutor(flat, samples)
    # An operation that PyTorch has no way for of all clients at once is made for one after another, within the one program.
    warnings.filterwarnings("ignore", message="There is a performance drop because we have not yet implemented")
    try:
        trained = made.do(Sgd(plan, rows, buffers, spec.train.lr))
        made.do(Evaluate(plan, trained.rows, trained.buffers))
    except Exception as error:
        if memory.ran_out(error):
            raise
        reason = in_a_line(error).partition(". ")[0]
        raise UserError(
            f"Model '{spec.model}' cannot be computed for all clients at once: {reason}.",
            "Add --engine loop, or write it without changing tensors in place and without deciding by their values.",
        ) from error
    finally:
        made.close()


def convolution(spec: RunSpec, setting: Setting, flat: Flat, samples: Samples, how: Execution, clients: int) -> str | None:
    """One of convolutions.CONVOLUTIONS, or None where there is nothing to choose: on a CPU, without convolutions.

    clients: computed at a time.
    """
    if samples.device.type == "cpu" or not convolutions.convolutions(flat.module):
        return None
    if how.convolution != "auto":
        return how.convolution
    if how.deterministic:
        return convolutions.CONVOLUTIONS[0]

    def timed(way: str) -> float:
        found = _seconds_of_steps(way, spec, setting, flat, samples, how, clients)
        memory.release(samples.device)
        return found

    return convolutions.fastest(timed)


def _clients_at_a_time(spec: RunSpec, setting: Setting, device: torch.device, how: Execution, runs: int) -> int | None:
    """As many as memory is thought to be enough for, before there is anything on the device; None where nothing says."""
    if how.chunk or how.engine_on(str(device)) == "loop" or how.estimate:
        return None if how.chunk else how.estimate
    room = memory.room(device, fixed=how.deterministic)
    where = str(device)
    needed = None if room is None else estimate(spec, setting, captured=how.captures(where), unfolded=how.unfolds(where))
    return None if needed is None or room is None else needed.clients(room, runs)


def _seconds_of_steps(
    way: str, spec: RunSpec, setting: Setting, flat: Flat, samples: Samples, how: Execution, clients: int
) -> float:
    """Of local training with the run's own model and batches, captured as in the run."""
    batch = np.concatenate(setting.partition.train)[: spec.train.batch_size]
    plan = Plan((np.tile(batch, STEPS),) * clients, (np.full(STEPS, len(batch)),) * clients)
    rows, buffers = (
        row.to(samples.device, samples.dtype).repeat(clients, 1) for row in (flat.row(), flat.buffer_row(samples.dtype))
    )
    made = BatchedExecutor(flat, samples, capture=capture(how.capture, samples.device), convolution=way)
    try:
        return convolutions.seconds(samples.device, lambda: made.do(Sgd(plan, rows, buffers, 1e-4)))
    finally:
        made.close()


def clients(spec: RunSpec, setting: Setting, flat: Flat, executor: Executor) -> Federation:
    """Closes the executor and raises UserError where no client can train."""
    fed = Federation(flat, executor, spec.train, setting.partition.train, setting.partition.test, spec.seed)
    if not fed.batches(fed.nobody_left_out(), 1).steps().any():
        executor.close()
        raise UserError(
            f"No client has a single batch to train on (batch size {spec.train.batch_size}, drop-last {spec.train.drop_last}).",
            "Choose another --batch-size or --drop-last, or fewer clients; BatchNorm needs batches of at least 2.",
        )
    return fed


def require_arithmetic(device: torch.device, dtype: str) -> None:
    """Raises UserError where the device does not have it."""
    if dtype == "tf32" and device.type == "cpu":
        raise UserError("TF32 is arithmetic of NVIDIA's GPUs: there is none on a CPU.", "Use --dtype float32, or --device cuda.")


@contextmanager
def exact_arithmetic(device: torch.device, dtype: str = "float32", deterministic: bool = False) -> Iterator[None]:
    """On a CPU the same command gives the same bits, and on a GPU float32 means float32: the defaults promise neither.

    dtype "tf32": products of matrices and convolutions take 10 bits of each factor's fraction. Raises UserError on a CPU.
    deterministic: the same bits on a GPU, too. Raises UserError for an operation that cannot.
    """
    require_arithmetic(device, dtype)
    with _products(tf32=dtype == "tf32"):
        if device.type == "cpu":
            with devices.one_thread():
                yield
            return
        with deterministic_algorithms() if deterministic else nullcontext(), _nothing_compiled():
            yield


@contextmanager
def _products(tf32: bool) -> Iterator[None]:
    """Inside, products and convolutions of float32 have this arithmetic, and cuDNN's are those that give the same bits.

    PyTorch has older settings for it and newer ones, and refuses to read an older one that a newer one contradicts. So both are
    set, the older ones first, and what cannot be read is not set back.
    """
    backends: Any = torch.backends
    cudnn, cpu = backends.cudnn, backends.mkldnn
    flags = {"enabled": True, "benchmark": False, "deterministic": True, "allow_tf32": tf32}
    kinds = [(cudnn, of) for of in (backends.cuda.matmul, cudnn.conv, cudnn.rnn)]
    kinds += [(cpu, of) for of in (cpu.matmul, cpu.conv, cpu.rnn)]
    settings: list[tuple[Callable[[], Any], Callable[[Any], None], Any]] = [
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "high" if tf32 else "highest"),
        *((partial(getattr, cudnn, name), partial(setattr, cudnn, name), value) for name, value in flags.items()),
        *((partial(_precision, *kind), partial(setattr, kind[1], NEWER), "tf32" if tf32 else "ieee") for kind in kinds),
    ]
    before = [(put, _readable(get)) for get, put, _ in settings]
    for _, put, value in settings:
        put(value)
    try:
        yield
    finally:
        for put, value in before:
            if value is not None:
                put(value)


def _precision(whole: Any, kind: Any) -> str:
    """Of a kind of operation by itself: "none" where it is that of the whole backend."""
    own: str = getattr(kind, NEWER)
    return "none" if own == getattr(whole, NEWER) else own


def _readable(setting: Callable[[], Any]) -> Any:
    try:
        return setting()
    except RuntimeError:
        return None


def _nothing_compiled() -> AbstractContextManager[None]:
    """Inside, `bmm` is cuBLAS's for all shapes: for an inner size of 1 PyTorch 2.13 has Triton compile it, with a C compiler."""
    native: Any = getattr(torch.backends, "python_native", None)  # PyTorch has it since 2.12
    return nullcontext() if native is None else native.operations_disabled("bmm")


@contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Inside, operations take the form that gives the same bits each time. Raises UserError for one that has none."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    more: Any = torch.utils.deterministic
    filled = more.fill_uninitialized_memory
    os.environ.setdefault(CUBLAS, CUBLAS_WORKSPACE)  # read when cuBLAS is used for the first time
    torch.use_deterministic_algorithms(True)
    # Nothing reads memory that was not written: to fill it would be one more kernel for each tensor.
    more.fill_uninitialized_memory = False
    try:
        yield
    except RuntimeError as error:
        name, found, _ = str(error).partition(" does not have a deterministic implementation")
        if found:
            raise UserError(f"--deterministic: '{name}' has no deterministic form on this device.", "Leave it out.") from None
        if CUBLAS in str(error):
            raise UserError(
                f"--deterministic: cuBLAS was used without {CUBLAS}.", f"Set {CUBLAS}={CUBLAS_WORKSPACE} before the command."
            ) from None
        raise
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        more.fill_uninitialized_memory = filled


@contextmanager
def memory_errors(how: Execution, device: torch.device) -> Iterator[None]:
    """Out of GPU memory is the user's to mend."""
    try:
        yield
    except RuntimeError as error:
        if not memory.ran_out(error):
            raise
        hint = "--chunk N trains N clients at a time (try a quarter of the cohort)"
        if how.engine == "loop":
            hint = "A smaller --batch-size or model needs less"
        raise UserError(
            f"Out of GPU memory on {device}.", f"{hint}, --device cpu none. The same command resumes the run."
        ) from None
