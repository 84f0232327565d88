"""The executors of a pack: one run goes on at a time, and like requests become one."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from pflbench.contract.small import federation
from pflbench.engine.packed.packed_executor import Pack

# -- taking turns -------------------------------------------------------------------------------------------------------


def together(*works: Any) -> tuple[Pack, list[Any]]:
    """Each work is called with its executor, and what it returns is kept."""
    pack = Pack(federation(engine="batched").executor, len(works))
    result: dict[int, Any] = {}

    def generator(number: int) -> Iterator[Any]:
        yield works[number](pack.executors[number])

    for number, item in pack.together([generator(k) for k in range(len(works))]):
        result[number] = item
    return pack, [result[k] for k in range(len(works))]


def test_gradients_are_made_or_not_as_each_run_says() -> None:
    """PyTorch keeps that for a thread, and all of them are in one."""
    fed = federation()

    def work(gradients: bool, executor: Any) -> list[bool]:
        own, seen = copy.copy(fed), []
        own.executor = executor
        with torch.set_grad_enabled(gradients):
            for _ in range(3):
                own.evaluate(fed.initial(), torch.arange(fed.size))
                seen.append(torch.is_grad_enabled())
        return seen

    assert together(*(partial(work, gradients) for gradients in (False, True, False)))[1] == [
        [False] * 3,
        [True] * 3,
        [False] * 3,
    ]
    assert torch.is_grad_enabled()


# -- which requests are one ----------------------------------------------------------------------------------------------


def scaled(w: Tensor, *, anchor: Tensor, strength: float, factor: float = 1.0) -> tuple[Tensor, Tensor]:
    d = factor * strength * (w - anchor)
    return d, (d * d).sum(-1)


@pytest.mark.parametrize(
    ("first", "second", "apart"),
    [
        ({}, {}, 0),
        ({"strength": 0.1}, {"strength": 0.2}, 1),
        ({"penalty": partial(scaled, factor=2.0)}, {"penalty": partial(scaled, factor=2.0)}, 0),
        ({"penalty": partial(scaled, factor=2.0)}, {"penalty": partial(scaled, factor=3.0)}, 1),
        ({"columns": slice(None)}, {"columns": slice(0, 78)}, 1),
        ({"anchor": "rows"}, {}, 0),
    ],
)
def test_differences_between_requests(first: dict[str, Any], second: dict[str, Any], apart: int) -> None:
    """One row of a run's own is one for each of its clients; what differs in anything but rows is made apart. Equal anyway."""

    def work(seed: int, how: dict[str, Any], executor: Any) -> Tensor:
        fed = federation("mlp", "batched", seed=seed)
        fed.executor = executor or fed.executor
        S = torch.arange(fed.size)
        anchor = fed.everyone(fed.initial() + 1) if how.get("anchor") else fed.initial() + 1
        return fed.at(1).sgd(fed.everyone(fed.initial()), S, **{"penalty": scaled, "strength": 0.1, **how, "anchor": anchor})

    pack, found = together(partial(work, 0, first), partial(work, 1, second))
    for seed, how in enumerate((first, second)):
        torch.testing.assert_close(found[seed], work(seed, how, None), rtol=0, atol=1e-12)
    assert [executor.record()["pack"]["apart"] for executor in pack.executors] == ([1, 0] if apart else [0, 0])
