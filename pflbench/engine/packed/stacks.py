"""Work with stacks of their own, by greenlets: one goes on at a time, in one thread, and waits wherever it asks for something.

A generator can wait only where it yields itself; this may be deep inside of what it calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from greenlet import getcurrent, greenlet


@dataclass(frozen=True)
class Said:
    """The work has yielded something."""

    item: Any


@dataclass(frozen=True)
class Asked:
    """The work waits for the answer to a request."""

    request: Any


@dataclass(frozen=True)
class Ended:
    """The work is over, or it failed."""

    error: BaseException | None = None


class RunStack:
    """A generator that goes on only while `go_on` waits for it. settle: ends what it has left under way on the device.

    seconds: what it has taken so far. Waiting is not counted; what others did for it is, as far as it is charged.
    """

    def __init__(self, work: Generator[Any, None, None], settle: Callable[[], None]) -> None:
        self.seconds = 0.0
        self.over = False
        self._work, self._settle = work, settle
        self._begun = 0.0
        self._own = greenlet(self._run)

    def go_on(self, reply: Any = None) -> Said | Asked | Ended:
        """Lets the work go on until it has something to tell. reply: what it asked for; an exception is raised there."""
        self._begun = time.perf_counter()
        message: Said | Asked | Ended = _switch(self._own, reply)
        self.seconds += time.perf_counter() - self._begun
        return message

    def stop(self, error: BaseException) -> None:
        """Ends the work, wherever it waits, by an exception."""
        while self._own:  # begun, and not over
            self.go_on(error)

    def clock(self) -> float:
        """To be called by the work: its seconds up to now."""
        return self.seconds + time.perf_counter() - self._begun

    def _run(self, _: None) -> Ended:
        error: BaseException | None = None
        try:
            with closing(self._work):
                for item in self._work:
                    self._settle()
                    tell(Said(item))
        except BaseException as raised:
            error = raised
        self.over = True
        return Ended(error)


def tell(message: Said | Asked) -> Any:
    """To be called by the work: the answer, once it goes on."""
    reply = _switch(getcurrent().parent, message)
    if isinstance(reply, BaseException):
        raise reply
    return reply


def _switch(to: greenlet, message: Any) -> Any:
    """PyTorch keeps for a thread, and so for all of them together, whether gradients are made."""
    before = torch.is_grad_enabled()
    try:
        return to.switch(message)
    finally:
        torch.set_grad_enabled(before)
