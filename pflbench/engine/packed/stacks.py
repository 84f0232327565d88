"""Runs with stacks of their own, by greenlets: one goes on at a time, in one thread, and waits wherever it makes a request.

A generator can wait only where it yields itself; a request may be deep inside of what it calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from typing import Any

import torch
from greenlet import getcurrent, greenlet


class RunStack:
    """A generator that goes on only while `go_on` waits for it. settle: ends what it has left under way on the device.

    seconds: what it has taken so far. Waiting is not counted; what others did for it is, as far as it is charged.
    """

    def __init__(self, work: Generator[Any, None, None], settle: Callable[[], None]) -> None:
        self.seconds = 0.0
        self._work, self._settle = work, settle
        self._begun = 0.0
        self._own = greenlet(self._run)

    @property
    def over(self) -> bool:
        return bool(self._own.dead)

    def go_on(self, reply: Any = None) -> Sequence[Any]:
        """Lets the generator go on until it yields, makes a request or ends; returns the item that it yielded, if it did.

        reply: the answer to its request; an exception is raised there. What it raises itself passes on.
        """
        self._begun = time.perf_counter()
        items: Sequence[Any] = _switch(self._own, reply)
        self.seconds += time.perf_counter() - self._begun
        return items

    def stop(self, error: BaseException) -> None:
        """Ends the generator, wherever it waits, by an exception."""
        while self._own:  # begun, and not over
            with suppress(BaseException):
                self.go_on(error)

    def clock(self) -> float:
        """To be called by the run itself: its seconds up to now."""
        return self.seconds + time.perf_counter() - self._begun

    def _run(self, _: None) -> Sequence[Any]:
        with closing(self._work):
            for item in self._work:
                self._settle()
                wait([item])
        return ()


def wait(items: Sequence[Any] = ()) -> Any:
    """To be called by the run itself: hands over what it yielded, and returns the answer once it goes on."""
    reply = _switch(getcurrent().parent, items)
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
