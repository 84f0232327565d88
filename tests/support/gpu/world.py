"""The stand-in's devices and what was seen of them, from being plugged in until being pulled out again."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from support.gpu.memory import Block, Memory, Pool
from support.gpu.rules import NotPermitted
from support.gpu.streams import Clock, Stream, merge
from support.gpu.tape import Tape

import pflbench

PACKAGE = str(Path(pflbench.__file__).parent)
_plugged: list[World] = []


@dataclass
class Seen:
    """Operations are named as PyTorch names them, places by file and line of the package."""

    waits: Counter[tuple[str, str]] = field(default_factory=Counter)  # of the host for the device: (operation, place)
    replays: int = 0
    races: Counter[str] = field(default_factory=Counter)  # of streams
    odd: Counter[tuple[str, str]] = field(default_factory=Counter)  # that CUDA permits, and nobody means: (what, place)
    threads: set[int] = field(default_factory=set)  # that launched something


class Gpu:
    """One device."""

    def __init__(self, index: int, memory: int) -> None:
        self.memory, self.default = Memory(memory), Stream(index)
        self.streams = [self.default]


class _Here(threading.local):
    """A thread's current device, and its current streams."""

    def __init__(self) -> None:
        self.device = 0
        self.streams: dict[int, Stream] = {}


class World:
    """devices: how many, of which the first can train; memory: bytes of each.

    torch_before_2_13: what a failed capture leaves behind (see captures).
    """

    def __init__(self, devices: int, memory: int, torch_before_2_13: bool) -> None:
        self.gpus = [Gpu(index, memory) for index in range(devices)]
        self.torch_before_2_13 = torch_before_2_13
        self.seen = Seen()
        self.tape: Tape | None = None  # of the capture under way
        self.pools: WeakValueDictionary[int, Pool] = WeakValueDictionary()
        self.capture_stream: Stream | None = None
        self.failed: Exception | None = None  # in the thread of the backward pass
        self.waited: Clock = {}  # up to where the host knows the streams to be done
        self._here = _Here()
        self._caller = (self.here.device, self.here.streams)

    # -- the current device and stream --------------------------------------------------------------------------------

    @property
    def here(self) -> Any:
        return self._here

    def gpu(self, index: int | None) -> Gpu:
        index = self.here.device if index is None else index
        if index >= len(self.gpus):
            raise NotPermitted("CUDA error: invalid device ordinal")
        return self.gpus[index]

    def stream(self, index: int | None = None) -> Stream:
        """The calling thread's current one of a device. The backward pass goes where its forward pass went."""
        if in_backward():
            device, streams = self._caller
        else:
            device, streams = self.here.device, self.here.streams
            self._caller = device, streams
        index = device if index is None else index
        return streams.get(index) or self.gpu(index).default

    def new_stream(self, index: int | None) -> Stream:
        index = self.here.device if index is None else index
        made = Stream(index)
        self.gpu(index).streams.append(made)
        return made

    # -- kernels ------------------------------------------------------------------------------------------------------

    def recording(self, index: int) -> Tape | None:
        """The tape that kernels on this device go to, if one does."""
        if self.tape is None:
            return None
        if self.tape.invalid:
            raise NotPermitted("CUDA error: operation failed due to a previous error during capture")
        stream = self.stream(index)
        if stream is self.gpus[index].default and index == self.tape.stream.index:
            raise self.tape.refuse("a kernel on the default stream")
        return self.tape if stream is self.tape.stream else None

    def launch(self, index: int, read: list[Block], written: list[Block], what: str) -> None:
        """A kernel on the current stream of a device."""
        for race in self.stream(index).launch(self.waited, read, written):
            self.seen.races[f"{what} at {place()} {race}"] += 1

    def allocate(self, index: int, nbytes: int) -> Block:
        gpu, stream = self.gpu(index), self.stream(index)
        pool = self.tape.pool if self.tape is not None and stream is self.tape.stream else None
        block = gpu.memory.take(nbytes, stream, pool)
        if wrong := stream.reuses(block.size):
            self.seen.races[f"a tensor at {place()} {wrong}"] += 1
        return block

    def replay(self, tape: Tape) -> None:
        """On the current stream of the device that the capture was made on."""
        if self.tape is not None:
            raise self.tape.refuse("a replay")

        def launch(read: list[Block], written: list[Block]) -> None:
            self.launch(tape.stream.index, read, written, "a replay")

        tape.replay(launch)
        self.seen.replays += 1

    # -- the host -----------------------------------------------------------------------------------------------------

    def wait(self, what: str, stream: Stream) -> None:
        """The host waits until a stream is done."""
        if self.tape is not None:
            raise self.tape.refuse(f"{what} at {place()}")
        self.seen.waits[what, place()] += 1
        merge(self.waited, stream.known)

    def synchronize(self, index: int | None) -> None:
        """The host waits until all streams of a device are done."""
        if self.tape is not None:
            raise self.tape.refuse(f"synchronize at {place()}")
        self.seen.waits["synchronize", place()] += 1
        for stream in self.gpu(index).streams:
            merge(self.waited, stream.known)

    def empty_cache(self) -> None:
        for gpu in self.gpus:
            gpu.memory.empty_cache()


class On:
    """Makes a stream the current one, and its device the current one. No generator: those leave when they are forgotten."""

    def __init__(self, world: World, stream: Stream) -> None:
        self._world, self._stream = world, stream

    def __enter__(self) -> Stream:
        here, stream = self._world.here, self._stream
        self._before = here.device, self._world.stream(stream.index)
        here.device, here.streams[stream.index] = stream.index, stream
        return stream

    def __exit__(self, *_: object) -> None:
        self._world.here.device, self._world.here.streams[self._stream.index] = self._before


def in_backward() -> bool:
    """Whether this is a thread of PyTorch's own, as a device's backward pass has."""
    return isinstance(threading.current_thread(), threading._DummyThread)


def place() -> str:
    """Where the package is just now: "engine/batched/batched_executor.py:123"; "?" where the call does not come from it."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            return f"{frame.f_code.co_filename[len(PACKAGE) + 1 :]}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "?"


def plugged() -> World:
    """The one that is plugged in."""
    if not _plugged:
        raise NotPermitted("No CUDA GPUs are available")
    return _plugged[-1]


def devices() -> int:
    """How many there are just now."""
    return len(_plugged[-1].gpus) if _plugged else 0


@contextmanager
def in_use(world: World) -> Iterator[World]:
    assert not _plugged, "it is plugged in already"
    _plugged.append(world)
    try:
        yield world
    finally:
        _plugged.clear()
