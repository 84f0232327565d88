"""Code from outside the package, whatever it is for: single Python files, and entry points of installed packages.

Nothing is imported before it is asked for. What a file or a package has to offer, the rooms say: methods, models, data.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec, resolve_name
from pathlib import Path
from sysconfig import get_path
from types import ModuleType
from typing import Any

from pflbench.errors import UserError, require_regular

TRACEBACK = "PFLBENCH_DEBUG=1 shows the traceback."

_IN_FILE = re.compile(r"(?P<path>.+\.py)(:(?P<name>[^:]*))?")
_NOT_OWN = tuple(Path(place).resolve() for place in (Path(__file__).parent, get_path("stdlib"), get_path("platstdlib")))
_executed: dict[tuple[Path, str], ModuleType] = {}


@dataclass(frozen=True)
class PythonFile:
    """A file that was executed. sha256: its `content`."""

    path: Path
    sha256: str
    module: ModuleType

    def where(self, error: BaseException) -> str:
        """The line of this file that led to an error: ' (line 3)'; nothing where it is none of this file."""
        return _where(error, str(self.module.__file__))

    def own(self, kind: Callable[[Any], bool]) -> list[str]:
        """Names of what is defined in the file itself, of a kind such as inspect.isclass; not of what begins with _."""
        return [
            name
            for name, value in vars(self.module).items()
            if kind(value) and value.__module__ == self.module.__name__ and not value.__name__.startswith("_")
        ]

    def choose(self, name: str | None, kind: str, usual: Sequence[str], others: Sequence[str], like: str) -> tuple[str, Any]:
        """What is asked for by name, else the only one of `usual`. others: what may be asked for as well.

        kind, like: what it should be, such as "model", and what that is. Raises UserError.
        """
        offered = [f"{self.path}:{one}" for one in (*usual, *others)][:5]
        offer = f"Write {' or '.join(offered)}." if offered else like
        if not name and len(usual) != 1:
            raise UserError(f"{self.path} does not say which of its {kind}s is meant.", offer)
        name = name or usual[0]
        if not hasattr(self.module, name):
            raise UserError(f"{self.path} has no '{name}'.", offer)
        return name, getattr(self.module, name)


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


def in_file(text: str) -> tuple[Path, str | None] | None:
    """Path and name of `FILE.py:NAME` or `FILE.py`; None of any other text."""
    at = _IN_FILE.fullmatch(text)
    return None if at is None else (Path(at["path"]).expanduser(), at["name"] or None)


def asked_for(text: str, option: str) -> tuple[PythonFile, str | None] | None:
    """As `in_file`, executed. option: by which it is given. Raises UserError for a file that is not there, too."""
    at = in_file(text)
    if at is None:
        return None
    if not at[0].exists():
        raise UserError(f"There is no file {at[0]}.", f"Write {option} FILE.py:NAME, with the path of a Python file.")
    return execute(at[0]), at[1]


def refuse_several(kind: str, name: str, builtin: bool, others: Sequence[str]) -> None:
    """Raises UserError for a name that more than one has. others: the packages and files that offer it."""
    places = [*(["built into pflbench"] if builtin else []), *(f"of {place}" for place in others)]
    if len(places) > 1:
        raise UserError(
            f"The name '{name}' stands for several {kind}s: {' and '.join(places)}.",
            "Uninstall one of the packages, or rename it.",
        )


def content(path: Path) -> str:
    """The SHA-256 of a file and of what it imports from its own folder, in hex. Raises UserError where it cannot be read."""
    return _hash(path, _source(path))


def execute(path: Path) -> PythonFile:
    """A file of Python, executed once for each content. Raises UserError where it cannot be read or executed."""
    source = _source(path)
    sha256 = _hash(path, source)
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
    require_regular(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"The plug-in {path} cannot be read: {error.strerror}.", "Give the path of a Python file.") from None


def _hash(path: Path, source: bytes) -> str:
    """Of a file without imports from its own folder, that of its bytes alone."""
    digest = hashlib.sha256(source)
    for name, imported in sorted(_imported(path.resolve().parent, source).items()):
        digest.update(f"\0{name}\0{hashlib.sha256(imported).hexdigest()}".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _imported(folder: Path, source: bytes) -> dict[str, bytes]:
    """The files in and below a folder that Python would load for the import statements of a source, and for theirs.

    By their paths from the folder. The statements are read, not executed: what is loaded already, or only later, counts alike.
    """
    found: dict[str, bytes] = {}
    ahead = list(_names(source, ""))
    for name in ahead:  # it grows
        for package, file in _files(name):
            if not _is_own(file, folder) or (place := file.relative_to(folder).as_posix()) in found:
                continue
            found[place] = _source(file)
            ahead += _names(found[place], package)
    return found


def _names(source: bytes, package: str) -> Iterator[str]:
    """What the import statements of a source name, as "a.b"; of `from a import b`, b may be a module or not."""
    with suppress(SyntaxError, ValueError, RecursionError):  # said where it is executed
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                with suppress(ImportError):  # more dots than packages
                    of = resolve_name("." * node.level + (node.module or ""), package)
                    yield from (f"{of}.{alias.name}" for alias in node.names)


def _files(name: str) -> Iterator[tuple[str, Path]]:
    """The files that are loaded for `import a.b`, each with the package in which its own relative imports begin."""
    first, *parts = name.split(".")
    try:
        spec = find_spec(first)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return
    folders = [Path(place) for place in spec.submodule_search_locations or ()]
    if spec.origin and spec.has_location:
        yield first if folders else "", Path(spec.origin).resolve()
    package = first
    for part in parts:
        module = next((place / f"{part}.py" for place in folders if (place / f"{part}.py").is_file()), None)
        folders = [place / part for place in folders if (place / part).is_dir()]
        begin = next((place / "__init__.py" for place in folders if (place / "__init__.py").is_file()), None)
        if found := begin or module:
            yield f"{package}.{part}" if begin else package, found.resolve()
        package = f"{package}.{part}"


def _is_own(file: Path, folder: Path) -> bool:
    """Whether a file lies below a folder, and is neither Python's, nor ours, nor that of an installed package."""
    if not file.is_relative_to(folder):
        return False
    packaged = {"site-packages", "dist-packages"}.intersection(file.relative_to(folder).parts)
    return not packaged and not any(file.is_relative_to(place) for place in _NOT_OWN)


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
