"""The user's models, from `FILE.py:NAME` and from installed packages.

A model is a class of `nn.Module`, or a function that returns one. `modules` checks it.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pflbench import plugins
from pflbench.errors import UserError, unknown
from pflbench.plugins import Plugin, PythonFile
from pflbench.spec import OwnModel

_LIKE = "A model is a class of torch.nn.Module, or a function that gives one."


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
    if asked := plugins.asked_for(text, "--model"):
        code = _of_file(*asked)
        if code.name in builtin:
            raise UserError(
                f"{code.place} calls its model '{code.name}', as a model is called that is built in.",
                f"Rename it, for example my_{code.name}.",
            )
        return code
    if found := plugins.of_package("model", text, text in builtin):
        return _checked(found.plugin(), found.who)
    if text not in builtin:
        raise unknown("model", text, [*builtin, *(one.name for one in plugins.installed("model")), "FILE.py:NAME"])
    return None


def load(name: str, own: OwnModel) -> Plugin:
    """The model of a specification. Raises UserError if its code is missing or has changed."""
    if own.path is not None:
        path = Path(own.path)
        if plugins.content(path) != own.content:
            raise _changed(str(path))
        return _of_file(plugins.execute(path), name)
    found = plugins.of_package("model", name)
    if found is None:
        raise UserError(f"Model '{name}' is of a package that is not installed here.", "Install the package that has it.")
    code = _checked(found.plugin(), found.who)
    if code.sha256 != own.content:
        raise _changed(code.place)
    return code


def _changed(place: str) -> UserError:
    return UserError(
        f"{place} has changed: its code, or that of a file that it imports, differs from that of the specification.",
        "Restore it, with PYTHONPATH as it was, or start a new run: its results are kept apart from those of the old code.",
    )


def _of_file(file: PythonFile, asked: str | None) -> Plugin:
    code = file.choose(asked, "model", file.own(_is_class), file.own(inspect.isfunction), _LIKE)
    return _checked(code, f"'{code.name}' of {file.path}")


def _checked(code: Plugin, who: str) -> Plugin:
    if not _makes(code.value):
        raise UserError(f"{who} is {_kind(code.value)}, no model.", _LIKE)
    return code


def _makes(value: Any) -> bool:
    from torch import nn

    return _is_class(value) if inspect.isclass(value) else callable(value) and not isinstance(value, nn.Module)


def _is_class(value: Any) -> bool:
    from torch import nn

    return inspect.isclass(value) and issubclass(value, nn.Module)


def _kind(value: Any) -> str:
    return f"a class of {value.__bases__[0].__name__}" if inspect.isclass(value) else f"a {type(value).__name__}"
