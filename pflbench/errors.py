"""The one kind of error that is the user's to mend. It is caught once, in `pflbench.cli`, and ends with exit code 2."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """What is wrong (first line) and what to do about it (second line, optional)."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class Diverged(UserError):
    """A client produced a non-finite value. The engine names the client, the round loop adds method and round."""


def unknown(kind: str, name: str, valid: Iterable[str]) -> UserError:
    """An error for a name that is not in a table of contents: offers the nearest valid name, then all of them."""
    names = sorted(valid)
    near = get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    suggestion = f" Did you mean '{near[0]}'?" if near else ""
    return UserError(f"Unknown {kind} '{name}'.{suggestion}", f"Valid: {', '.join(names)}.")
