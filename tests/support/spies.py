"""What happens when a function of the package is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def on_call(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, action: Callable[..., object]) -> None:
    """`action`, which may raise, is called with the arguments of each call of a function or method, and then that itself."""
    whole = getattr(owner, name)

    def called(*arguments: Any, **options: Any) -> Any:
        action(*arguments, **options)
        return whole(*arguments, **options)

    monkeypatch.setattr(owner, name, called)
