"""The user's models, from `FILE.py:NAME` and from installed packages.

A model is a class of `nn.Module`, or a function that returns one. `modules` checks it.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any

from pflbench import plugins
from pflbench.errors import UserError, unknown
from pflbench.plugins import GUIDE, Plugin
from pflbench.spec import OwnModel


def source(code: Plugin) -> OwnModel:
    """Its part of a specification."""
    return OwnModel(path=str(code.path.absolute()) if code.path else None, content=code.sha256)


def record(code: Plugin) -> dict[str, str]:
    """Stored with a run."""
    return {"from": code.place, "name": code.name, "sha256": code.sha256}


def find(text: str, builtin: Collection[str]) -> Plugin | None:
    """The model of `FILE.py:NAME`, `FILE.py` or the name of a package's model; None for a built-in name.

    Raises UserError if it cannot be imported, is no model, or several models have the name.
    """
    if code := plugins.choose("model", text, _is_class, inspect.isfunction):
        if code.name in builtin:
            raise code.error("has the name of a built-in model", f"Rename it, for example my_{code.name}.")
        return _checked(code)
    if code := plugins.named("model", text, text in builtin):
        return _checked(code)
    if text not in builtin:
        raise unknown("model", text, [*builtin, *(one.name for one in plugins.installed("model")), "FILE.py:NAME"])
    return None


def load(name: str, own: OwnModel) -> Plugin:
    """The model of a specification. Raises UserError if its code is missing or has changed."""
    code = plugins.named("model", name) if own.path is None else plugins.choose("model", f"{own.path}:{name}", _is_class)
    if code is None:
        raise UserError(f"Model '{name}' is of a package that is not installed here.", "Install the package that has it.")
    if code.sha256 != own.content:
        raise code.error(
            "has changed: its code, or that of a file that it imports, differs from that of the specification",
            "Restore it, with PYTHONPATH as it was, or start a new run: its results are kept apart from those of the old code.",
        )
    return _checked(code)


def _checked(code: Plugin) -> Plugin:
    from torch import nn

    value = code.value
    if _is_class(value) or (callable(value) and not inspect.isclass(value) and not isinstance(value, nn.Module)):
        return code
    raise code.error(f"is a {type(value).__name__}, no model", f"A model is a class of torch.nn.Module, or a function. {GUIDE}")


def _is_class(value: Any) -> bool:
    from torch import nn

    return inspect.isclass(value) and issubclass(value, nn.Module)
