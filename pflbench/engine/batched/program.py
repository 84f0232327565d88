"""Steps as programs: each kind is captured once for a number of clients and a shape of batch, then replayed without Python."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from pflbench.engine import devices, memory
from pflbench.engine.batched.layout import Block
from pflbench.engine.batched.waits import Watch
from pflbench.engine.requests import Shared, StepArguments, pick

Named = dict[str, Tensor]
NARROWER = 0.8  # ratio of neighbouring numbers of clients that programs are made for
MIXED = "batches of different sizes in one step"  # that cannot be padded
OTHER_NUMBERS = "not captured: the program gave other numbers"
COPIES = 3  # of a client's rows: the program's own, and two while its first replay is compared with the step itself
PARTS = 8  # of the clients in that comparison
ERROR = 1e-3  # allowed difference of a replay, relative to the largest change: float32, other algorithms
KINDS = 100  # most programs, before steps with further constants are not captured

Call = Callable[[], None]


class Capture(ABC):
    """Turns a step into a call that does the same again, on the same tensors."""

    name: str

    def warm_up(self, step: Call) -> None:
        """Runs the step once, which must come before a capture."""
        step()

    @abstractmethod
    def __call__(self, step: Call) -> Call:
        """Returns the call. The step may run meanwhile."""


class Graph(Capture):
    """A CUDA graph: all kernels of the step are launched by one call, and the GPU waits for nothing between them."""

    name = "graph"

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._graphs: WeakSet[Any] = WeakSet()

    def warm_up(self, step: Call) -> None:
        """On a side stream: libraries choose algorithms and allocate workspaces, which no capture permits."""
        gpu, aside = devices.of(self.device), self._stream
        memory.release(self.device)
        aside.wait_stream(gpu.current_stream(self.device))
        try:
            with gpu.stream(aside):
                step()
        finally:  # also if memory runs out: the next attempt needs this step's memory
            gpu.current_stream(self.device).wait_stream(aside)
            memory.release(self.device)

    def __call__(self, step: Call) -> Call:
        gpu = devices.of(self.device)
        graph, first = gpu.CUDAGraph(), None
        try:
            # A capture that fails leaves its own stream as the current one.
            with gpu.stream(gpu.current_stream(self.device)), gpu.graph(graph, pool=self._pool(), stream=self._stream):
                try:
                    step()
                except BaseException as error:
                    first = error
                    raise
        except BaseException as error:
            self._graphs.clear()  # their pool is not used again
            # The error at the end of a failed capture says only that it failed.
            raise first or error from None
        self._graphs.add(graph)
        replay: Call = graph.replay
        return replay

    @cached_property
    def _stream(self) -> Any:
        """One side stream for all: memory cached for a stream serves no other. PyTorch's own belongs to the first device used."""
        return devices.of(self.device).Stream(self.device)

    def _pool(self) -> Any:
        """The memory pool that all graphs share, since no two run at once. It ends with the last graph."""
        return next((graph.pool() for graph in self._graphs), None)


def capture(name: str, device: torch.device) -> Capture | None:
    """The capture of a name: "graph", "none", or "auto", a graph on a GPU and none on a CPU. The device need not exist."""
    return None if name == "none" or device.type == "cpu" else Graph(device)


@dataclass(frozen=True)
class Inputs:
    """Inputs of one step. finished: True for clients that have finished and must not change, [c]; None if all make it.

    Their rows are selected, not multiplied by 0: a further step of theirs may give no finite number.
    each: arguments of this step by name, [c, ...].
    """

    index: Tensor
    weights: Tensor | None
    finished: Tensor | None
    each: Named


Take = Callable[[Tensor, torch.device], Tensor]
Advance = Callable[[Named, StepArguments, Inputs], None]
"""advance(state, given, inputs): one step of c clients, which changes state [c, ...] in place."""


class Program:
    """One kind of step on tensors of its own, for up to `count` clients, and its calls by number of clients."""

    def __init__(
        self, capture: Capture, advance: Advance, state: Named, given: StepArguments, each: Mapping[str, Tensor], take: Take
    ) -> None:
        self.capture, self.advance = capture, advance
        first = next(iter(state.values()))

        def mine(like: Tensor) -> Tensor:
            # On the models' device: a graph would keep the first value of a number on the host.
            return take(like, first.device)

        self.state = {k: mine(v) for k, v in state.items()}
        self.given = {k: _copy(v, mine) for k, v in given.items()}
        self.each = {k: mine(v[:, 0]) for k, v in each.items()}
        self.count = len(first)
        self.finished = mine(torch.empty(self.count, dtype=torch.bool, device=first.device))
        self.finished_masks = torch.ones(self.count + 1, self.count, dtype=torch.bool, device=first.device).triu()
        self.calls: dict[tuple[int, int, bool], tuple[Call | None, str]] = {}
        self.inputs: dict[tuple[int, bool], tuple[Tensor, Tensor | None]] = {}
        self._live = -1

    def load(self, state: Named, given: StepArguments) -> int:
        """Copies a state and arguments into the program's tensors; returns the number of clients. Other rows keep old values."""
        self._live = -1
        count = len(next(iter(state.values())))
        for name, value in state.items():
            self.state[name][:count].copy_(value)
        for name, mine in self.given.items():
            if isinstance(mine, Tensor) and mine.dim() > 1:
                mine[:count].copy_(tensor(given[name]))
            elif isinstance(mine, (Tensor, Shared)):
                tensor(mine).copy_(tensor(given[name]))
        return count

    def make(self, block: Block, each: Mapping[str, Tensor]) -> str:
        """Makes the step and returns "", or the reason why it must be made without capture."""
        if block.first is None:
            return MIXED
        count = bucket(block.first, self.count)
        width, weighted = block.samples.shape[1], block.weights is not None
        self._set(block, each)
        if (count, width, weighted) not in self.calls:
            self.calls[count, width, weighted] = self._captured(count, width, weighted)
        call, reason = self.calls[count, width, weighted]
        if call is not None:
            call()
        return reason

    def _set(self, block: Block, each: Mapping[str, Tensor]) -> None:
        shape = block.samples.shape[1], block.weights is not None
        if shape not in self.inputs:
            weights = None if block.weights is None else block.weights.new_zeros(self.count, shape[0])
            self.inputs[shape] = block.samples.new_zeros(self.count, shape[0]), weights
        (index, weights), count = self.inputs[shape], len(block.samples)
        index[:count].copy_(block.samples)
        if weights is not None:
            assert block.weights is not None
            weights[:count].copy_(block.weights)
        for name, mine in self.each.items():
            mine[:count].copy_(each[name][:, block.step])
        assert block.first is not None
        if block.first != self._live:
            self.finished.copy_(self.finished_masks[block.first])
            self._live = block.first

    def _captured(self, count: int, width: int, weighted: bool) -> tuple[Call | None, str]:
        """The call, or the reason why there is none. The step runs at most twice: as it is, then captured."""
        index, weights = self.inputs[width, weighted]
        state = {k: v[:count] for k, v in self.state.items()}
        given = pick(self.given, slice(0, count))
        each = {k: v[:count] for k, v in self.each.items()}
        inputs = Inputs(index[:count], None if weights is None else weights[:count], self.finished[:count], each)
        step = partial(self.advance, state, given, inputs)
        before = {k: v.clone() for k, v in state.items()}
        try:
            with Watch() as watch:
                self.capture.warm_up(step)
            if watch.found:
                return None, f"not captured: {watch.found}"
            wanted = {k: v.clone() for k, v in state.items()}
            _set_back(state, before)
            call = self.capture(step)
        except Exception as error:  # any failure: the step is made without capture
            if memory.ran_out(error):
                raise
            return None, f"not captured: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        finally:
            _set_back(state, before)
        call()
        same = all(_near(state[k], wanted[k], before[k]) for k in state)
        _set_back(state, before)
        return (call, "") if same else (None, OTHER_NUMBERS)


class Programs:
    """Makes steps, captured if there is a capture. A step that cannot be captured runs as it is and is counted by the reason."""

    def __init__(self, capture: Capture | None = None) -> None:
        self.capture = capture
        self.uncaptured: Counter[str] = Counter()  # reason -> number of steps not captured
        self.made: dict[Hashable, Program] = {}
        self._pool: dict[tuple[Any, ...], list[Tensor]] = {}

    def run(
        self,
        kind: Hashable,
        advance: Advance,
        state: Named,
        given: StepArguments,
        steps: Iterator[Block],
        each: Mapping[str, Tensor],
    ) -> Named:
        """Returns the state after all steps. The given one may be overwritten.

        state: [C, ...]. each: arguments of single steps, [C, steps, ...]. kind: identifies what `advance` does, with its
        constants: two steps of one kind do the same with tensors of the same shapes.
        """
        program = None if self.capture is None else self._program(kind, advance, state, given, each)
        if program is None:
            for block in steps:
                plain(advance, state, given, block, each)
            return state
        count = program.load(state, given)
        for block in steps:
            if reason := program.make(block, each):
                self.uncaptured[reason] += 1
                plain(program.advance, program.state, program.given, block, each)
        return {k: v[:count].clone() for k, v in program.state.items()}

    def forget(self) -> None:
        """Frees the memory of all programs."""
        self.made.clear()
        self._pool.clear()

    def record(self) -> dict[str, Any]:
        """For the record of a run: the capture, the number of programs, and steps not captured by the reason."""
        name = "none" if self.capture is None else self.capture.name
        return {"capture": name, "programs": sum(len(one.calls) for one in self.made.values()), "apart": dict(self.uncaptured)}

    def _program(
        self, kind: Hashable, advance: Advance, state: Named, given: StepArguments, each: Mapping[str, Tensor]
    ) -> Program | None:
        assert self.capture is not None
        constants = {k: v for k, v in given.items() if not isinstance(v, (Tensor, Shared))}
        key = (kind, tuple(constants.items()), _rows(state), _shapes(given), _rows({k: v[:, 0] for k, v in each.items()}))
        if key not in self.made or self.made[key].count < len(next(iter(state.values()))):
            if len(self.made) >= KINDS:
                self.uncaptured[f"more than {KINDS} kinds of a step: give numbers that change as tensors"] += 1
                return None
            self.made[key] = Program(self.capture, advance, state, given, each, partial(self._take, Counter()))
        return self.made[key]

    def _take(self, taken: Counter[tuple[Any, ...]], like: Tensor, device: torch.device) -> Tensor:
        """A tensor of this shape that this program does not use yet. Programs share tensors, since only one runs at a time."""
        shape = (*like.shape, like.dtype, device)
        same = self._pool.setdefault(shape, [])
        if taken[shape] == len(same):
            same.append(torch.empty(like.shape, dtype=like.dtype, device=device))
        taken[shape] += 1
        return same[taken[shape] - 1]


def bucket(count: int, most: int) -> int:
    """The number of clients that a program is made for: few numbers up to `most`, and each little more than `count`."""
    while int(most * NARROWER) >= count:
        most = int(most * NARROWER)
    return most


def plain(advance: Advance, state: Named, given: StepArguments, block: Block, each: Mapping[str, Tensor]) -> None:
    at = block.clients
    mine = {k: v[at] for k, v in state.items()}
    weights = None if block.weights is None else block.weights[at]
    advance(mine, pick(given, at), Inputs(block.index, weights, None, {k: v[at, block.step] for k, v in each.items()}))
    if not isinstance(at, slice):
        for name, value in mine.items():
            state[name][at] = value


def _set_back(state: Named, before: Named) -> None:
    for name, value in before.items():
        state[name].copy_(value)


def _near(found: Tensor, wanted: Tensor, before: Tensor) -> bool:
    """Whether a replay's values agree with the step's. Compares a part of the clients at a time, to need little memory."""
    if not found.numel() or torch.equal(found, wanted):
        return True
    parts = list(zip(found.chunk(PARTS), wanted.chunk(PARTS), before.chunk(PARTS), strict=True))
    change = _largest((w - b).abs_().nan_to_num_(posinf=0) for _, w, b in parts)
    size = _largest(w.abs().nan_to_num_(posinf=0) for _, w, _ in parts)
    # Where the step itself gives no finite number, the replay need not either.
    off = _largest((f - w).abs_().masked_fill_(~w.isfinite(), 0) for f, w, _ in parts)
    return bool(off <= ERROR * change + 1e-6 * size)


def _largest(parts: Iterable[Tensor]) -> Tensor:
    return torch.stack([part.max() for part in parts]).max()


def tensor(value: Any) -> Tensor:
    found: Tensor = value.value if isinstance(value, Shared) else value
    return found


def _copy(value: Any, take: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Shared):
        return Shared(take(value.value))
    return take(value) if isinstance(value, Tensor) else value


def _rows(tensors: Named) -> tuple[Hashable, ...]:
    """Names, shapes and types of tensors with a row for each client, without the number of rows."""
    return tuple((k, v.shape[1:], v.dtype) for k, v in tensors.items())


def _shapes(given: StepArguments) -> tuple[Hashable, ...]:
    shapes = []
    for name, value in given.items():
        if isinstance(value, (Tensor, Shared)):
            shape = tensor(value).shape
            rows = isinstance(value, Tensor) and len(shape) > 1
            shapes.append((name, rows, shape[1:] if rows else shape, tensor(value).dtype))
    return tuple(shapes)
