"""Plug-ins: the user's methods, models and datasets, from Python files and from installed packages (entry points).

They are imported when they are first used. The modules `methods`, `models` and `datasets` define what each kind must be.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from pflbench.errors import UserError
from pflbench.plugins.imports import sha256_of

TRACEBACK = "PFLBENCH_DEBUG=1 shows the traceback."
GUIDE = "The documentation describes it under 'Your own model and data'."

_executed: dict[tuple[Path, str], ModuleType] = {}


@dataclass(frozen=True)
class Plugin:
    """A method, model or dataset of a Python file (`path`, `defined`, `content`), or of an installed package (`point`).

    kind: such as "model". place: the file, or the package and its version.
    """

    kind: str
    name: str
    place: str
    path: Path | None = None
    defined: Any = None
    content: str = ""
    point: EntryPoint | None = None

    @cached_property
    def value(self) -> Any:
        """The class or function. Raises UserError if its package cannot be imported."""
        if self.point is None:
            return self.defined
        try:
            return self.point.load()
        except Exception as error:
            raise self.error(f"cannot be imported: {in_a_line(error)}", TRACEBACK) from error

    @cached_property
    def sha256(self) -> str:
        """Identifies the code: of a file as from `execute`, of a package its version and the file of the class or function."""
        if self.point is None:
            return self.content
        try:
            code = Path(inspect.getsourcefile(self.value) or "").read_bytes()
        except (OSError, TypeError):
            code = b""
        return hashlib.sha256(f"{self.place}\0{self.point.value}\0".encode() + code).hexdigest()

    def where(self, error: BaseException) -> str:
        """The line of the file in an error's traceback, as ' (line 3)'; empty if the file is not in it."""
        module = sys.modules.get(getattr(self.value, "__module__", ""))
        return _where(error, str(getattr(module, "__file__", None)))

    def error(self, reason: str, hint: str) -> UserError:
        return UserError(f"{self.kind.capitalize()} '{self.name}' of {self.place} {reason}.", hint)


def in_file(text: str) -> tuple[Path, str | None] | None:
    """Path and name of `FILE.py:NAME` or `FILE.py`; None for any other text."""
    at = re.fullmatch(r"(?P<path>.+\.py)(:(?P<name>[^:]*))?", text)
    return None if at is None else (Path(at["path"]).expanduser(), at["name"] or None)


def choose(kind: str, text: str, usual: Callable[[Any], bool], other: Callable[[Any], bool] | None = None) -> Plugin | None:
    """The plug-in of `FILE.py:NAME`, or of a `FILE.py` that has one usual object; None for any other text.

    usual, other: predicates such as inspect.isclass, for what may be meant. Raises UserError.
    """
    at = in_file(text)
    if at is None:
        return None
    path, name = at
    module, sha256 = execute(path)
    likely = _public(module, usual)
    offered = [f"{path}:{one}" for one in (*likely, *(_public(module, other) if other else ()))]
    hint = f"Write {' or '.join(offered[:5])}." if offered else GUIDE
    if not name and len(likely) != 1:
        raise UserError(f"{path} does not say which of its {kind}s is meant.", hint)
    name = name or likely[0]
    if not hasattr(module, name):
        raise UserError(f"{path} has no '{name}'.", hint)
    return Plugin(kind, name, str(path), path, getattr(module, name), sha256)


def named(kind: str, name: str, builtin: bool = False, among: Sequence[Plugin] | None = None) -> Plugin | None:
    """The plug-in of that name; None without one. among: instead of all of installed packages.

    Raises UserError for a name that several plug-ins have, or a plug-in and what is built in.
    """
    found = [one for one in (installed(kind) if among is None else among) if one.name == name]
    places = [*(["built into pflbench"] if builtin else []), *(f"of {one.place}" for one in found)]
    if len(places) > 1:
        raise UserError(f"The name '{name}' stands for several {kind}s: {' and '.join(places)}.", "Rename or remove one of them.")
    return found[0] if found else None


def execute(path: Path) -> tuple[ModuleType, str]:
    """Executes a Python file, once for each hash of it and of the files that it imports. Returns the module and the hash.

    Raises UserError if it cannot be read or executed.
    """
    try:
        source = path.read_bytes()
    except OSError as error:
        raise UserError(f"The plug-in {path} cannot be read: {error.strerror}.", "Give the path of a Python file.") from None
    sha256 = sha256_of(path, source)
    at = path.resolve(), sha256
    if at not in _executed:
        _executed[at] = _module(path, source, f"pflbench_plugin_{sha256[:16]}")
    return _executed[at], sha256


def installed(kind: str) -> tuple[Plugin, ...]:
    """The methods, models or datasets of installed packages, by name: the entry points `pflbench.methods` and so on."""
    return _installed_on(kind, tuple(sys.path))


def line_of(error: BaseException) -> str | None:
    """The last line of a plug-in's file in an error's traceback, as "own.py, line 3"; None if none of them is in it."""
    files = {module.__file__ for module in _executed.values()}
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    return f"{lines[-1].filename}, line {lines[-1].lineno}" if lines else None


def described(error: BaseException) -> str:
    """A UserError as it is; another one on one line, after the line of a plug-in's file where it was raised, if it was."""
    if isinstance(error, UserError):
        return str(error)
    line = line_of(error)
    return f"{line}: {in_a_line(error)}" if line else in_a_line(error)


def in_a_line(error: BaseException) -> str:
    """The error's type and message on one line, without a final full stop."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {' '.join(text.split())[:300]}".rstrip(": .")


@cache
def _installed_on(kind: str, search: tuple[str, ...]) -> tuple[Plugin, ...]:
    """Cached: reading all distributions takes a few hundredths of a second, and names are looked up often."""
    points = sorted(entry_points(group=f"pflbench.{kind}s"))
    return tuple(
        Plugin(kind, point.name, f"{point.dist.name} {point.dist.version}", point=point) for point in points if point.dist
    )


def _public(module: ModuleType, kind: Callable[[Any], bool]) -> list[str]:
    """Public names that the file itself defines."""
    own = [(name, value) for name, value in vars(module).items() if kind(value) and value.__module__ == module.__name__]
    return [name for name, value in own if not value.__name__.startswith("_")]


def _module(path: Path, source: bytes, name: str) -> ModuleType:
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module  # dataclasses look up their module by its name
    try:
        exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UserError(
            f"The plug-in {path} cannot be imported{_where(error, str(path))}: {in_a_line(error)}.", TRACEBACK
        ) from error
    return module


def _where(error: BaseException, file: str) -> str:
    if isinstance(error, SyntaxError) and error.filename == file:
        return f" (line {error.lineno})"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f" (line {lines[-1]})" if lines else ""
