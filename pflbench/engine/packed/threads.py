"""Work on threads of its own, of which exactly one goes on at a time, and which waits wherever it asks for something.

A generator can wait only where it yields itself; this may be deep inside of what it calls.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from pflbench.engine import devices


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


class RunThread:
    """A generator that goes on only while `go_on` waits for it. settle: ends what it has left under way on the device.

    seconds: what it has taken so far. Waiting is not counted; what others did for it is, as far as it is charged.
    """

    def __init__(self, work: Generator[Any, None, None], settle: Callable[[], None]) -> None:
        self.seconds = 0.0
        self._work, self._settle = work, settle
        self._change = threading.Condition()
        self._going = False
        self._begun = 0.0
        self._reply: Any = None
        self._message: Said | Asked | Ended = Said(None)
        self._thread: threading.Thread | None = None

    @property
    def over(self) -> bool:
        return isinstance(self._message, Ended)

    def go_on(self, reply: Any = None) -> Said | Asked | Ended:
        """Lets the work go on until it has something to tell. reply: what it asked for; an exception is raised there."""
        self._reply, self._begun, self._message = reply, time.perf_counter(), Said(None)
        with self._change:
            self._going = True
            self._change.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        message = self._rest()
        self.seconds += time.perf_counter() - self._begun
        return message

    def stop(self, error: BaseException) -> None:
        """Ends the work, wherever it waits, by an exception."""
        if self._thread is None:
            return
        self._rest()  # a Ctrl-C reaches the main thread, and the work may still be going on
        while not self.over:
            self.go_on(error)

    def ask(self, request: Any) -> Any:
        """To be called by the work: the answer to a request."""
        return self._tell(Asked(request))

    def clock(self) -> float:
        """To be called by the work: its seconds up to now."""
        return self.seconds + time.perf_counter() - self._begun

    def _rest(self) -> Said | Asked | Ended:
        with self._change:
            self._change.wait_for(lambda: not self._going)
        return self._message

    def _tell(self, message: Said | Asked) -> Any:
        self._pass(message)
        with self._change:
            self._change.wait_for(lambda: self._going)
        reply, self._reply = self._reply, None  # large, and not to be kept from here
        if isinstance(reply, BaseException):
            raise reply
        return reply

    def _pass(self, message: Said | Asked | Ended) -> None:
        with self._change:
            self._message, self._going = message, False
            self._change.notify_all()

    def _run(self) -> None:
        devices.begin_thread()
        error: BaseException | None = None
        try:
            with closing(self._work):
                for item in self._work:
                    self._settle()
                    self._tell(Said(item))
        except BaseException as raised:
            error = raised
        self._pass(Ended(error))
