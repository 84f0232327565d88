"""The arithmetic of a run: reproducible bits, true float32, and readable errors of memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch

from pflbench.engine import devices, memory
from pflbench.errors import UserError
from pflbench.run.execution import Execution

NEWER = "fp32_precision"  # PyTorch's newer setting of float32's arithmetic
CUBLAS, CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"  # with workspaces of this size cuBLAS gives the same bits


def require_arithmetic(device: torch.device, dtype: str) -> None:
    """Raises UserError if the device does not have this arithmetic."""
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
    """The setting of one kind of operation; "none" if the backend's setting applies."""
    own: str = getattr(kind, NEWER)
    return "none" if own == getattr(whole, NEWER) else own


def _readable(setting: Callable[[], Any]) -> Any:
    try:
        return setting()
    except RuntimeError:
        return None


def _nothing_compiled() -> AbstractContextManager[None]:
    """Inside, all shapes of `bmm` use cuBLAS. PyTorch 2.13 compiles inner size 1 by Triton, which needs a C compiler."""
    native: Any = getattr(torch.backends, "python_native", None)  # PyTorch has it since 2.12
    return nullcontext() if native is None else native.operations_disabled("bmm")


@contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Inside, operations are deterministic. Raises UserError for an operation without a deterministic form."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    more: Any = torch.utils.deterministic
    filled = more.fill_uninitialized_memory
    os.environ.setdefault(CUBLAS, CUBLAS_WORKSPACE)  # read when cuBLAS is used for the first time
    torch.use_deterministic_algorithms(True)
    # Our code reads no uninitialised memory, and filling it would cost a kernel for each tensor.
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
    """Turns errors of GPU memory into UserError."""
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
