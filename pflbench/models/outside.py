"""Models from outside: of a file (`FILE.py:NAME`) and of installed packages (entry points of the group `pflbench.models`).

A model is a class of `nn.Module`, or a function that gives one. What it must keep, `models.own` checks.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pflbench import plugins
from pflbench.errors import UserError, unknown
from pflbench.spec import OwnModel

GROUP = "pflbench.models"
_LIKE = "A model is a class of torch.nn.Module, or a function that gives one: see docs/own-model.md."


@dataclass(frozen=True)
class OwnCode:
    """What makes a model. place: where it comes from, for a reader; file: where its errors are looked for."""

    name: str
    place: str
    make: Callable[..., Any]
    source: OwnModel
    file: plugins.PythonFile | None = None

    @property
    def who(self) -> str:
        return f"Model '{self.name}' of {self.place}"

    def where(self, error: BaseException) -> str:
        """The line of the model's file that led to an error, if it is of one."""
        return self.file.where(error) if self.file else ""

    def record(self) -> dict[str, str]:
        """What is stored with a run."""
        return {"from": self.place, "name": self.name, "sha256": self.source.content}


def packaged() -> tuple[plugins.Installed, ...]:
    """The models of installed packages, by name."""
    return plugins.installed(GROUP, "model")


def find(text: str, builtin: Any) -> OwnCode | None:
    """What `FILE.py:NAME`, `FILE.py` or the name of a package's model stands for; None of the names that are built in.

    Raises UserError for what cannot be read or imported, is no model, or has a name that stands for several.
    """
    if asked := plugins.asked_for(text, "--model"):
        return _of_file(*asked, builtin)
    found = [one for one in packaged() if one.name == text]
    plugins.refuse_several("model", text, text in builtin, [one.place for one in found])
    if found:
        return _of_package(found[0])
    if text not in builtin:
        names = [*builtin, *(one.name for one in packaged()), "FILE.py:NAME"]
        raise unknown("model", text, names)
    return None


def load(name: str, source: OwnModel) -> OwnCode:
    """The code of a specification. Raises UserError where it is no longer there, or no longer the same."""
    if source.path is not None:
        path = Path(source.path)
        if plugins.content(path) != source.content:
            raise _changed(str(path))
        return _of_file(plugins.execute(path), name)
    for one in packaged():
        if one.name == name:
            found = _of_package(one)
            if found.source != source:
                raise _changed(one.place)
            return found
    raise UserError(f"Model '{name}' is of a package that is not installed here.", "Install the package that has it.")


def _changed(place: str) -> UserError:
    return UserError(
        f"{place} is not what it was: its code, or that of a file that it imports, differs from that of the specification.",
        "Restore it, with PYTHONPATH as it was, or start a new run: its results will stand apart from those of the old code.",
    )


def _of_file(file: plugins.PythonFile, asked: str | None, builtin: Any = ()) -> OwnCode:
    name, make = file.choose(asked, "model", file.own(_is_class), file.own(inspect.isfunction), _LIKE)
    if name in builtin:
        raise UserError(
            f"{file.path} calls its model '{name}', as a model is called that is built in.", f"Rename it, for example my_{name}."
        )
    if not _makes(make):
        raise UserError(f"'{name}' of {file.path} is {_kind(make)}, no model.", _LIKE)
    return OwnCode(name, str(file.path), make, OwnModel(path=str(file.path.absolute()), content=file.sha256), file)


def _of_package(one: plugins.Installed) -> OwnCode:
    """Its content is the package's version and the file in which it stands: a release or an edit makes another model."""
    make = one.load()
    if not _makes(make):
        raise UserError(f"{one.who} is {_kind(make)}, no model.", _LIKE)
    try:
        code = Path(inspect.getsourcefile(make) or "").read_bytes()
    except (OSError, TypeError):
        code = b""
    content = hashlib.sha256(f"{one.place}\0{one.point.value}\0".encode() + code).hexdigest()
    return OwnCode(one.name, one.place, make, OwnModel(content=content))


def _makes(value: Any) -> bool:
    from torch import nn

    return _is_class(value) if inspect.isclass(value) else callable(value) and not isinstance(value, nn.Module)


def _is_class(value: Any) -> bool:
    from torch import nn

    return inspect.isclass(value) and issubclass(value, nn.Module)


def _kind(value: Any) -> str:
    return f"a class of {value.__bases__[0].__name__}" if inspect.isclass(value) else f"a {type(value).__name__}"
