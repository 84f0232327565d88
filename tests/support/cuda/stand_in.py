"""The stand-in from Python: its counts, the few numbers that a round decides by, and cuDNN's operations by their shapes."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from dataclasses import astuple, dataclass, fields
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

MASKS = (torch.bool, torch.uint8)
SMALL = 4096  # numbers of a tensor that is computed

_runtime = ctypes.CDLL(None)
if not hasattr(_runtime, "stand_in_counts"):
    raise ImportError("The stand-in for NVIDIA's libraries is not loaded: `make cuda` loads it.")
_runtime.stand_in_counts.restype = ctypes.c_void_p


@dataclass(frozen=True)
class Counts:
    """Of one device since the process began; in the order of runtime.cpp."""

    launches: int  # kernels outside of graphs
    replays: int  # of graphs
    replayed: int  # kernels in these
    waits: int  # of the host for the device
    allocations: int  # of the caching allocator, from the driver
    out_of_memory: int  # of these, refused
    beside_capture: int  # kernels on other streams than the one that is captured: no replay repeats them

    @classmethod
    def of(cls, device: torch.device) -> Counts:
        return cls(*(ctypes.c_long * len(fields(cls))).from_address(_runtime.stand_in_counts(device.index)))

    def __sub__(self, before: Counts) -> Counts:
        return Counts(*(now - then for now, then in zip(astuple(self), astuple(before), strict=True)))


# -- numbers --------------------------------------------------------------------------------------------------------------


class SmallNumbers(TorchDispatchMode):
    """Inside, small tensors of a device have the right numbers, though its kernels compute nothing.

    A round decides by few of them: who takes part, who is ready, whether all is finite. So an operation on small tensors is made
    once more on the host, in the same memory. A small result of large tensors is 1, or True: all is finite, every model differs
    from every other. Replays leave all numbers as they are.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = (args, kwargs or {})
        only_looks = func.is_view or torch.Tag.inplace_view in func.tags
        if only_looks or not _on_gpu(given) or torch.cuda.is_current_stream_capturing():
            return func(*args, **given[1])
        if waits := _sized_by_numbers(func, args):
            return _sized(func, given, waits)
        result = func(*args, **given[1])
        if isinstance(result, bool):  # of torch.equal
            return bool(_small(given) and _computed(func, given))
        if _small(result):
            computed = _computed(func, given) if _small(given) else None
            for tensor, numbers in zip_longest(tree_leaves(result), tree_leaves(computed)):
                if isinstance(numbers, Tensor) and numbers.shape == tensor.shape:
                    on_host(tensor).copy_(numbers)
                elif isinstance(tensor, Tensor):
                    on_host(tensor).fill_(1)
        return result


def on_host(tensor: Tensor) -> Tensor:
    """As a tensor of the host with the same memory, which is the host's anyway."""
    if not tensor.is_cuda:
        return tensor
    memory = tensor.untyped_storage()
    if not memory.nbytes():
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    raw = (ctypes.c_byte * memory.nbytes()).from_address(memory.data_ptr())
    return torch.frombuffer(raw, dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _sized(func: Any, given: Any, waits: int) -> Any:
    """An operation whose kernels would tell the host how large its result is."""
    (first, *_), _ = given
    for _ in range(waits):
        torch.cuda.current_stream(first.device).synchronize()
    computed = _computed(func, given)
    assert computed is not None, f"{func}: nothing says how large its result is"
    if func.overloadpacket.__name__.endswith("_"):
        return first
    result = torch.empty_like(computed, device=first.device)
    on_host(result).copy_(computed)
    return result


def _sized_by_numbers(func: Any, args: Any) -> int:
    """How often an operation waits to know how large its result is, or what it has on the way to it."""
    name = func.overloadpacket.__name__
    if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
        return sum(isinstance(at, Tensor) and at.dtype in MASKS for at in args[1])
    if name == "isin":
        return 2 if args[1].numel() >= 10 * args[0].numel() ** 0.145 else 0  # many are sorted, few compared with each
    return int(torch.Tag.dynamic_output_shape in func.tags)


def _computed(func: Any, given: Any) -> Any:
    """On the host; None where it cannot be, as by an index that has no right numbers."""
    args, kwargs = tree_map_only(Tensor, on_host, tree_map_only(torch.device, lambda _: torch.device("cpu"), given))
    with suppress(IndexError, RuntimeError):
        return func(*args, **kwargs)
    return None


def _on_gpu(given: Any) -> bool:
    leaves = tree_leaves(given)
    return any(x.is_cuda if isinstance(x, Tensor) else isinstance(x, torch.device) and x.type == "cuda" for x in leaves)


def _small(values: Any) -> bool:
    return all(value.numel() <= SMALL for value in tree_leaves(values) if isinstance(value, Tensor))


# -- cuDNN, which cannot be stood in for: a kernel for each tensor that an operation gives ---------------------------------


def _written(shape: Any, like: Tensor) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device).fill_(0)


def _convolution(x: Tensor, weight: Tensor, padding: Any, stride: Any, dilation: Any, *_: Any) -> Tensor:
    sides = zip(x.shape[2:], weight.shape[2:], padding, stride, dilation, strict=True)
    after = [(side + 2 * pad - far * (kernel - 1) - 1) // step + 1 for side, kernel, pad, step, far in sides]
    return _written((len(x), len(weight), *after), x)


def _convolution_backward(gradient: Tensor, x: Tensor, weight: Tensor, *settings: Any) -> tuple[Tensor | None, ...]:
    likes, wanted = (x, weight, gradient[0, :, 0, 0]), settings[-1]
    return tuple(_written(like.shape, like) if asked else None for like, asked in zip(likes, wanted, strict=True))


def _batch_norm(x: Tensor, weight: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return _written(x.shape, x), torch.empty_like(weight), torch.empty_like(weight), torch.empty(0, device=x.device)


def _batch_norm_backward(x: Tensor, gradient: Tensor, weight: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return tuple(_written(like.shape, like) for like in (x, weight, weight))


_library = torch.library.Library("aten", "IMPL")
_library.impl("cudnn_convolution", _convolution, "CUDA")
_library.impl("convolution_backward", _convolution_backward, "CUDA")
_library.impl("cudnn_batch_norm", _batch_norm, "CUDA")
_library.impl("cudnn_batch_norm_backward", _batch_norm_backward, "CUDA")
