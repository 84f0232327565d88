"""The files that a Python file imports from its own folder, which are part of its hash."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.util import find_spec, resolve_name
from pathlib import Path
from sysconfig import get_path

import pflbench

_OURS = str(pflbench.__file__).removesuffix("__init__.py")
_NOT_OWN = tuple(Path(place).resolve() for place in (_OURS, get_path("stdlib"), get_path("platstdlib")))


def sha256_of(path: Path, source: bytes) -> str:
    """In hex; without imports from its own folder, that of the file's bytes."""
    digest = hashlib.sha256(source)
    for name, content in sorted(imported(path.resolve().parent, source).items()):
        digest.update(f"\0{name}\0{hashlib.sha256(content).hexdigest()}".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def imported(folder: Path, source: bytes) -> dict[str, bytes]:
    """The files in and below a folder that Python would load for the import statements of a source, and for theirs.

    By their paths from the folder. The statements are read, not executed: what is loaded already, or only later, counts alike.
    """
    found: dict[str, bytes] = {}
    ahead = list(_names(source, ""))
    for name in ahead:  # it grows
        for package, file in _files(name):
            if not _is_own(file, folder) or (place := file.relative_to(folder).as_posix()) in found:
                continue
            found[place] = file.read_bytes()
            ahead += _names(found[place], package)
    return found


def _names(source: bytes, package: str) -> Iterator[str]:
    """The modules of a source's import statements, as "a.b"; in `from a import b`, b may be a module or not."""
    with suppress(SyntaxError, ValueError, RecursionError):  # reported when the file is executed
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                with suppress(ImportError):  # more dots than packages
                    of = resolve_name("." * node.level + (node.module or ""), package)
                    yield from (f"{of}.{alias.name}" for alias in node.names)


def _files(name: str) -> Iterator[tuple[str, Path]]:
    """The files of `import a.b`, each with the package at which its own relative imports start."""
    outer, folders = "", None
    for part in name.split("."):
        try:
            spec = find_spec(part) if folders is None else PathFinder.find_spec(part, folders)
        except (ImportError, ValueError):
            return
        if spec is None:
            return
        package = f"{outer}.{part}".lstrip(".") if spec.submodule_search_locations else outer
        if spec.origin and spec.has_location:
            yield package, Path(spec.origin).resolve()
        outer, folders = package, list(spec.submodule_search_locations or ())


def _is_own(file: Path, folder: Path) -> bool:
    """Whether a file is below a folder, and belongs neither to Python, nor to pflbench, nor to an installed package."""
    if not file.is_relative_to(folder):
        return False
    packaged = {"site-packages", "dist-packages"}.intersection(file.relative_to(folder).parts)
    return not packaged and not any(file.is_relative_to(place) for place in _NOT_OWN)
