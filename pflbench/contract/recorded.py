"""A capture for any device: it records the operations of a step and repeats them, as a CUDA graph does on a GPU.

Like a graph it does not see Python code that branches on a step's numbers, and refuses to read a number back to the host.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

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
                args, kwargs = tree_map(lambda value: made.get(id(value), value), (args, kwargs))
                again = func(*args, **kwargs)
                for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                    if isinstance(old, Tensor):
                        made[id(old)] = new
