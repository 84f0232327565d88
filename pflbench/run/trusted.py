"""What a database would have this machine execute or contact: a database may be anybody's.

A stored run or sweep names files of Python, URLs of checkpoints, a cluster. Each is done only if the user has typed it here, now
or in an earlier command. What was typed is kept in the user's own folder, as hashes.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from pflbench import plugins
from pflbench.errors import UserError
from pflbench.run.places import state_folder
from pflbench.spec import RunSpec

TYPE_AGAIN = "If you trust them, add these options to the command."

Words = tuple[str, ...]
"""As typed: ("--plugin", "/home/me/nets.py")."""


def python_files(specs: Iterable[RunSpec], of_methods: Iterable[str | Path] = ()) -> list[Words]:
    """The Python files of the runs' methods, models and data, which are executed."""
    files = [Path(path) for path in of_methods]
    for spec in specs:
        if spec.own_model and spec.own_model.path:
            files.append(Path(spec.own_model.path))
        if spec.data.name == "python" and (at := plugins.in_file(spec.data.path or "")):
            files.append(at[0])
    return [("--plugin", str(path.resolve())) for path in dict.fromkeys(files)]


def files_named(texts: Iterable[str]) -> list[str]:
    """The models and datasets that are Python files, as typed."""
    return [text for text in dict.fromkeys(texts) if plugins.in_file(text.removeprefix("python:"))]


def wanted(
    specs: Iterable[RunSpec], of_methods: Iterable[str | Path], checkpoints: str | None, executor: Words = ()
) -> list[Words]:
    """Everything that the runs of a sweep execute and contact."""
    urls = [("--checkpoints", checkpoints)] if checkpoints and "://" in checkpoints else []
    return [*python_files(specs, of_methods), *urls, *([executor] if executor else [])]


def remember(typed: Iterable[Words]) -> None:
    """Stores what the user has typed on this machine."""
    new = [digest for digest in map(_digest, typed) if digest not in _known()]
    if not new:
        return
    with suppress(OSError, RuntimeError):  # without such a folder everything must be typed again
        file = _file()
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a", encoding="ascii") as out:
            out.write("".join(f"{digest}\n" for digest in new))


def require_typed(what: str, wanted: Sequence[Words], typed: Collection[Words] = (), hint: str = TYPE_AGAIN) -> None:
    """Raises UserError for needed items that were never typed. what: needs them, such as "The sweep 'heads'"."""
    known = _known()
    unknown = [words for words in wanted if words not in typed and _digest(words) not in known]
    if unknown:
        told = shlex.join(word for words in unknown for word in words)
        raise UserError(f"{what} comes with code or addresses that you have not named on this machine yet: {told}", hint)


def _digest(words: Words) -> str:
    return sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest()


def _known() -> set[str]:
    with suppress(OSError, RuntimeError, UnicodeDecodeError):
        return set(_file().read_text(encoding="ascii").split())
    return set()


def _file() -> Path:
    return state_folder() / "typed"
