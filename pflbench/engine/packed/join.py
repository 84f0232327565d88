"""Joins requests of several runs into one: their clients become further rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import Field, fields, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils._pytree import tree_map

from pflbench.engine.batches import Plan
from pflbench.engine.requests import GIVEN, PER_CLIENT, PER_SAMPLE, PER_STEP, R, Request, Shared, function_key


def joinable(a: Request[Any], b: Request[Any]) -> bool:
    """Whether the two differ only in the numbers of their rows."""
    return type(a) is type(b) and all(_alike(f, getattr(a, f.name), getattr(b, f.name)) for f in _arguments(a))


def joined(requests: Sequence[Request[R]]) -> Request[R]:
    """One request for the clients of all, which must be `joinable`."""
    counts = [len(request.plan) for request in requests]
    together = {f.name: _one(f, [getattr(r, f.name) for r in requests], counts) for f in _arguments(requests[0])}
    return replace(requests[0], plan=Plan.joined([request.plan for request in requests]), **together)


def split(result: Any, counts: Sequence[int]) -> list[Any]:
    """Each request's part of a result, copied: a view of one run's rows would keep the rows of all in memory."""
    if isinstance(result, Tensor):
        return [part.clone() for part in torch.split(result, list(counts))]
    of_all = {name: split(value, counts) for name, value in (result if isinstance(result, dict) else vars(result)).items()}
    return [type(result)(**{name: parts[k] for name, parts in of_all.items()}) for k in range(len(counts))]


def same(a: Any, b: Any) -> bool:
    """Whether two arguments without rows for clients are equal: functions, numbers, tensors."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, Shared) and isinstance(b, Shared):
        return same(a.value, b.value)
    return type(a) is type(b) and function_key(a) == function_key(b)


def _arguments(request: Request[Any]) -> list[Field[Any]]:
    """All fields but the plan."""
    return [f for f in fields(request) if f.name != "plan"]


def _alike(f: Field[Any], a: Any, b: Any) -> bool:
    if f.metadata == GIVEN:
        return a.keys() == b.keys() and all(_alike_given(value, b[key]) for key, value in a.items())
    if f.metadata in (PER_CLIENT, PER_STEP):
        own = 1 if f.metadata == PER_CLIENT else 2  # clients may have different numbers of steps
        return bool(_shapes(a, own) == _shapes(b, own))
    if f.metadata == PER_SAMPLE:
        return bool(a) == bool(b)
    return same(a, b)


def _alike_given(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor) and a.dim() and b.dim():
        return a.dtype == b.dtype and _row(a) == _row(b)
    return same(a, b)


def _row(value: Tensor) -> torch.Size:
    """The shape of one client's row of an argument; [P] is one row for all."""
    return value.shape if value.dim() == 1 else value.shape[1:]


def _shapes(values: Any, own: int) -> Any:
    """Types and shapes of tensors without their first `own` dimensions, in place of the tensors."""
    return tree_map(lambda value: value if value is None else (value.dtype, value.shape[own:]), values)


def _one(f: Field[Any], values: Sequence[Any], counts: Sequence[int]) -> Any:
    if f.metadata == GIVEN:
        return {key: _given([value[key] for value in values], counts) for key in values[0]}
    if f.metadata == PER_STEP:  # filled up to the largest number of steps; no client makes those that are added
        return {key: pad_sequence([row for value in values for row in value[key]], batch_first=True) for key in values[0]}
    if f.metadata == PER_SAMPLE:
        return tuple(chain(*values))
    if f.metadata == PER_CLIENT:
        return tree_map(lambda *rows: None if rows[0] is None else torch.cat(rows), *values)
    return values[0]


def _given(values: Sequence[Any], counts: Sequence[int]) -> Any:
    """A row of each run's own, [P], becomes one for each of its clients."""
    if not isinstance(values[0], Tensor) or values[0].dim() == 0:
        return values[0]
    return torch.cat([v.expand(n, -1) if v.dim() == 1 else v for v, n in zip(values, counts, strict=True)])
