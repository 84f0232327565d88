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
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pflbench import plugins
from pflbench.errors import UserError
from pflbench.methods import cards
from pflbench.methods.cards import Card
from pflbench.plugins import Installed, Plugin

if TYPE_CHECKING:
    from pflbench.methods.base import Method

VARIABLE = "PFLBENCH_PLUGINS"  # files, separated as in PATH
FACTS = ("title", "authors", "venue", "algorithm", "category")

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
NAMES = "A method's name has lower-case letters, digits and hyphens, and begins with a letter."
_plugins: dict[Path, tuple[Plugin, ...]] = {}


def load(one: Installed | Plugin) -> type[Method]:
    """The class. Raises UserError if it cannot be imported or is no method."""
    cls: type[Method] = one.load()
    if isinstance(one, Installed) and (lacks := _lacks(cls)):
        raise UserError(f"{one.who} is no method: {one.point.value} {lacks}.")
    return cls


def card(one: Installed | Plugin) -> Card:
    """Its card; blank if it is broken, which is reported when the method is used."""
    try:
        return cards.of(load(one))
    except UserError:
        return Card()


def record(one: Installed | Plugin) -> dict[str, str]:
    """Stored with a run, besides its specification."""
    title = load(one).title
    if isinstance(one, Plugin):
        return {"file": str(Path(one.place).absolute()), "sha256": one.sha256, "title": title}
    return {"package": one.place, "entry point": one.point.value, "title": title}


def found() -> list[Installed | Plugin]:
    """All methods: of installed packages by name, then of PFLBENCH_PLUGINS and of the files that were plugged in."""
    for path in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        plug_in(Path(path))
    return [*_packaged(), *(plugin for of_file in _plugins.values() for plugin in of_file)]


def find(name: str) -> Installed | Plugin | None:
    """The user's method of that name, if there is one. Raises UserError for a name of several methods."""
    from pflbench.methods import METHODS

    builtin = name in METHODS
    candidates = [method for method in (_packaged() if builtin else found()) if method.name == name]
    plugins.refuse_several("method", name, builtin, [method.place for method in candidates])
    return candidates[0] if candidates else None


def plug_in(path: Path) -> tuple[str, ...]:
    """Makes a file's methods available to this process and returns their names. Each file is read once.

    Raises UserError for a file that is missing, cannot be imported or has no method, and for names that are taken.
    """
    real = path.resolve()
    if real not in _plugins:
        found = _read(path)
        _refuse_taken(path, found)
        _plugins[real] = found
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
    return _NAME.fullmatch(text) is not None


def _packaged() -> tuple[Installed, ...]:
    for packaged in plugins.installed("method"):
        if not is_name(packaged.name):
            raise UserError(f"The installed package {packaged.place} calls a method '{packaged.name}'.", NAMES)
    return plugins.installed("method")


def _refuse_taken(path: Path, found: Sequence[Plugin]) -> None:
    from pflbench.methods import METHODS

    taken = dict.fromkeys(METHODS, "a built-in method")
    taken |= {packaged.name: f"a method of the installed package {packaged.place}" for packaged in _packaged()}
    taken |= {plugin.name: f"the method of {plugin.place}" for others in _plugins.values() for plugin in others}
    for plugin in found:
        if plugin.name in taken:
            raise UserError(
                f"The plug-in {path} calls its method {plugin.value.__name__} '{plugin.name}', as {taken[plugin.name]} is.",
                f'Rename the file, or give the class another name: name = "my-{plugin.name}".',
            )
        taken[plugin.name] = "another one of that file"


def _read(path: Path) -> tuple[Plugin, ...]:
    file = plugins.execute(path)
    classes = _methods(path, file.module)
    default = path.stem.lower().replace("_", "-")
    if len(classes) > 1:
        for cls in classes:
            if "name" not in vars(cls):
                raise UserError(
                    f"The plug-in {path} has {len(classes)} methods, but {cls.__name__} does not say its name.",
                    'Each needs one of its own: a class attribute name = "my-method".',
                )
    found = tuple(Plugin("method", vars(cls).get("name", default), str(path), cls, file.sha256, path) for cls in classes)
    for plugin in found:
        if not isinstance(plugin.name, str) or not is_name(plugin.name):
            raise UserError(f"The plug-in {path} calls its method {plugin.value.__name__} '{plugin.name}'.", NAMES)
    return found


def _methods(path: Path, module: ModuleType) -> list[type[Method]]:
    """The decorated methods that are defined in the module itself, in its order."""
    from pflbench.methods.base import Method

    own = [v for v in vars(module).values() if inspect.isclass(v) and v.__module__ == module.__name__ and issubclass(v, Method)]
    bases = {base for cls in own for base in cls.__mro__[1:] if inspect.isabstract(base)}
    classes = [cls for cls in dict.fromkeys(own) if _is_decorated(cls) and cls not in bases]
    if not classes:
        undecorated = f" {own[0].__name__} is not decorated with @method." if own else ""
        raise UserError(
            f"The plug-in {path} has no method.{undecorated}",
            "A method is a class of pflbench.methods.base.Method, decorated with @method; `pflbench methods new` writes one.",
        )
    for cls in classes:
        lacks = _lacks(cls)
        if lacks:
            raise UserError(f"In the plug-in {path}, {cls.__name__} {lacks}.", "`pflbench methods new` writes a complete one.")
    return classes


def _lacks(cls: Any) -> str:
    """Why a class is no method; empty if it is one."""
    from pflbench.methods.base import Method

    if not (inspect.isclass(cls) and issubclass(cls, Method)):
        return "is no class of pflbench.methods.base.Method"
    if not _is_decorated(cls):
        return "is not decorated with @method"
    if cls.__abstractmethods__:
        return f"does not define {', '.join(sorted(cls.__abstractmethods__))}"
    from pydantic.fields import FieldInfo

    for name, value in vars(cls).items():
        if isinstance(value, FieldInfo) and name not in vars(cls)["__pydantic_fields__"]:
            return f"gives {name} no type: write {name}: float = hyper(...)"
    missing = [fact for fact in FACTS if not hasattr(cls, fact)]
    return f"does not say its {', '.join(missing)}" if missing else ""


def _is_decorated(cls: type) -> bool:
    return "__pydantic_fields__" in vars(cls)
