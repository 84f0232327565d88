"""Code from outside the package, whatever it is for: single Python files, and entry points of installed packages.

Nothing is imported before it is asked for. What a file or a package has to offer, the rooms say: methods, models, data.
"""

from __future__ import annotations

import hashlib
import sys
import traceback
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from pflbench.errors import UserError

TRACEBACK = "PFLBENCH_DEBUG=1 shows the traceback."

_executed: dict[tuple[Path, str], ModuleType] = {}


@dataclass(frozen=True)
class PythonFile:
    """A file that was executed. sha256: of what was executed, which an import might have taken from an older cache."""

    path: Path
    sha256: str
    module: ModuleType

    def where(self, error: BaseException) -> str:
        """The line of this file that led to an error: ' (line 3)'; nothing where it is none of this file."""
        return _where(error, str(self.module.__file__))


@dataclass(frozen=True)
class Installed:
    """What an installed package offers under a name. kind: what it should be, such as "model"."""

    kind: str
    name: str
    point: EntryPoint

    @property
    def place(self) -> str:
        """Where it comes from, for a reader: the package and its version."""
        return f"{self.point.dist.name} {self.point.dist.version}" if self.point.dist else self.point.value

    @property
    def who(self) -> str:
        return f"{self.kind.capitalize()} '{self.name}' of the installed package {self.place}"

    def load(self) -> Any:
        """Raises UserError where it cannot be imported."""
        try:
            return self.point.load()
        except Exception as error:
            raise UserError(f"{self.who} cannot be imported: {in_a_line(error)}.", TRACEBACK) from error


def content(path: Path) -> str:
    """The SHA-256 of a file, in hex. Raises UserError where it cannot be read."""
    return hashlib.sha256(_source(path)).hexdigest()


def execute(path: Path) -> PythonFile:
    """A file of Python, executed once for each content. Raises UserError where it cannot be read or executed."""
    source = _source(path)
    sha256 = hashlib.sha256(source).hexdigest()
    at = path.resolve(), sha256
    if at not in _executed:
        _executed[at] = _module(path, source, f"pflbench_plugin_{sha256[:16]}")
    return PythonFile(path, sha256, _executed[at])


def installed(group: str, kind: str) -> tuple[Installed, ...]:
    """What installed packages offer in a group of entry points, by name."""
    return _installed_on(group, kind, tuple(sys.path))


def in_a_line(error: BaseException) -> str:
    """The error's type and message on one line, without its full stop."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {' '.join(text.split())[:300]}".rstrip(": .")


@cache
def _installed_on(group: str, kind: str, search: tuple[str, ...]) -> tuple[Installed, ...]:
    """Looking through all distributions takes a few hundredths of a second, and names are looked up often."""
    return tuple(Installed(kind, point.name, point) for point in sorted(entry_points(group=group)))


def _source(path: Path) -> bytes:
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
