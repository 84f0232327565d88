"""Signals that ask a command to end: Ctrl-C, and SIGTERM and SIGHUP, which schedulers and closed terminals send.

The first of them raises KeyboardInterrupt in the main thread, so that what is under way keeps what it has reached. Those that
come within GRACE of it do not: they would break off the way out. One that is ignored when the command begins stays so, as
SIGHUP under `nohup`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
GRACE = 3.0  # seconds
_UNTOUCHED = (signal.SIG_DFL, signal.default_int_handler)
_PATIENCE = b"\nWhat has been reached is being kept; then this ends.\n"

_first: int | None = None  # the signal that came first
_raised = float("-inf")  # when KeyboardInterrupt was raised last
_depth = 0  # of blocks under way that are not to be broken off
_waiting = False  # whether such a block ends with KeyboardInterrupt


@contextmanager
def caught(*, last: bool = False) -> Iterator[None]:
    """Until the end of the block these signals raise KeyboardInterrupt. Elsewhere than in the main thread nothing changes.

    last: the process ends with the block. If a signal has come, further ones are ignored then: Python would print tracebacks.
    """
    global _first, _raised, _depth, _waiting
    _first, _raised, _depth, _waiting = None, float("-inf"), 0, False
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    changed = {number: handler for number, handler in before.items() if handler in _UNTOUCHED}
    for number in changed:
        signal.signal(number, arrive)
    try:
        yield
    finally:
        for number, handler in changed.items():
            signal.signal(number, signal.SIG_IGN if last and arrived() else handler)
        if not last:
            _first = None


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
            _raise()


def arrived() -> bool:
    """Whether one of these signals has come since `caught` began."""
    return _first is not None


def exit_code() -> int:
    """Of a command that such a signal has ended, as shells have it: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP."""
    return 128 + (_first or signal.SIGINT)


def arrive(number: int, _: FrameType | None) -> None:
    """The handler of these signals."""
    global _first, _waiting
    _first = _first or number
    again = time.monotonic() < _raised + GRACE
    if not _depth and not again:
        _raise()
    _waiting = not again
    with suppress(OSError):
        os.write(2, _PATIENCE)  # not by print, which may be under way itself


def _raise() -> NoReturn:
    global _raised, _waiting
    _raised, _waiting = time.monotonic(), False
    raise KeyboardInterrupt
