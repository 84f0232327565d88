"""What a step must not do if it is to be captured, once, and what becomes of the process if it does so unseen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.gpu import plugged_in
from support.gpu.trial import make, small
from support.spies import on_call
from torch import Tensor

from pflbench import methods
from pflbench.contract.small import federation, tensors, train
from pflbench.engine import devices
from pflbench.engine.batched.waits import Watch
from pflbench.engine.loop_executor import LoopExecutor
from pflbench.engine.requests import Request, Scan, Sgd, Shared
from pflbench.engine.samples import Samples

ROWS, HERE = torch.zeros(3, 2), torch.tensor([True, False, True])
META = torch.zeros(3, 2, device="meta")


@pytest.mark.parametrize(
    ("operation", "told"),
    [
        (lambda: ROWS.sum().item(), "aten::_local_scalar_dense waits"),
        (lambda: ROWS.nonzero(), "aten::nonzero waits"),
        (lambda: ROWS[HERE], "aten::index.Tensor waits"),
        (lambda: ROWS.clone().__setitem__(HERE, torch.ones(2, 2)), "aten::index_put_ waits"),
        (lambda: torch.masked_select(ROWS, HERE[:, None]), "aten::masked_select waits"),
        (lambda: ROWS.unique(), "aten::_unique2 waits"),
        (lambda: torch.equal(ROWS, ROWS), "aten::equal waits"),
        (lambda: torch.bincount(torch.tensor([1, 2])), "aten::bincount waits"),
        (lambda: torch.linalg.inv(torch.eye(2)), "aten::_linalg_check_errors waits"),
        (lambda: ROWS.to("meta"), "aten::_to_copy copies between host and device"),
        (lambda: META.copy_(ROWS), "aten::copy_ copies between host and device"),
        (lambda: META[torch.tensor([0, 1])], "aten::index.Tensor copies between host and device"),
        (lambda: torch.ops.aten.lift_fresh(META), "aten::lift_fresh copies between host and device"),  # of torch.tensor
        (lambda: META * torch.tensor(0.5), ""),
        (lambda: META.clone().__setitem__(0, 1.0), ""),
        (lambda: ROWS[torch.tensor([0, 1])], ""),
        (lambda: ROWS.clone().__setitem__(HERE, 1.0), ""),
        (lambda: torch.where(HERE[:, None], ROWS, ROWS + 1).masked_fill(HERE[:, None], 0).gather(1, ROWS.long()), ""),
        (lambda: ROWS.clone().index_put_((torch.tensor([0, 1]),), torch.ones(2, 2), accumulate=True), ""),
    ],
)
def test_what_waits_or_copies_is_found_with_its_place(operation, told):
    with Watch() as watch:
        operation()
    assert watch.found.startswith(told)
    assert bool(watch.found) == bool(told)
    if told:
        assert watch.found.endswith(f"(<lambda>, test_waits.py:{operation.__code__.co_firstlineno})")


@pytest.mark.parametrize("name", methods.names(with_ala=True))
def test_what_changes_from_round_to_round_is_a_tensor(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number is a constant of the step: with another one it would be captured anew, in every round."""
    constants: set[tuple[Any, str, Any]] = set()

    def noted(_: LoopExecutor, asked: Request[Any]) -> None:
        if isinstance(asked, Sgd | Scan):
            step = asked.step if isinstance(asked, Scan) else asked.penalty
            numbers = {k: v for k, v in asked.given.items() if not isinstance(v, (Tensor, Shared))}
            constants.update((getattr(step, "func", step), k, v) for k, v in numbers.items())

    on_call(monkeypatch, LoopExecutor, "do", noted)
    method = methods.make(methods.spec(name, {}, None))
    train(method, federation("mlp", "loop", n=(8, 4), around=method.model), 5)
    assert len(constants) == len({(step, name) for step, name, _ in constants})


# -- on the GPU made of Python ----------------------------------------------------------------------------------------------


def assert_as_the_loop(fed, step, **given):
    """One round of SGD with a correction."""
    found = []
    for one in (small("mlp", "loop", "cpu"), fed):
        at = {name: value.to(one.device) if value.dim() else value for name, value in given.items()}
        found.append(one.at(1).sgd(one.everyone(one.initial()), one.all_trainable(), penalty=step, **at).cpu())
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-9)


def assert_trains(fed):
    expected, found = (tensors(train(make("fedavg"), one, 1)) for one in (small("mlp", "loop", "cpu"), fed))
    for name, value in expected.items():
        torch.testing.assert_close(found[name].cpu(), value, rtol=0, atol=1e-9)


def waits_unseen(w, *, anchor):
    """For the device, where no operation shows it."""
    devices.synchronise(w.device)
    return 0.1 * (w - anchor), w.new_zeros(w.shape[:-1])


def scaled(w, *, by):
    return by * w, w.new_zeros(w.shape[:-1])


def short_of_memory(monkeypatch, clients):
    def batch(_, index):
        if index.dim() == 2 and len(index) > clients:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    on_call(monkeypatch, Samples, "batch", batch)


@pytest.mark.parametrize("old", [True, False], ids=["torch before 2.13", "since"])
def test_after_a_capture_that_failed(old, monkeypatch):
    """The first error is told. Where the allocator stays in its capture, nothing is captured any more, and halving goes on."""
    with plugged_in(torch_before_2_13=old):
        fed = small("mlp", "captured", "pygpu:0")
        assert_as_the_loop(fed, waits_unseen, anchor=torch.zeros(fed.flat.size, dtype=fed.dtype))
        first = next(iter(fed.executor.programs.uncaptured))
        assert "operation not permitted when stream is capturing: synchronize at" in first
        other = small("mlp", "captured", "pygpu:0")
        assert_trains(other)
        assert ["captures_underway" in reason for reason in other.executor.programs.uncaptured] == [True] * old
        short_of_memory(monkeypatch, 2)
        other.executor.programs.forget()
        assert_trains(other)
        assert [(s.clients, s.then) for s in other.executor.chunks.shortages] == [(7, 3), (3, 1)]


def test_a_number_that_is_given_on_the_host_is_not_kept_as_it_was_once():
    with plugged_in():
        fed = small("mlp", "captured", "pygpu:0")
        for by in (0.1, 0.3):
            assert_as_the_loop(fed, scaled, by=torch.tensor(by, dtype=fed.dtype))
        assert not fed.executor.programs.uncaptured
