"""Streams and what they know of one another: who may use which memory without a race.

Each stream has a time, the number of its kernels, and knows up to which time the others are done: a vector clock. A kernel that
uses memory which another stream has used later than this one knows is a race, whether or not it goes wrong this time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.gpu.memory import Block

Clock = dict[int, int]  # number of a stream -> up to which of its times
_numbers = itertools.count(1)


def merge(into: Clock, other: Clock) -> None:
    for number, time in other.items():
        if time > into.get(number, 0):
            into[number] = time


class Stream:
    """A queue of kernels of one device. index: the device's number."""

    def __init__(self, index: int) -> None:
        self.index, self.number = index, next(_numbers)
        self.known: Clock = {self.number: 0}
        self._freed: list[tuple[int, Clock]] = []  # bytes of given-back memory, and who else may still use it

    def wait_stream(self, other: Stream) -> None:
        """What comes after this on the one begins when what is asked of the other so far is done."""
        merge(self.known, other.known)

    def launch(self, host: Clock, read: Iterable[Block], written: Iterable[Block]) -> list[str]:
        """A kernel, after all that the host has waited for. Returns what it races with."""
        merge(self.known, host)
        self.known[self.number] += 1
        found = []
        for block in read:
            if block.written and self._behind(*block.written):
                found.append("reads what another stream may still write")
            block.read[self.number] = self.known[self.number]
        for block in written:
            if block.written and self._behind(*block.written):
                found.append("writes where another stream may still write")
            if any(self._behind(*one) for one in block.read.items()):
                found.append("writes what another stream may still read")
            block.written, block.read = (self.number, self.known[self.number]), {}
        return found

    def note_freed(self, block: Block) -> None:
        """Memory goes back to the stream it came from, which may give it away again at once."""
        users = dict(block.read)
        if block.written:
            merge(users, dict([block.written]))
        users.pop(self.number, None)
        if users:
            self._freed.append((block.size, users))

    def reuses(self, size: int) -> str | None:
        """What is wrong with an allocation of this size: that it may be memory which another stream still uses."""
        if not self._freed:
            return None
        self._freed = [(had, users) for had, users in self._freed if any(self._behind(*one) for one in users.items())]
        if any(had >= size for had, _ in self._freed):
            self._freed.clear()  # said once
            return "gets memory that was given back while another stream may still use it"
        return None

    def _behind(self, number: int, time: int) -> bool:
        return number != self.number and self.known.get(number, 0) < time
