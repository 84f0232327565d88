"""Faults planted in the package: a function with one line of it changed, in memory alone."""

from __future__ import annotations
import __future__

import inspect
import textwrap
from typing import Any

import pytest

from pflbench.engine.batched.batched_executor import BatchedExecutor
from pflbench.engine.batched.program import Graph, Program

# What `plant` takes: faults that show only where clients make unequal steps, rates change, or memory runs out.
_RATE = "lr = None if isinstance(request.lr, Tensor) else request.lr"
_ADDED = "self._graphs.add(graph)"
FROZEN_RATE = (BatchedExecutor, "_sgd", _RATE, "lr = vars(self).setdefault('first_rate', float(request.lr))")
ONE_STEP_MORE = (Program, "_set", "self.finished_masks[block.first]", "self.finished_masks[min(block.first + 1, self.count)]")
OTHER_STATISTICS = (BatchedExecutor, "_own_step", "_keep(b[:, of], after, finished)", "_keep(b[:, 0], after, finished)")
DEAD_POOL = (Graph, "__call__", _ADDED, f"{_ADDED}; self._pool = lambda kept=graph.pool(): kept")


def plant(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, old: str, new: str) -> None:
    """Puts `new` in place of `old` in a function of a module or class, which must have it once, until the test is over."""
    found = vars(owner)[name]
    function = found.fget if isinstance(found, property) else found
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{name} has changed: plant this fault anew"
    code = compile(source.replace(old, new), f"<{name} with a fault>", "exec", __future__.annotations.compiler_flag)
    made: dict[str, Any] = {}
    exec(code, inspect.unwrap(function).__globals__, made)
    monkeypatch.setattr(owner, name, made[name])
