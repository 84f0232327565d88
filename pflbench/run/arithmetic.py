"""The arithmetic of a run: reproducible bits, true float32, and readable errors of memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from pflbench.engine import devices, memory
from pflbench.errors import UserError

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
    _set_products(tf32=dtype == "tf32")
    if device.type == "cpu":
        with devices.one_thread():
            yield
        return
    with deterministic_algorithms() if deterministic else nullcontext(), _nothing_compiled():
        yield


def _set_products(tf32: bool) -> None:
    """Sets the process's arithmetic for products and convolutions of float32, and has cuDNN give the same bits.

    PyTorch has older settings and newer ones, which must agree; the older ones are set first.
    """
    backends: Any = torch.backends
    cudnn, cpu = backends.cudnn, backends.mkldnn
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32 = True, False, True, tf32
    for kind in (backends.cuda.matmul, cudnn.conv, cudnn.rnn, cpu.matmul, cpu.conv, cpu.rnn):
        kind.fp32_precision = "tf32" if tf32 else "ieee"


def _nothing_compiled() -> AbstractContextManager[None]:
    """Inside, all shapes of `bmm` use cuBLAS. PyTorch 2.13 compiles inner size 1 by Triton, which needs a C compiler."""
    native: Any = getattr(torch.backends, "python_native", None)  # PyTorch has it since 2.12
    return nullcontext() if native is None else native.operations_disabled("bmm")


@contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Inside, operations are deterministic. Raises UserError for an operation without a deterministic form."""
    more: Any = torch.utils.deterministic
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
        torch.use_deterministic_algorithms(False)
        more.fill_uninitialized_memory = True


@contextmanager
def memory_errors(device: torch.device) -> Iterator[None]:
    """Turns errors of GPU memory into UserError."""
    try:
        yield
    except RuntimeError as error:
        if not memory.ran_out(error):
            raise
        hint = "--chunk N (not with --engine loop) and a smaller --batch-size need less. The same command resumes the run."
        raise UserError(f"Out of GPU memory on {device}.", hint) from None
