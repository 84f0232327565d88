"""Text from outside without control codes, and text that is kept without what tells of the user's machine."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

# C0 but for tab and line feed, DEL, C1: what is left of a sequence without its first character does nothing.
_CODES = re.compile(r"\x1b\[[\d;]*m|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_IN_JSON = re.compile(r"[\x7f-\x9f]")
_URL = r"(?P<scheme>[A-Za-z][\w+.-]*)://(?P<rest>[^\s'\"`<>]*)"
_PATH = r"(?<![\w.~/)\]\\-])(?P<path>~?[\w.-]*/[^\s'\"`,;:()<>\[\]{}|]+/?[^\s'\"`,;:()<>\[\]{}|]*|[A-Za-z]:\\[^\s'\"`,;()<>|]+)"
_PLACES = re.compile(f"{_URL}|{_PATH}")
_WEB = ("http", "https")
_ARGUMENT = re.compile(r"((?:-\w|--[\w-]+=|[\w-]+:)?)(~?/.*|[A-Za-z]:\\.*)", re.DOTALL)


def printable(text: str) -> str:
    """Without control codes, but for tabs and line feeds: a terminal obeys them, whoever wrote the text."""
    return _CODES.sub("", text)


def in_json(text: str) -> str:
    """JSON with the control codes escaped that it may have as they are."""
    return _IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def private(text: str) -> str:
    """Absolute paths by their last part, or from the working directory; URLs of servers without user, password and host."""
    return _PLACES.sub(lambda found: _url(found["scheme"], found["rest"]) if found["scheme"] else _path(found["path"]), text)


def privately(value: Any) -> Any:
    """JSON for others to read: every text in it printable, and private."""
    if isinstance(value, dict):
        return {name: privately(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [privately(item) for item in value]
    return private(printable(value)) if isinstance(value, str) else value


def private_command(words: Sequence[str]) -> str:
    """A command line, as a shell reads it, each argument as by `private`: there a path may have spaces."""
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
    """Relative ones stay."""
    if not path.startswith(("/", "~")) and path[1:3] != ":\\":
        return path
    with suppress(OSError):
        here = os.getcwd()
        if path.startswith(f"{here}/"):
            return path[len(here) + 1 :]
    parts = [part for part in re.split(r"[/\\]", path) if part]
    return f".../{parts[-1]}" if len(parts) > 1 else path
