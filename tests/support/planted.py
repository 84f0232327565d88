"""Faults planted in the package: a function with one line of it changed, in memory alone."""

from __future__ import annotations
import __future__

import inspect
import textwrap
from typing import Any

import pytest


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
