"""How a step that works on tensors that stay where they are becomes one call, without Python in it: a capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

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
        self._pool: Any = None  # no two graphs run at once: they share their memory

    def __call__(self, step: Call) -> Call:
        aside = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(aside):
            for _ in range(WARM_UPS):
                step()
        torch.cuda.current_stream(self.device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            step()
        self._pool = self._pool or graph.pool()
        return graph.replay


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
    graph = Graph(device) if device.type == "cuda" else None
    return {"auto": graph, "graph": graph, "compile": Compiled(graph), "none": None}[name]
