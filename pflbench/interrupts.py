"""Signals that ask a command to end: Ctrl-C, and SIGTERM and SIGHUP, which schedulers and closed terminals send.

All three raise KeyboardInterrupt in the main thread, so that what is under way keeps what it has reached. One that is ignored
when the command begins stays so, as SIGHUP under `nohup`.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
_UNTOUCHED = (signal.SIG_DFL, signal.default_int_handler)
_PATIENCE = b"\nWhat has been reached is being kept; then this ends.\n"

_first: int | None = None  # the signal that came first
_depth = 0  # of blocks under way that are not to be broken off
_waiting = False


@contextmanager
def caught(*, last: bool = False) -> Iterator[None]:
    """Until the end of the block these signals raise KeyboardInterrupt. Elsewhere than in the main thread nothing changes.

    last: the process ends with the block. If a signal has come, further ones are ignored then: Python would print tracebacks.
    """
    global _first, _depth, _waiting
    _first, _depth, _waiting = None, 0, False
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    changed = {number: handler for number, handler in before.items() if handler in _UNTOUCHED}
    for number in changed:
        signal.signal(number, _arrived)
    try:
        yield
    finally:
        for number, handler in changed.items():
            signal.signal(number, signal.SIG_IGN if last and arrived() else handler)


@contextmanager
def held() -> Iterator[None]:
    """A block that is not broken off, such as the saving of checkpoints: a signal that comes meanwhile waits for its end."""
    global _depth, _waiting
    if threading.current_thread() is not threading.main_thread():
        yield  # signals never come here
        return
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if _waiting and not _depth:
            _waiting = False
            raise KeyboardInterrupt


def arrived() -> bool:
    """Whether one of these signals has come since `caught` began."""
    return _first is not None


def exit_code() -> int:
    """Of a command that such a signal has ended, as shells have it: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP."""
    return 128 + (_first or signal.SIGINT)


def _arrived(number: int, _: FrameType | None) -> None:
    global _first, _waiting
    _first = _first or number
    if not _depth:
        raise KeyboardInterrupt
    _waiting = True
    with suppress(OSError):
        os.write(2, _PATIENCE)  # not by print, which may be under way itself
