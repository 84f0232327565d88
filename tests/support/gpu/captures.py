"""CUDA graphs: a capture writes kernels down and executes nothing, a replay makes them on the addresses of the capture."""

from __future__ import annotations

import warnings
from typing import Any

from support.gpu.memory import Pool
from support.gpu.rules import NotPermitted
from support.gpu.streams import Stream
from support.gpu.tape import Tape
from support.gpu.world import On, plugged

EMPTY = "The CUDA Graph is empty. This usually means that the graph was attempted to be captured on wrong device or stream."
FAILED = "CUDA error: operation failed due to a previous error during capture"


class Graph:
    """As torch.cuda.CUDAGraph."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._tape: Tape | None = None
        self._pool: Pool | None = None
        self._over = False

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        world = plugged()
        stream = world.stream()
        if world.tape is not None:
            raise world.tape.refuse("a capture in a capture")
        if stream is world.gpus[stream.index].default:
            raise NotPermitted("CUDA graphs must be captured on a non-default stream.")
        if pool is not None and pool not in world.pools:
            raise NotPermitted("use_count > 0 INTERNAL ASSERT FAILED: the pool of graphs that are gone")
        self._pool = Pool(world.gpus[stream.index].memory) if pool is None else world.pools[pool]
        world.pools[id(self._pool)] = self._pool
        self._tape = world.tape = Tape(stream, self._pool)

    def capture_end(self) -> None:
        world = plugged()
        tape, world.tape = self._tape, None
        assert tape is not None, "no capture has begun"
        tape.end()
        if tape.invalid:
            world.gpus[tape.stream.index].memory.torn = world.torch_before_2_13
            self._tape = self._pool = None
            raise NotPermitted(FAILED)
        if not tape.kernels:
            warnings.warn(EMPTY, stacklevel=2)
        self._over = True

    def replay(self) -> None:
        assert self._tape is not None, "nothing was captured"
        plugged().replay(self._tape)

    def pool(self) -> Any:
        """A name for its memory, by which another capture may share it."""
        assert self._over, "nothing was captured"
        return id(self._pool)

    def reset(self) -> None:
        self._tape, self._pool, self._over = None, None, False


class capture:
    """As torch.cuda.graph: where the end of a capture fails, the capture's stream stays the current one."""

    def __init__(
        self, cuda_graph: Graph, pool: Any = None, stream: Stream | None = None, capture_error_mode: str = "global"
    ) -> None:
        world = plugged()
        if stream is None:  # PyTorch's is made once, on the device that is then the current one
            stream = world.capture_stream = world.capture_stream or world.new_stream(None)
        self._graph, self._pool, self._mode = cuda_graph, pool, capture_error_mode
        self._on = On(world, stream)

    def __enter__(self) -> None:
        world = plugged()
        world.synchronize(world.here.device)
        world.empty_cache()
        self._on.__enter__()
        self._graph.capture_begin(self._pool, self._mode)

    def __exit__(self, *error: Any) -> None:
        self._graph.capture_end()
        self._on.__exit__(*error)
