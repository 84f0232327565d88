"""What a request of an executor takes for one client: the request itself is made, of two clients with tensors without data."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pflbench.engine.batches import Plan
from pflbench.engine.memory import Peak
from pflbench.engine.requests import Executor, Request, Shared

CLIENTS = 2  # a single one is not always laid out as several are


def need(executor: Callable[[], Executor], asked: Request[Any], width: int) -> int | None:
    """Bytes for each client, beyond the result, at a batch of `width` samples. executor: makes one on the device "meta".

    None where it cannot be found out, as of a method of one's own that looks at values.
    """
    plan = Plan((np.zeros(width, dtype=np.int64),) * CLIENTS, (np.array([width]),) * CLIENTS)
    try:
        alone = executor()
        request = replace(asked, plan=plan, **{name: _without_data(value) for name, value in _arguments(asked).items()})
        with Peak() as peak:
            _result = alone.do(request)
    except Exception:  # What is wrong with the request, if anything, shows when it is made in earnest.
        return None
    beyond: int = peak.most - peak.now
    return math.ceil(beyond / CLIENTS)


def signature(value: Any) -> Hashable:
    """The same for requests of the same shape, whatever their numbers are."""
    if isinstance(value, Request):
        return signature(_arguments(value))
    if isinstance(value, Tensor):
        return tuple(value.shape[1:] if value.dim() > 1 else value.shape)
    if isinstance(value, Shared):
        return tuple(value.value.shape)
    if isinstance(value, Mapping):
        return tuple((name, signature(item)) for name, item in value.items())
    if isinstance(value, Sequence):
        return tuple(map(signature, value))
    if isinstance(value, slice):
        return value.start, value.stop
    return getattr(value.func if isinstance(value, partial) else value, "__qualname__", None)


def _arguments(asked: Request[Any]) -> dict[str, Any]:
    """All but the plan."""
    return {f.name: getattr(asked, f.name) for f in fields(asked) if f.name != "plan"}


def _without_data(value: Any) -> Any:
    """Of rows, those of a few clients; of anything else, as much as there is."""
    if isinstance(value, Tensor):
        shape = (CLIENTS, *value.shape[1:]) if value.dim() > 1 else value.shape
        return torch.empty(shape, dtype=value.dtype, device="meta")
    if isinstance(value, Shared):
        return Shared(value.value.to("meta"))
    if isinstance(value, Mapping):
        return {name: _without_data(item) for name, item in value.items()}
    if isinstance(value, Sequence):
        return [_without_data(item) for item in value]
    return value
