"""A capture for any device: it records the operations of a step and repeats them, as a CUDA graph does on a GPU.

Like a graph it does not see Python code that branches on a step's numbers, and refuses to read a number back to the host.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pflbench.engine.batched.program import Call, Capture
from pflbench.engine.batched.waits import waits


class Recorded(Capture):
    name = "recorded"

    def __call__(self, step: Call) -> Call:
        tape = _Tape()
        with tape:
            step()
        return tape.replay


class _Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if waits(func, args):
            raise RuntimeError(f"operation not permitted while a step is captured: {func}")
        result = func(*args, **(kwargs or {}))
        # The tensors are kept: as long as they live, none of them is taken for another one.
        self.operations.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        made: dict[int, Tensor] = {}
        with torch.no_grad():
            for func, args, kwargs, result in self.operations:
                again = func(*_now(args, made), **{key: _now(value, made) for key, value in kwargs.items()})
                for old, new in zip(_leaves(result), _leaves(again), strict=True):
                    if isinstance(old, Tensor):
                        made[id(old)] = new


def _now(value: Any, made: dict[int, Tensor]) -> Any:
    """The value with the tensors that this replay has made in place of the recorded ones, in lists and tuples too."""
    if isinstance(value, list | tuple):
        return type(value)(_now(part, made) for part in value)
    return made.get(id(value), value)


def _leaves(result: Any) -> list[Any]:
    """The tensors among an operation's results."""
    return [leaf for part in result for leaf in _leaves(part)] if isinstance(result, list | tuple) else [result]
