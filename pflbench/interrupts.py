"""Signals that ask a command to end: Ctrl-C, and SIGTERM and SIGHUP, which schedulers and closed terminals send.

The first signal raises KeyboardInterrupt in the main thread, so that runs write checkpoints. Later signals within GRACE
seconds are only answered: they would interrupt that. A second Ctrl-C, pressed DELIBERATE seconds or more after the first, ends
the process at once. A signal that is ignored when the command begins stays ignored, such as SIGHUP under `nohup`.
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
DELIBERATE = 1.0  # seconds: programs that pass Ctrl-C on, such as make, send it twice at once
_UNTOUCHED = (signal.SIG_DFL, signal.default_int_handler)
_STOPPING = b"\nStopping after this step; a run that trains keeps a checkpoint. Ctrl-C again stops at once.\n"
_STOPPED = b"\nStopped at once. The same command continues after the last checkpoint.\n"
_SHOW_CURSOR = b"\x1b[?25h"  # a progress bar hides it

stopping = _STOPPING  # the answer to signals; a command without runs sets its own
_first: int | None = None  # the signal that came first
_interrupted = float("inf")  # when Ctrl-C was pressed first
_raised = float("-inf")  # when KeyboardInterrupt was raised last
_depth = 0  # of nested `held` blocks
_waiting = False  # whether the end of `held` raises KeyboardInterrupt


@contextmanager
def caught(*, last: bool = False) -> Iterator[None]:
    """In the block these signals raise KeyboardInterrupt. Does nothing outside the main thread.

    last: the process ends after the block. If a signal has come, further ones are ignored, else Python would print tracebacks.
    """
    global stopping, _first, _interrupted, _raised, _depth, _waiting
    stopping, _first, _interrupted, _raised, _depth, _waiting = _STOPPING, None, float("inf"), float("-inf"), 0, False
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
    """A block that signals do not interrupt, such as saving a checkpoint: they are handled at its end."""
    global _depth, _waiting
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are only handled in the main thread
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
    """The exit code after the first signal, as in shells: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP."""
    return 128 + (_first or signal.SIGINT)


def arrive(number: int, _: FrameType | None) -> None:
    """The handler of these signals."""
    global _first, _interrupted, _waiting
    _first = _first or number
    now = time.monotonic()
    again = now < _raised + GRACE
    stop = number == signal.SIGINT and now > _interrupted + DELIBERATE
    if number == signal.SIGINT:
        _interrupted = min(_interrupted, now)
    with suppress(OSError):
        os.write(2, _STOPPED if stop else stopping)  # not by print, which may be under way itself
    if stop:
        if os.isatty(2):
            os.write(2, _SHOW_CURSOR)
        os._exit(exit_code())
    if not _depth and not again:
        _raise()
    _waiting = not again


def _raise() -> NoReturn:
    global _raised, _waiting
    _raised, _waiting = time.monotonic(), False
    raise KeyboardInterrupt
