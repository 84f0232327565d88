"""Steps of all clients at once, as plain calls or as programs: captured once for a shape, then replayed without Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from pflbench.engine.batched.capture import Call, Capture
from pflbench.engine.batched.steps import Block
from pflbench.engine.requests import PER_STEP, Given, Request, Shared, pick

Named = dict[str, Tensor]
NARROWER = 0.8  # of two neighbouring numbers of clients for which programs are made, the smaller one by the larger one
MIXED = "batches of different sizes in one step"  # that cannot be filled up
KINDS = 24  # of one step with different constants; more, and they are not constants
COPIES = 3  # of a client's rows: the program's own, and two while its numbers are compared with those of the step itself
ERROR = 1e-3  # by how much a program's change may be off, by the largest change: float32, other algorithms


@dataclass(frozen=True)
class Inputs:
    """Of one step. live: 1.0 for clients that make it, 0.0 for those that must stay as they are, [c]; None where all make it.

    each: the step's own inputs by name, [c, ...].
    """

    index: Tensor
    weights: Tensor | None
    live: Tensor | None
    each: Named


Take = Callable[[Tensor, Counter[tuple[Any, ...]]], Tensor]
Advance = Callable[[Named, Given, Inputs], None]
"""advance(state, given, inputs): one step of c clients, which changes state [c, ...] in place."""


class Programs:
    """Makes steps, captured where there is a capture. What cannot be captured is made as it is, and counted with the reason."""

    def __init__(self, capture: Capture | None = None) -> None:
        self.capture = capture
        self.apart: Counter[str] = Counter()  # why -> steps
        self._pool: dict[tuple[Any, ...], list[Tensor]] = {}
        self.made: dict[Hashable, _Program] = {}
        self._kinds: Counter[Hashable] = Counter()

    def run(
        self,
        kind: Hashable,
        advance: Advance,
        state: Named,
        given: Given,
        steps: Iterator[Block],
        each: Mapping[str, Tensor],
    ) -> Named:
        """The state after all steps. The given one may be overwritten.

        state: [C, ...]. each: inputs of every step, [C, steps, ...]. kind: names what `advance` does, its constants included: two
        of one kind do the same with tensors of the same shapes.
        """
        program = None if self.capture is None else self._program(kind, advance, state, given, each)
        if program is None:
            for block in steps:
                _plain(advance, state, given, block, each)
            return state
        try:
            return self._replayed(program, state, given, steps, each)
        except torch.OutOfMemoryError:
            self.forget()
            raise

    def forget(self) -> None:
        """Gives back the memory of all programs."""
        self.made.clear()
        self._pool.clear()

    def held(self, asked: Request[Any]) -> int:
        """Bytes for each client that a captured request takes beyond one made as it is; at most, and once for all its rounds."""
        if self.capture is None:
            return 0
        kept = [getattr(asked, f.name) for f in fields(asked) if f.metadata != PER_STEP]  # of that, one step's at a time
        rows = [v for v in tree_leaves(kept) if isinstance(v, Tensor) and v.dim() > 1]
        return COPIES * sum(row.nbytes // max(1, len(row)) for row in rows)

    def record(self) -> dict[str, Any]:
        """For the record of a run: the capture, its programs, and why steps were not captured, with their number."""
        name = "none" if self.capture is None else self.capture.name
        return {"capture": name, "programs": sum(len(one.calls) for one in self.made.values()), "apart": dict(self.apart)}

    def _replayed(
        self,
        program: _Program,
        state: Named,
        given: Given,
        steps: Iterator[Block],
        each: Mapping[str, Tensor],
    ) -> Named:
        count = program.load(state, given)
        for block in steps:
            if reason := program.make(block, each):
                self.apart[reason] += 1
                _plain(program.advance, program.state, program.given, block, each)
        return {k: v[:count].clone() for k, v in program.state.items()}

    def _program(
        self, kind: Hashable, advance: Advance, state: Named, given: Given, each: Mapping[str, Tensor]
    ) -> _Program | None:
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
            self.made[key] = _Program(self.capture, advance, state, given, each, self._take)
        return self.made[key]

    def _take(self, like: Tensor, taken: Counter[tuple[Any, ...]]) -> Tensor:
        """A tensor of this shape that no other one of the same program has. Programs share them, since only one runs."""
        shape = (*like.shape, like.dtype, like.device)
        same = self._pool.setdefault(shape, [])
        if taken[shape] == len(same):
            same.append(torch.empty(like.shape, dtype=like.dtype, device=like.device))
        taken[shape] += 1
        return same[taken[shape] - 1]


class _Program:
    """One kind of step on tensors of its own, for up to `count` clients, and its calls by number of clients."""

    def __init__(
        self,
        capture: Capture,
        advance: Advance,
        state: Named,
        given: Given,
        each: Mapping[str, Tensor],
        take: Take,
    ) -> None:
        self.capture, self.advance = capture, advance
        taken: Counter[tuple[Any, ...]] = Counter()

        def mine(like: Tensor) -> Tensor:
            return take(like, taken)

        self.state = {k: mine(v) for k, v in state.items()}
        self.given = {k: _copy(v, mine) for k, v in given.items()}
        self.each = {k: mine(v[:, 0]) for k, v in each.items()}
        first = next(iter(state.values()))
        self.count = len(first)
        # Float state comes first; the models decide the type of what is multiplied with them.
        self.live = mine(torch.empty(self.count, dtype=first.dtype, device=first.device))
        self.ladder = torch.ones(self.count + 1, self.count, dtype=first.dtype, device=first.device).tril(-1)
        self.calls: dict[tuple[int, int, bool], tuple[Call | None, str]] = {}
        self.inputs: dict[tuple[int, bool], tuple[Tensor, Tensor | None]] = {}
        self._live_now = -1

    def load(self, state: Named, given: Given) -> int:
        """Returns the number of clients. The rows of others keep what they have, which may be another program's."""
        self._live_now = -1
        count = len(next(iter(state.values())))
        for name, value in state.items():
            self.state[name][:count].copy_(value)
        for name, mine in self.given.items():
            if isinstance(mine, Tensor) and mine.dim() > 1:
                mine[:count].copy_(_tensor(given[name]))
            elif isinstance(mine, (Tensor, Shared)):
                _tensor(mine).copy_(_tensor(given[name]))
        return count

    def make(self, block: Block, each: Mapping[str, Tensor]) -> str:
        """Makes the step; or says why it has to be made without capture."""
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
        if block.first != self._live_now:
            self.live.copy_(self.ladder[block.first])
            self._live_now = block.first

    def _captured(self, count: int, width: int, weighted: bool) -> tuple[Call | None, str]:
        index, weights = self.inputs[width, weighted]
        state = {k: v[:count] for k, v in self.state.items()}
        given = pick(self.given, slice(0, count))
        live, now = self.live[:count], {k: v[:count] for k, v in self.each.items()}
        inputs = Inputs(index[:count], None if weights is None else weights[:count], live, now)
        step = partial(self.advance, state, given, inputs)
        before = {k: v.clone() for k, v in state.items()}
        # The step itself comes first: what it needs in between is free again when the program takes its own memory.
        step()
        wanted = {k: v.clone() for k, v in state.items()}
        _set_back(state, before)
        try:
            call = self.capture(step)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a method's own step does that cannot be captured: it is made without
            return None, f"not captured: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        finally:
            _set_back(state, before)
        call()
        same = all(_near(state[k], wanted[k], before[k]) for k in state)
        _set_back(state, before)
        return (call, "") if same else (None, "not captured: the program gave other numbers")


def bucket(count: int, most: int) -> int:
    """The number of clients for which there is a program: few for all numbers up to `most`, and few clients too many in each."""
    while int(most * NARROWER) >= count:
        most = int(most * NARROWER)
    return most


def _plain(advance: Advance, state: Named, given: Given, block: Block, each: Mapping[str, Tensor]) -> None:
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
    if not found.numel() or torch.equal(found, wanted):
        return True
    change = (wanted - before).abs().nan_to_num(posinf=0).max()
    off = (found - wanted).abs()
    # Where the step itself gives no finite number, the program need not either.
    return bool((off[wanted.isfinite()] <= ERROR * change + 1e-6 * wanted.abs().nan_to_num(posinf=0).max()).all())


def frozen(function: Any) -> Hashable:
    """What a function is known by: itself, and its arguments where it is a partial one. They may turn out to have no hash."""
    if isinstance(function, partial):
        named = tuple(sorted((name, _value(value)) for name, value in function.keywords.items()))
        return frozen(function.func), tuple(map(_value, function.args)), named
    found: Hashable = function
    return found


def _value(value: Any) -> Any:
    return tuple(map(_value, value)) if isinstance(value, (list, tuple)) else value


def _code(kind: Any) -> Hashable:
    """A kind without its constants: functions by where they are written."""
    if isinstance(kind, tuple):
        return tuple(_code(part) for part in kind if isinstance(part, tuple) or callable(part))
    return getattr(getattr(kind, "__func__", kind), "__qualname__", None)


def _rows(tensors: Named) -> tuple[Hashable, ...]:
    """Names, shapes and types of tensors with a row for each client, whatever their number."""
    return tuple((k, v.shape[1:], v.dtype) for k, v in tensors.items())


def _shapes(given: Given) -> tuple[Hashable, ...]:
    found = []
    for name, value in given.items():
        if isinstance(value, (Tensor, Shared)):
            shape = _tensor(value).shape
            rows = isinstance(value, Tensor) and len(shape) > 1
            found.append((name, rows, shape[1:] if rows else shape, _tensor(value).dtype))
    return tuple(found)


def _tensor(value: Any) -> Tensor:
    found: Tensor = value.value if isinstance(value, Shared) else value
    return found


def _copy(value: Any, take: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Shared):
        return Shared(take(value.value))
    return take(value) if isinstance(value, Tensor) else value
