"""Makes steps of all clients at once, as plain calls or as programs, one program for each kind of step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pflbench.engine.batched.program import Advance, Capture, Named, Program, plain, tensor
from pflbench.engine.batched.steps import Block
from pflbench.engine.requests import Shared, StepArguments

KINDS = 24  # most programs of one step with different constants


class Programs:
    """Makes steps, captured if there is a capture. A step that cannot be captured runs as it is and is counted by the reason."""

    def __init__(self, capture: Capture | None = None) -> None:
        self.capture = capture
        self.apart: Counter[str] = Counter()  # reason -> number of steps not captured
        self._pool: dict[tuple[Any, ...], list[Tensor]] = {}
        self.made: dict[Hashable, Program] = {}
        self._kinds: Counter[Hashable] = Counter()

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
                self.apart[reason] += 1
                plain(program.advance, program.state, program.given, block, each)
        return {k: v[:count].clone() for k, v in program.state.items()}

    def forget(self) -> None:
        """Frees the memory of all programs."""
        self.made.clear()
        self._pool.clear()

    def record(self) -> dict[str, Any]:
        """For the record of a run: the capture, the number of programs, and steps not captured by the reason."""
        name = "none" if self.capture is None else self.capture.name
        return {"capture": name, "programs": sum(len(one.calls) for one in self.made.values()), "apart": dict(self.apart)}

    def _program(
        self, kind: Hashable, advance: Advance, state: Named, given: StepArguments, each: Mapping[str, Tensor]
    ) -> Program | None:
        assert self.capture is not None
        constants = {k: v for k, v in given.items() if not isinstance(v, (Tensor, Shared))}
        key = (kind, tuple(constants.items()), _rows(state), _shapes(given), _rows({k: v[:, 0] for k, v in each.items()}))
        try:
            known = key in self.made and self.made[key].count >= len(next(iter(state.values())))
        except TypeError:
            self.apart["what the step is given has no hash"] += 1
            return None
        if not known:
            self._kinds[_code(kind)] += 1
            if self._kinds[_code(kind)] > KINDS:
                self.apart[f"more than {KINDS} kinds of a step: give numbers that change as tensors"] += 1
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


def _code(kind: Any) -> Hashable:
    """A kind without its constants, with functions by their qualified names."""
    if isinstance(kind, tuple):
        return tuple(_code(part) for part in kind if isinstance(part, tuple) or callable(part))
    return getattr(getattr(kind, "__func__", kind), "__qualname__", None)


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
