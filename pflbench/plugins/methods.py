"""The user's methods, from installed packages and single files.

Files are executed to find the names of their methods.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, NoneType
from typing import TYPE_CHECKING, Any

from pflbench import plugins
from pflbench.errors import UserError
from pflbench.methods import cards
from pflbench.methods.cards import Card
from pflbench.plugins import Plugin

if TYPE_CHECKING:
    from pflbench.methods.base import Method

VARIABLE = "PFLBENCH_PLUGINS"  # files, separated as in PATH
FACTS = ("title", "authors", "venue", "algorithm", "category")
NAMES = "A method's name has lower-case letters, digits and hyphens, and begins with a letter."
COMPLETE = "`pflbench methods new` writes a complete one."

_plugins: dict[Path, tuple[Plugin, ...]] = {}


def load(one: Plugin) -> type[Method]:
    """The class. Raises UserError if it cannot be imported or is no method."""
    cls: type[Method] = one.value
    if lacks := _lacks(cls):
        raise one.error(lacks, COMPLETE)
    return cls


def card(one: Plugin) -> Card:
    """Its card; blank if it is broken, which is reported when the method is used."""
    try:
        return cards.of(load(one))
    except UserError:
        return Card()


def record(one: Plugin) -> dict[str, str]:
    """Stored with a run, besides its specification."""
    if one.point is None:
        return {"file": str(Path(one.place).absolute()), "sha256": one.sha256, "title": load(one).title}
    return {"package": one.place, "entry point": one.point.value, "title": load(one).title}


def found() -> list[Plugin]:
    """All methods: of installed packages by name, then of PFLBENCH_PLUGINS and of the files that were plugged in."""
    for path in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        plug_in(Path(path))
    return [*plugins.installed("method"), *(plugin for of_file in _plugins.values() for plugin in of_file)]


def find(name: str) -> Plugin | None:
    """The user's method of that name, if there is one. Raises UserError for a name of several methods."""
    from pflbench.methods import METHODS

    return plugins.named("method", name, name in METHODS, found())


def plug_in(path: Path) -> tuple[str, ...]:
    """Makes a file's methods available to this process and returns their names. Each file is read once.

    Raises UserError for a file that is missing, cannot be imported or has no method.
    """
    real = path.resolve()
    if real not in _plugins:
        _plugins[real] = _read(path)
    return tuple(plugin.name for plugin in _plugins[real])


@contextmanager
def plugged_in(paths: Sequence[Path]) -> Iterator[None]:
    """As `plug_in`, until the end of the block."""
    before = dict(_plugins)
    try:
        for path in paths:
            plug_in(path)
        yield
    finally:
        _plugins.clear()
        _plugins.update(before)


def is_name(text: str) -> bool:
    """Whether a text can be a method's name: lower case, digits, hyphens."""
    return re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", text) is not None


def _read(path: Path) -> tuple[Plugin, ...]:
    """The file's methods; one without `name` has the file's."""
    module, sha256 = plugins.execute(path)
    named = {cls: vars(cls).get("name", path.stem.lower().replace("_", "-")) for cls in _methods(path, module)}
    for cls, name in named.items():
        if not is_name(name):
            raise UserError(f"The plug-in {path} calls its method {cls.__name__} '{name}'.", NAMES)
        if lacks := _lacks(cls):
            raise UserError(f"In the plug-in {path}, {cls.__name__} {lacks}.", COMPLETE)
    return tuple(Plugin("method", name, str(path), path, cls, sha256) for cls, name in named.items())


def _methods(path: Path, module: ModuleType) -> list[type[Method]]:
    """The decorated methods that are defined in the module itself, in its order."""
    from pflbench.methods.base import Method

    own = [v for v in vars(module).values() if inspect.isclass(v) and v.__module__ == module.__name__ and issubclass(v, Method)]
    bases = {base for cls in own for base in cls.__mro__[1:] if inspect.isabstract(base)}
    classes = [cls for cls in dict.fromkeys(own) if _is_decorated(cls) and cls not in bases]
    if not classes:
        undecorated = f" {own[0].__name__} is not decorated with @method." if own else ""
        raise UserError(f"The plug-in {path} has no method.{undecorated}", f"A method is a class with @method; {COMPLETE}")
    return classes


def _lacks(cls: Any) -> str:
    """Why a class is no method; empty if it is one."""
    from pydantic.fields import FieldInfo

    from pflbench.methods.base import Method

    if not (inspect.isclass(cls) and issubclass(cls, Method) and _is_decorated(cls)):
        return "is no class of pflbench.methods.base.Method, decorated with @method"
    if cls.__abstractmethods__:
        return f"does not define {', '.join(sorted(cls.__abstractmethods__))}"
    for name, value in vars(cls).items():
        if isinstance(value, FieldInfo) and name not in vars(cls)["__pydantic_fields__"]:
            return f"gives {name} no type: write {name}: float = hyper(...)"
    if type(cls.version) is not int:
        return f"has version {cls.version!r}, which is no whole number"
    for name, field in vars(cls)["__pydantic_fields__"].items():
        if name in vars(Method):
            return f"has a hyperparameter '{name}', which is the name of a part of every method"
        if not isinstance(field.default, (bool, int, float, str, NoneType)):
            return f"gives {name} a {type(field.default).__name__} as default: it must be a number, a word, true, false or None"
    missing = [fact for fact in FACTS if not hasattr(cls, fact)]
    return f"does not say its {', '.join(missing)}" if missing else ""


def _is_decorated(cls: type) -> bool:
    return "__pydantic_fields__" in vars(cls)
