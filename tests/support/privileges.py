"""Root without its privileges over files: it may do what their modes say, as an ordinary user whose files they are.

To become another user would not do: that one may not be allowed to read the checkout, or the interpreter.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_OF_FILES = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
_VERSION = 0x20080522  # of these calls: two sets of 32 bits each


@contextmanager
def unprivileged() -> Iterator[None]:
    """Of this thread, and of those that it starts. Skips the test for root where there are no capabilities, as on macOS."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "capset"):
        pytest.skip("root cannot give up its privileges here: run the tests as an ordinary user")
    header, held = (ctypes.c_uint32 * 2)(_VERSION, 0), (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice
    _checked(libc.capget(header, held))
    fewer = (ctypes.c_uint32 * 6)(held[0] & ~_OF_FILES, *held[1:])
    _checked(libc.capset(header, fewer))
    try:
        yield
    finally:
        _checked(libc.capset(header, held))


def _checked(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
