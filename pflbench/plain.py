"""Makes text safe to show (no control codes, passwords or spreadsheet formulas), and removes users, hosts and paths from it."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

_SECRETS = "password", "passwd", "pwd", "secret", "token"
# C0 except tab and line feed, DEL, C1. Without its first character, an escape sequence does nothing.
_CODES = re.compile(r"\x1b\[[\d;]*m|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_IN_JSON = re.compile(r"[\x7f-\x9f]")
# Also with one slash, as pathlib writes a URL. The patterns begin with a rare sign, and take time linear in the text's length.
_USER_AND_REST = r"(:/{1,2}[^\s:/@\"<>\\]*:)"
_BEFORE_HOST = re.compile(_USER_AND_REST + r"([^\s\"<>\\]*)")
_BEFORE_HOST_OF_ALL = re.compile(_USER_AND_REST + "(.*)", re.DOTALL)
_IN_QUERY = re.compile(rf"=(?:{'|'.join(f'(?<=(?i:{name}=))' for name in _SECRETS)})[^\s&'\"<>\\]+")
# A scheme has a few letters: without a limit, each letter of a long word would begin one.
_URL = r"(?P<scheme>[A-Za-z][\w+.-]{0,30})://(?P<rest>[^\s'\"`<>]*)"
_PATH = r"(?<![\w.~/)\]\\-])(?P<path>~?[\w.-]*/[^\s'\"`,;:()<>\[\]{}|]+/?[^\s'\"`,;:()<>\[\]{}|]*|[A-Za-z]:\\[^\s'\"`,;()<>|]+)"
_PLACES = re.compile(f"{_URL}|{_PATH}")
_WEB = ("http", "https")
_ARGUMENT = re.compile(r"((?:-\w|--[\w-]+=|[\w-]+:)?)(~?/.*|[A-Za-z]:\\.*)", re.DOTALL)


def printable(text: str) -> str:
    """The text without passwords, and without control codes except tabs and line feeds, which a terminal would obey."""
    return without_passwords(_CODES.sub("", text))


def without_passwords(text: str, *, alone: bool = False) -> str:
    """Replaces the passwords of URLs by ***. alone: the text is one word of a command line, and may contain spaces."""
    pattern = _BEFORE_HOST_OF_ALL if alone else _BEFORE_HOST
    return _IN_QUERY.sub("=***", pattern.sub(_masked, text))


def _masked(found: re.Match[str]) -> str:
    _, at, host = found[2].rpartition("@")
    return f"{found[1]}***@{host}" if at else found[0]


def in_csv(value: Any) -> Any:
    """Puts a quote before a text that a spreadsheet would take for a formula. Numbers stay."""
    formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) and not _is_number(value)
    return f"'{value}" if formula else value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def in_json(text: str) -> str:
    """JSON with escaped control codes, which JSON allows unescaped."""
    return _IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def private(text: str) -> str:
    """Shortens absolute paths to their last part (or from the working directory), and URLs of servers to the database."""
    return _PLACES.sub(lambda found: _url(found["scheme"], found["rest"]) if found["scheme"] else _path(found["path"]), text)


def privately(value: Any) -> Any:
    """JSON for others to read: every text is printable and private."""
    return each_text(value, lambda text: private(printable(text)))


def each_text(value: Any, change: Callable[[str], str]) -> Any:
    """JSON with `change` applied to every text except names."""
    if isinstance(value, dict):
        return {name: each_text(item, change) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [each_text(item, change) for item in value]
    return change(value) if isinstance(value, str) else value


def private_command(words: Sequence[str]) -> str:
    """A command line quoted for a shell, with `private` applied to each argument, where a path may have spaces."""
    return shlex.join(_argument(word) for word in words)


def _argument(word: str) -> str:
    found = _ARGUMENT.fullmatch(word)
    return found[1] + _path(found[2]) if found and "://" not in word else private(word)


def _url(scheme: str, rest: str) -> str:
    host, slash, path = rest.partition("/")
    if scheme == "file":
        return f"file://{host}/{_path(slash + path).lstrip('/')}"
    if scheme in _WEB and "@" not in host:
        return f"{scheme}://{rest}"
    if not host:  # a file: sqlite:////home/...
        return f"{scheme}://{slash}{_path(path)}"
    return f"{scheme}://...{slash}{path.partition('?')[0]}"


def _path(path: str) -> str:
    if not path.startswith(("/", "~")) and path[1:3] != ":\\":
        return path
    with suppress(OSError):
        here = os.getcwd()
        if path.startswith(f"{here}/"):
            return path[len(here) + 1 :]
    parts = [part for part in re.split(r"[/\\]", path) if part]
    return f".../{parts[-1]}" if len(parts) > 1 else path
