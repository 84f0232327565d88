"""Requests of several runs made as one: their clients become further rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from pflbench.engine.batches import Plan
from pflbench.engine.requests import Executor, Shared, Trained, Walked

# Arguments with a row for each client: tensors, or several of them.
_OF_ROWS = frozenset({"rows", "buffers", "base", "carry", "each", "references"})


@dataclass(frozen=True)
class Request:
    """What an executor is asked for: the name of the method, the plan, and the other arguments by name."""

    executor: Executor
    verb: str
    plan: Plan
    arguments: Mapping[str, Any]

    def make(self) -> Any:
        return getattr(self.executor, self.verb)(plan=self.plan, **self.arguments)


def joinable(a: Request, b: Request) -> bool:
    """Whether the two differ in nothing but the numbers in their rows."""
    if a.executor is not b.executor or a.verb != b.verb or a.arguments.keys() != b.arguments.keys():
        return False
    return all(_alike(name, value, b.arguments[name]) for name, value in a.arguments.items())


def joined(requests: Sequence[Request]) -> Request:
    """One request for the clients of all, which must be `joinable`."""
    first, counts = requests[0], [len(request.plan) for request in requests]
    plan = Plan(*(tuple(part for r in requests for part in getattr(r.plan, name)) for name in ("order", "sizes")))
    arguments = {name: _one(name, [r.arguments[name] for r in requests], counts) for name in first.arguments}
    return Request(first.executor, first.verb, plan, arguments)


def split(result: Any, counts: Sequence[int]) -> list[Any]:
    """What belongs to each of the requests. Copies: a view of one run's rows would keep those of all in memory."""
    if isinstance(result, Tensor):
        return [part.clone() for part in torch.split(result, list(counts))]
    if isinstance(result, tuple):
        return list(zip(*(split(item, counts) for item in result), strict=True))
    fields = result if isinstance(result, dict) else vars(result)
    parts = {name: split(value, counts) for name, value in fields.items()}
    each = [{name: of_all[k] for name, of_all in parts.items()} for k in range(len(counts))]
    return [type(result)(**one) for one in each] if isinstance(result, Trained | Walked) else each


def same(a: Any, b: Any) -> bool:
    """Whether two arguments that are the same for all clients are equal: functions, numbers, tensors."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, Shared) and isinstance(b, Shared):
        return same(a.value, b.value)
    if isinstance(a, partial) and isinstance(b, partial):
        return all(same(getattr(a, name), getattr(b, name)) for name in ("func", "args", "keywords"))
    if isinstance(a, MethodType) and isinstance(b, MethodType):
        return a.__func__ is b.__func__ and same(a.__self__, b.__self__)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same(value, b[name]) for name, value in a.items())
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


def _alike(name: str, a: Any, b: Any) -> bool:
    if name in _OF_ROWS:
        return bool(_shape(name, a) == _shape(name, b))
    if name != "given" or a is None or b is None:
        return same(a, b)
    return a.keys() == b.keys() and all(_alike_given(value, b[key]) for key, value in a.items())


def _alike_given(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor) and a.dim() and b.dim():
        return a.dtype == b.dtype and _row(a) == _row(b)
    return same(a, b)


def _row(value: Tensor) -> torch.Size:
    """The shape of a client's part of what is given: [P] is one row for all."""
    return value.shape if value.dim() == 1 else value.shape[1:]


def _shape(name: str, value: Any) -> Any:
    """What must be equal of arguments with a row for each client. Clients may have different numbers of steps."""
    if isinstance(value, Tensor):
        return value.dtype, value.shape[2 if name == "each" else 1 :]
    if isinstance(value, Mapping):
        return {key: _shape(name, item) for key, item in value.items()}
    return None if value is None else [_shape(name, item) for item in value]


def _one(name: str, values: Sequence[Any], counts: Sequence[int]) -> Any:
    if name in _OF_ROWS:
        return _stacked(values, _most_steps(values) if name == "each" else None)
    if name != "given" or values[0] is None:
        return values[0]
    return {key: _given([value[key] for value in values], counts) for key in values[0]}


def _given(values: Sequence[Any], counts: Sequence[int]) -> Any:
    """A row of each run's own, [P], becomes one for each of its clients."""
    if not isinstance(values[0], Tensor) or values[0].dim() == 0:
        return values[0]
    return torch.cat([v.expand(n, -1) if v.dim() == 1 else v for v, n in zip(values, counts, strict=True)])


def _stacked(values: Sequence[Any], steps: int | None = None) -> Any:
    """steps: to how many inputs of every step [C, steps, ...] are filled up; no client makes those that are added."""
    first = values[0]
    if isinstance(first, Tensor):
        return torch.cat([value if steps is None else _filled(value, steps) for value in values])
    if isinstance(first, Mapping):
        return {key: _stacked([value[key] for value in values], steps) for key in first}
    return None if first is None else [_stacked(items) for items in zip(*values, strict=True)]


def _filled(value: Tensor, steps: int) -> Tensor:
    missing = steps - value.shape[1]
    return torch.cat([value, value.new_zeros(len(value), missing, *value.shape[2:])], dim=1) if missing else value


def _most_steps(values: Sequence[Mapping[str, Tensor] | None]) -> int | None:
    return max((tensor.shape[1] for value in values for tensor in (value or {}).values()), default=None)
