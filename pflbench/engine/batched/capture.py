"""How a step that works on tensors that stay where they are becomes one call, without Python in it: a capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakSet

import torch

from pflbench.engine import devices

Call = Callable[[], None]
WARM_UPS = 2  # before a CUDA graph is recorded: libraries choose their algorithms and take their workspaces
COMPILED = 512  # shapes of one step that torch.compile may see: it stops at 8 by itself


class Capture(Protocol):
    """Makes a call that does again what `step` does, on the same tensors. `step` is made a few times while that is found out."""

    name: str

    def __call__(self, step: Call) -> Call: ...


class Graph:
    """A CUDA graph: all kernels of the step are launched by one call, and the GPU waits for nothing between them."""

    name = "graph"

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._aside: Any = None  # one stream for all: what the allocator keeps for a stream serves no other one
        self._graphs: WeakSet[Any] = WeakSet()

    def __call__(self, step: Call) -> Call:
        self._warm_up(step)
        gpu = devices.of(self.device)
        graph = gpu.CUDAGraph()
        try:
            # A capture that fails leaves its own stream as the current one.
            with gpu.stream(gpu.current_stream(self.device)), gpu.graph(graph, pool=self._pool()):
                step()
        except BaseException:
            self._graphs.clear()  # nor is their memory offered again
            raise
        self._graphs.add(graph)
        replay: Call = graph.replay
        return replay

    def _warm_up(self, step: Call) -> None:
        gpu = devices.of(self.device)
        self._aside = self._aside or gpu.Stream(self.device)
        self._aside.wait_stream(gpu.current_stream(self.device))
        with gpu.stream(self._aside):
            for _ in range(WARM_UPS):
                step()
        gpu.current_stream(self.device).wait_stream(self._aside)

    def _pool(self) -> Any:
        """The memory of the graphs that there are: no two run at once, and they share it. It ends with the last of them."""
        return next((graph.pool() for graph in self._graphs), None)


class Compiled:
    """torch.compile's program of the step; on a GPU that in a CUDA graph."""

    name = "compile"

    def __init__(self, then: Capture | None = None) -> None:
        self.then = then

    def __call__(self, step: Call) -> Call:
        made: Call = torch.compile(step, fullgraph=True, dynamic=False)
        with torch._dynamo.config.patch(recompile_limit=COMPILED):
            made()
            return made if self.then is None else self.then(made)


def capture(name: str, device: torch.device) -> Capture | None:
    """By name: "graph", "compile", "none", or "auto": a graph on a GPU, none on a CPU."""
    graph = None if device.type == "cpu" else Graph(device)
    return {"auto": graph, "graph": graph, "compile": Compiled(graph), "none": None}[name]


def makes_programs(name: str, device: str) -> bool:
    """Whether `capture` would make programs on a device such as "cpu" or "cuda:0", which need not be here."""
    return name == "compile" or (name != "none" and device != "cpu")
