"""Faults that a GPU shows and a CPU hides, planted in the package: the GPU made of Python finds each.

More of them, of captured steps and of memory, are in `tests/contract/test_device.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from support.gpu import NAME, World, plugged_in
from support.gpu.trial import compare, small
from support.planted import plant

from pflbench.engine import local
from pflbench.engine.batched import batched_executor as executor
from pflbench.engine.batched import program
from pflbench.engine.batched.batched_executor import BatchedExecutor
from pflbench.engine.batched.program import MIXED, Graph, Program
from pflbench.engine.federation import Federation
from pflbench.errors import Diverged
from pflbench.methods.apple import APPLE

CLOSE = 1e-9


def rounds(world: World, name: str = "fedavg", **settings: Any) -> str:
    """Of a method: what the guard says of the numbers; nothing where all is well."""
    found = compare(world, name, **settings)
    return _apart(found.apart) + f"off in {found.where}" * (not found.off <= CLOSE)


def _apart(steps: dict[str, int]) -> str:
    why = sorted(set(steps) - {MIXED})
    return f"apart {why} " * bool(why)


def failing(world: World, **_: Any) -> str:
    """Of a step that fails in a capture alone, which is then made without."""
    whole = executor._of_unfinished

    def fails(finished: torch.Tensor | None, loss: torch.Tensor) -> torch.Tensor:
        if torch.pygpu.is_current_stream_capturing():
            loss.sum().item()
        return whole(finished, loss)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executor, "_of_unfinished", fails)
        assert "apart" in rounds(world)
    return "another stream is the current one" * (world.stream(0) is not world.gpus[0].default)


def fewer(world: World, **_: Any) -> str:
    """Of a program that was made for seven clients, with six of them and larger batches."""
    results, apart = [], ""
    for engine, device in (("loop", "cpu"), ("captured", f"{NAME}:0")):
        fed = small("mlp", engine, device, n=(11, 10, 12, 13, 11, 10, 14))
        S = fed.all_trainable()
        rows = fed.at(1).sgd(fed.everyone(fed.initial()), S)
        results.append(fed.at(2).sgd(rows[:6], S[:6], plan=fed.batches(S[:6], 1, parts=2)).cpu())
        apart += _apart(fed.executor.record().get("steps", {}).get("apart", {}))
        fed.executor.close()
    return apart + "off" * (not bool((results[0] - results[1]).abs().max() <= CLOSE))


def verdict(work: Callable[..., str], **settings: Any) -> str:
    """What the guard says; nothing where all is well."""
    with plugged_in() as world:
        try:
            found = work(world, **settings)
        except (RuntimeError, IndexError, Diverged) as error:
            return f"refused: {error}"
        said = f"races {dict(world.seen.races)}" * bool(world.seen.races), f"odd {dict(world.seen.odd)}" * bool(world.seen.odd)
        return " ".join(filter(None, (found, *said)))


@pytest.mark.parametrize(
    ("work", "settings"),
    [(rounds, {"name": "fedrep"}), (rounds, {"name": "fedala"}), (failing, {}), (fewer, {})],
)
def test_without_a_fault_nothing_is_found(work, settings):
    assert verdict(work, **settings) == ""


@dataclass(frozen=True)
class Bug:
    """found: what the guard says of it; faults: owner of a function, its name, what stands there, what is planted."""

    found: str
    faults: list[tuple[Any, str, str, str]]
    work: Callable[..., str] = rounds
    settings: dict[str, Any] = field(default_factory=dict)


_NOT_KEPT = (BatchedExecutor, "close", "self._owner._heads.append(self)", "pass")
_BY_SHAPE = (BatchedExecutor, "_data", "self.samples.x.data_ptr(), self.samples.y.data_ptr()", "0, 0")
BUGS = {
    # -- tensors that lie elsewhere
    "a tensor without a device": Bug(
        "same device",
        [(APPLE, "update", "torch.arange(fed.size, device=fed.device)", "torch.arange(fed.size)")],
        rounds,
        {"name": "apple"},
    ),
    "positions on the host as an index": Bug(
        "odd .*an index on the host",
        [(local.InnerLoop, "take", "positions.to(self.clients.device)", "positions")],
        rounds,
        {"name": "fedala"},
    ),
    # -- streams
    "warming up that waits for nothing": Bug(
        "races", [(Graph, "warm_up", "aside.wait_stream(gpu.current_stream(self.device))", "pass")]
    ),
    "warming up that nothing waits for": Bug(
        "races", [(Graph, "warm_up", "gpu.current_stream(self.device).wait_stream(aside)", "pass")]
    ),
    "a failed capture whose stream stays": Bug(
        "another stream", [(Graph, "__call__", "gpu.stream(gpu.current_stream(self.device)), ", "")], failing
    ),
    # -- what a program works on
    "stale vectors": Bug(
        "non-finite", [(Program, "load", "elif isinstance(mine, (Tensor, Shared)):", "elif False:")], rounds, {"name": "fedprox"}
    ),
    "stale rows": Bug(
        "non-finite", [(Program, "load", "mine[:count].copy_(tensor(given[name]))", "pass")], rounds, {"name": "fedphp+ala"}
    ),
    "another tensor says who is at work": Bug(
        "given back", [(Program, "_set", "self.finished.copy_(self", "self.finished = torch.clone(self")]
    ),
    "what the capture did stays": Bug("off", [(program, "_set_back", "state[name].copy_(value)", "pass")]),
    "samples known by their shape alone": Bug("off|given back", [_NOT_KEPT, _BY_SHAPE], rounds, {"name": "fedrep"}),
    # -- steps of unequal clients, at rates that change
    "the first round's learning rate in a step of a method's own": Bug(
        "off in round 2",
        [(Program, "load", "isinstance(mine, (Tensor, Shared)):", "isinstance(mine, Tensor) and (mine.dim() or mine.isnan()):")],
        rounds,
        {"name": "feddeper"},
    ),
    # -- memory that was not written
    "losses that begin with what was there": Bug(
        "off in .*loss", [(BatchedExecutor, "_sgd", "LOSS: loss_out.new_zeros", "LOSS: loss_out.new_empty")]
    ),
    "losses of clients without a step that begin with what was there": Bug(
        "off in .*loss",
        [(BatchedExecutor, "_sgd", "rows.new_zeros(len(plan))", "rows.new_empty(len(plan))")],
        rounds,
        {"n": (13, 3, 9, 11), "drop_last": "always"},
    ),
    "no samples for clients that are not there": Bug(
        "out of (bounds|range)",
        [(Program, "_set", "block.samples.new_zeros(self.count", "block.samples.new_empty(self.count")],
        fewer,
    ),
    # -- the host
    "numbers that are read too early": Bug("without a wait", [(Federation, "send", "S.cpu()", "S.to('cpu', non_blocking=True)")]),
}


@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS)
def test_a_fault_is_found(monkeypatch, bug):
    for fault in bug.faults:
        plant(monkeypatch, *fault)
    found = verdict(bug.work, **bug.settings)
    assert re.search(bug.found, found), found


def test_a_wait_in_every_step_is_counted(monkeypatch):
    """Numbers are right, and the GPU idles: only the count tells."""
    waits = []
    for fault in (False, True):
        if fault:
            plant(monkeypatch, Program, "make", "call()", "call(), float(self.finished.sum())")
        with plugged_in() as world:
            found = compare(world, "fedavg")
            waits.append(found.waited)
    assert waits[1] == waits[0] + found.replays
