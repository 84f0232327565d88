"""Finds operations that no captured step may have: they wait for the device, or copy between it and the host."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
# PyTorch tags most operations whose result, or its size, depends on numbers; these have no tag.
FURTHER = {"_linalg_check_errors", "histc"}
UNKNOWN = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
OWN = (str(Path(torch.__file__).parent), __file__, "<")  # files that are never reported as the place


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches for the first operation that waits or copies. found: a description of it with its place; "" if none."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self.found:
            what = "waits for the device" if waits(func, args) else ""
            what = what or ("copies between host and device" if _copies(func, (args, kwargs), result) else "")
            self.found = what and f"{func.name()} {what} ({_place()})"
        return result


def waits(func: Any, args: Any) -> bool:
    """Whether an operation reads numbers back to the host, also if only for the size of its result."""
    name = func.overloadpacket.__name__
    if name in INDEXING:
        masked = any(isinstance(at, Tensor) and at.dtype in (torch.bool, torch.uint8) for at in args[1])
        return bool(masked and not (len(args) > 2 and _is_number(args[2])))  # filling in a number needs no size
    return name in FURTHER or bool(UNKNOWN.intersection(func.tags))


def _copies(func: Any, given: Any, result: Any) -> bool:
    tensors = [leaf for leaf in tree_leaves((given, result)) if isinstance(leaf, Tensor)]
    host = [tensor for tensor in tensors if tensor.device.type == "cpu"]
    if not host:  # lift_fresh: a tensor of Python numbers, made on the device
        return str(func.overloadpacket.__name__) == "lift_fresh"
    return len(host) < len(tensors) and not (torch.Tag.pointwise in func.tags and all(map(_is_number, host)))


def _is_number(tensor: Tensor) -> bool:
    """Whether it is a number on the host, which is passed to a kernel as an argument."""
    return tensor.dim() == 0 and tensor.device.type == "cpu"


def _place() -> str:
    """The line of the method or module. The backward pass runs in threads of PyTorch, where it is unknown."""
    frame = inspect.currentframe()
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(OWN):
            return f"{code.co_name}, {Path(code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back
    return "the backward pass"
