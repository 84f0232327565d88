"""The one kind of error that is the user's to mend. It is caught once, in `pflbench.cli`, and ends with exit code 2."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any


class UserError(Exception):
    """What is wrong (first line) and what to do about it (second line, optional)."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class NothingYet(UserError):
    """There are no results of this kind yet. The command line adds what they take."""


class NoData(UserError):
    """Files of a dataset are missing."""


class Occupied(UserError):
    """Another process trains this run, or the run was removed: this process must not write to it."""


class Unreachable(UserError):
    """The server of the database does not answer; it may be back later."""


class Vanished(UserError):
    """The file of the database is no longer at its path, or shorter than it was."""


class Diverged(UserError):
    """A client produced a non-finite value. The engine names the client, the round loop adds method and round."""

    def __init__(self, message: str, hint: str = "A smaller --lr usually helps.") -> None:
        super().__init__(message, hint)


def unknown(kind: str, name: str, valid: Iterable[str]) -> UserError:
    """An error for a name that is not in a table of contents: offers the nearest valid name, then all of them."""
    names = sorted(valid)
    near = get_close_matches(name.lower(), names, n=1, cutoff=0.65)
    suggestion = f" Did you mean '{near[0]}'?" if near else ""
    return UserError(f"Unknown {kind} '{name}'.{suggestion}", f"Valid: {', '.join(names)}.")


# What Pydantic says of a value, in plain words.
_PLAIN = {
    "Input should be ": "it must be ",
    "a valid integer, unable to parse string as an integer": "a whole number",
    "a valid integer": "a whole number",
    "a valid number, unable to parse string as a number": "a number",
    "a valid number": "a number",
    "a valid boolean, unable to interpret input": "true or false",
    "a valid boolean": "true or false",
    "a valid string": "a text",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
    "less than": "below",
    "Value error, ": "",
}


def why(details: Iterable[Mapping[str, Any]]) -> str:
    """Why a value was refused, of Pydantic's `errors()` about it: 'it must be a whole number or 'all''."""
    reasons = " or ".join(dict.fromkeys(detail["msg"] for detail in details))
    for pydantic, plain in _PLAIN.items():
        reasons = reasons.replace(pydantic, plain)
    return reasons.replace(" or it must be ", " or ")
