"""Models from outside: of a file (`FILE.py:NAME`) and of installed packages (entry points of the group `pflbench.models`).

A model is a class of `nn.Module`, or a function that gives one. What it must keep, `models.own` checks.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pflbench import plugins
from pflbench.errors import UserError, unknown
from pflbench.spec import OwnModel

GROUP = "pflbench.models"
_FILE = re.compile(r"(?P<path>.+\.py)(:(?P<name>[^:]*))?")
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
    if at := _FILE.fullmatch(text):
        return _of_file(Path(at["path"]).expanduser(), at["name"], builtin)
    found = [one for one in packaged() if one.name == text]
    if len(found) + (text in builtin) > 1:
        places = " and ".join([*(["built into pflbench"] if text in builtin else []), *(f"of {one.place}" for one in found)])
        raise UserError(f"The name '{text}' stands for several models: {places}.", "Uninstall one of the packages, or rename it.")
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
        return _named(path, plugins.execute(path), name)
    for one in packaged():
        if one.name == name:
            found = _of_package(one)
            if found.source != source:
                raise _changed(one.place)
            return found
    raise UserError(f"Model '{name}' is of a package that is not installed here.", "Install the package that has it.")


def _changed(place: str) -> UserError:
    return UserError(
        f"{place} is not what it was: its code differs from that of the specification.",
        "Restore it, or start a new run: its results will stand apart from those of the old code.",
    )


def _of_file(path: Path, name: str | None, builtin: Any) -> OwnCode:
    if not path.exists():
        raise UserError(f"There is no file {path}.", "Write --model FILE.py:NAME, with the path of a Python file.")
    file = plugins.execute(path)
    name = name or _only(path, file.module)
    if name in builtin:
        raise UserError(
            f"{path} calls its model '{name}', as a model is called that is built in.", f"Rename it, for example my_{name}."
        )
    return _named(path, file, name)


def _named(path: Path, file: plugins.PythonFile, name: str) -> OwnCode:
    make = getattr(file.module, name, None)
    if make is None:
        raise UserError(f"{path} has no '{name}'.", _offer(path, file.module))
    if not _makes(make):
        raise UserError(f"'{name}' of {path} is {_kind(make)}, no model.", _LIKE)
    return OwnCode(name, str(path), make, OwnModel(path=str(path.absolute()), content=file.sha256), file)


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


def _only(path: Path, module: ModuleType) -> str:
    """The model of a file that has one."""
    names = _classes(module)
    if len(names) == 1:
        return names[0]
    raise UserError(f"{path} does not say which of its models is meant.", _offer(path, module))


def _offer(path: Path, module: ModuleType) -> str:
    names = [*_classes(module), *(name for name, value in vars(module).items() if _is_own(module, value, inspect.isfunction))]
    return f"Write {' or '.join(f'{path}:{name}' for name in names[:5])}." if names else _LIKE


def _classes(module: ModuleType) -> list[str]:
    from torch import nn

    return [
        name for name, value in vars(module).items() if _is_own(module, value, inspect.isclass) and issubclass(value, nn.Module)
    ]


def _is_own(module: ModuleType, value: Any, kind: Callable[[Any], bool]) -> bool:
    """Whether it is defined in the module itself."""
    return kind(value) and value.__module__ == module.__name__ and not value.__name__.startswith("_")


def _makes(value: Any) -> bool:
    from torch import nn

    return issubclass(value, nn.Module) if inspect.isclass(value) else callable(value) and not isinstance(value, nn.Module)


def _kind(value: Any) -> str:
    return f"a class of {value.__bases__[0].__name__}" if inspect.isclass(value) else f"a {type(value).__name__}"
