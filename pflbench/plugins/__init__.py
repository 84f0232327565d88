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
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from pflbench.errors import UserError, require_regular
from pflbench.plugins.imports import sha256_of

TRACEBACK = "PFLBENCH_DEBUG=1 shows the traceback."

_IN_FILE = re.compile(r"(?P<path>.+\.py)(:(?P<name>[^:]*))?")
_executed: dict[tuple[Path, str], ModuleType] = {}


@dataclass(frozen=True)
class PythonFile:
    """An executed file. sha256: as from `content`."""

    path: Path
    sha256: str
    module: ModuleType

    def own(self, kind: Callable[[Any], bool]) -> list[str]:
        """Public names that the file itself defines. kind: a predicate such as inspect.isclass."""
        return [
            name
            for name, value in vars(self.module).items()
            if kind(value) and value.__module__ == self.module.__name__ and not value.__name__.startswith("_")
        ]

    def choose(self, name: str | None, kind: str, usual: Sequence[str], others: Sequence[str], like: str) -> Plugin:
        """The object of that name; without a name the only one of `usual`. others: further names that may be chosen.

        kind, like: for messages, such as "model" and a sentence that describes one. Raises UserError.
        """
        offered = [f"{self.path}:{one}" for one in (*usual, *others)][:5]
        offer = f"Write {' or '.join(offered)}." if offered else like
        if not name and len(usual) != 1:
            raise UserError(f"{self.path} does not say which of its {kind}s is meant.", offer)
        name = name or usual[0]
        if not hasattr(self.module, name):
            raise UserError(f"{self.path} has no '{name}'.", offer)
        return Plugin(kind, name, str(self.path), getattr(self.module, name), self.sha256, self.path)


@dataclass(frozen=True)
class Plugin:
    """A method, model or dataset of a file or an installed package.

    kind: such as "model". place: its origin, for a reader; path: of its file. sha256: identifies its code.
    """

    kind: str
    name: str
    place: str
    value: Any
    sha256: str
    path: Path | None = None

    @property
    def who(self) -> str:
        return f"{self.kind.capitalize()} '{self.name}' of {self.place}"

    def where(self, error: BaseException) -> str:
        """The line of the file in an error's traceback, as ' (line 3)'; empty if the file is not in it."""
        module = sys.modules.get(getattr(self.value, "__module__", ""))
        return _where(error, str(getattr(module, "__file__", None)))

    def load(self) -> Any:
        return self.value


@dataclass(frozen=True)
class Installed:
    """An entry point of an installed package, not imported yet."""

    kind: str
    name: str
    point: EntryPoint

    @property
    def place(self) -> str:
        """The package and its version."""
        return f"{self.point.dist.name} {self.point.dist.version}" if self.point.dist else self.point.value

    @property
    def who(self) -> str:
        return f"{self.kind.capitalize()} '{self.name}' of the installed package {self.place}"

    def load(self) -> Any:
        """Raises UserError if it cannot be imported."""
        try:
            return self.point.load()
        except Exception as error:
            raise UserError(f"{self.who} cannot be imported: {in_a_line(error)}.", TRACEBACK) from error

    def plugin(self) -> Plugin:
        """The imported plug-in; its hash is that of the package's version and of its file. Raises as `load`."""
        value = self.load()
        try:
            code = Path(inspect.getsourcefile(value) or "").read_bytes()
        except (OSError, TypeError):
            code = b""
        sha256 = hashlib.sha256(f"{self.place}\0{self.point.value}\0".encode() + code).hexdigest()
        return Plugin(self.kind, self.name, self.place, value, sha256)


def in_file(text: str) -> tuple[Path, str | None] | None:
    """Path and name of `FILE.py:NAME` or `FILE.py`; None for any other text."""
    at = _IN_FILE.fullmatch(text)
    return None if at is None else (Path(at["path"]).expanduser(), at["name"] or None)


def asked_for(text: str, option: str) -> tuple[PythonFile, str | None] | None:
    """As `in_file`, with the file executed. option: of the command line. Raises UserError, also for a missing file."""
    at = in_file(text)
    if at is None:
        return None
    if not at[0].exists():
        raise UserError(f"There is no file {at[0]}.", f"Write {option} FILE.py:NAME, with the path of a Python file.")
    return execute(at[0]), at[1]


def refuse_several(kind: str, name: str, builtin: bool, others: Sequence[str]) -> None:
    """Raises UserError for a name that several have. others: the packages and files that offer it."""
    places = [*(["built into pflbench"] if builtin else []), *(f"of {place}" for place in others)]
    if len(places) > 1:
        raise UserError(
            f"The name '{name}' stands for several {kind}s: {' and '.join(places)}.",
            "Uninstall one of the packages, or rename it.",
        )


def of_package(kind: str, name: str, builtin: bool = False) -> Installed | None:
    """The entry point of a name, if there is one. Raises UserError for a name that several packages offer."""
    found = [one for one in installed(kind) if one.name == name]
    refuse_several(kind, name, builtin, [one.place for one in found])
    return found[0] if found else None


def content(path: Path) -> str:
    """The SHA-256 of a file and of the files that it imports from its folder, in hex. Raises UserError if unreadable."""
    return sha256_of(path, _source(path), _source)


def execute(path: Path) -> PythonFile:
    """Executes a Python file, once for each content. Raises UserError if it cannot be read or executed."""
    source = _source(path)
    sha256 = sha256_of(path, source, _source)
    at = path.resolve(), sha256
    if at not in _executed:
        _executed[at] = _module(path, source, f"pflbench_plugin_{sha256[:16]}")
    return PythonFile(path, sha256, _executed[at])


def installed(kind: str) -> tuple[Installed, ...]:
    """The methods, models or datasets of installed packages, by name: the entry points `pflbench.methods` and so on."""
    return _installed_on(kind, tuple(sys.path))


def in_a_line(error: BaseException) -> str:
    """The error's type and message on one line, without a final full stop."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {' '.join(text.split())[:300]}".rstrip(": .")


@cache
def _installed_on(kind: str, search: tuple[str, ...]) -> tuple[Installed, ...]:
    """Cached: reading all distributions takes a few hundredths of a second, and names are looked up often."""
    return tuple(Installed(kind, point.name, point) for point in sorted(entry_points(group=f"pflbench.{kind}s")))


def _source(path: Path) -> bytes:
    require_regular(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"The plug-in {path} cannot be read: {error.strerror}.", "Give the path of a Python file.") from None


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
