"""Captured steps: the same numbers, few programs, no Python in between; and what cannot be captured is said."""

import json

import numpy as np
import pytest
import torch
from support.command import rows
from support.spies import on_call

from pflbench.contract.as_run import method as make
from pflbench.contract.recorded import Recorded
from pflbench.contract.small import federation, train
from pflbench.contract.suite import assert_same
from pflbench.engine.batched import program
from pflbench.engine.batched.batched_executor import LARGE, BatchedExecutor
from pflbench.engine.batched.layout import blocks
from pflbench.engine.batched.program import Programs, bucket, capture
from pflbench.engine.batches import Plan
from pflbench.engine.requests import Sgd
from pflbench.engine.samples import Samples
from pflbench.methods.fedprox import proximal

CPU = torch.device("cpu")
# Between two sizes of program: some programs are for more clients than take a step.
SPREAD = (16, 8, 21, 14, 11, 5, 17)


def captured(model="mlp", how=None, **settings):
    fed = federation(model, "batched", **{"n": SPREAD, **settings})
    fed.executor.close()
    fed.executor = BatchedExecutor(fed.flat, fed.executor.samples, capture=how or Recorded())
    return fed


# -- which numbers of clients there are programs for ----------------------------------------------------------------------


def test_there_are_few_sizes_and_none_is_much_too_large():
    for most in (1, 2, 7, 20, 100, 1000):
        sizes = {bucket(count, most) for count in range(1, most + 1)}
        assert len(sizes) <= 4 + np.log(most) / -np.log(0.8)
        for count in range(1, most + 1):
            assert count <= bucket(count, most) <= max(count / 0.8 + 2, 1)
    assert bucket(1, 1) == 1
    assert bucket(20, 20) == 20


# -- the same numbers -----------------------------------------------------------------------------------------------------


def pushed_later(w, *, start, by):
    """From the second step on."""
    return torch.where((w == start).all(-1, keepdim=True), torch.zeros_like(w), by), w.new_zeros(w.shape[:-1])


# Five go on, in a program for six.
SIX = (15, 15, 15, 15, 15, 5, 5, 5)
assert bucket(5, len(SIX)) == 6


@pytest.mark.parametrize(("model", "large"), [("mlp", LARGE), ("mlp", 1), ("fasttext", LARGE)])
def test_a_client_that_has_finished_stays_finite(model, large, monkeypatch):
    """The step that others go on to make would find no numbers for it any more, and 0 times none is none."""
    monkeypatch.setattr("pflbench.engine.batched.batched_executor.LARGE", large)
    found = []
    for fed in (federation(model, n=SIX), captured(model, n=SIX)):
        plan, rows, buffers = fed.batches(fed.all_trainable(), 1), fed.everyone(fed.initial()), fed.buffers_of("model")
        done = fed.executor.do(Sgd(plan, rows, buffers, 1e200))
        found.append((done.models[5:], done.loss[5:]))
    torch.testing.assert_close(found[1], found[0])
    assert all(values.isfinite().all() for values in found[0])
    further = Sgd(plan.take([5, 6, 7]), found[0][0], buffers[5:], 1e200)
    assert not fed.executor.do(further).models.isfinite().all(1).any()


def test_a_correction_without_a_number_is_not_that_of_those_who_have_finished():
    found = []
    for fed in (federation(n=SIX), captured(n=SIX)):
        S, rows = fed.all_trainable(), fed.everyone(fed.initial())
        by = torch.tensor([[0.5]] * 5 + [[torch.inf]] * 3, dtype=fed.dtype)
        found.append(fed.sgd(rows, S, penalty=pushed_later, start=rows, by=by))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-10)
    assert found[1].isfinite().all()


def test_batches_of_different_sizes_are_one_block_with_weights():
    plan = Plan((np.arange(7), np.arange(10, 15), np.arange(20, 23)), (np.array([3, 3, 1]), np.array([3, 2]), np.array([3])))
    merged = list(blocks(plan, torch.float64, CPU, merged=True))
    assert [(block.first, block.index[:, 0].tolist()) for block in merged] == [(3, [0, 10, 20]), (2, [3, 13]), (1, [6])]
    assert [block.weights[: block.first].sum(1).tolist() for block in merged] == [pytest.approx([1] * k) for k in (3, 2, 1)]
    assert merged[1].weights[1].tolist() == [0.5, 0.5, 0]
    assert merged[2].index.tolist() == [[6, 0, 0]], "filled up with the client's own samples"
    apart = [(block.step, block.size, block.index.tolist()) for block in blocks(plan, torch.float64, CPU, merged=False)]
    assert apart == [
        (0, 3, [[0, 1, 2], [10, 11, 12], [20, 21, 22]]),
        (1, 3, [[3, 4, 5]]),
        (1, 2, [[13, 14]]),
        (2, 1, [[6]]),
    ]


# -- made once, then replayed ---------------------------------------------------------------------------------------------


def test_after_the_first_round_no_step_runs_python(monkeypatch):
    method, fed = make("fedala"), captured()
    state = train(method, fed, 2)
    programs, calls = fed.executor.programs.record()["programs"], []
    on_call(monkeypatch, Samples, "batch", lambda _, index: calls.append(index.shape))
    S = fed.all_trainable()
    state = method.update(fed.at(3), state, S)
    assert calls == []
    method.receive(fed.at(4), state, S)
    assert len(calls) == 1, "ALA's features: two samples show what they look like"
    assert fed.executor.programs.record()["programs"] == programs


def test_memory_is_given_back():
    fed = captured()
    train(make("fedavg"), fed, 1)
    fed.executor.close()
    assert fed.executor.programs.record()["programs"] == 0


def test_memory_that_runs_out_while_a_program_is_made_is_given_back(monkeypatch):
    fed, held = captured(), []

    def take(self, taken, like, device):
        if len(like) == len(SPREAD) and taken.total() == 2:
            raise torch.OutOfMemoryError

    def release(device):
        held.append([row for rows in fed.executor.programs._pool.values() for row in rows])

    on_call(monkeypatch, Programs, "_take", take)
    monkeypatch.setattr("pflbench.engine.memory.release", release)
    assert_same(train(make("fedavg"), fed, 1), train(make("fedavg"), federation("mlp", "loop", n=SPREAD), 1), 1e-10)
    assert held == [[]], "nothing is left of the program for all when half as many are tried"
    assert [(s.clients, s.then) for s in fed.executor.chunks.shortages] == [(7, 3)]


class Failing(Recorded):
    def __init__(self, error):
        self.error = error

    def __call__(self, step):
        raise self.error


def test_a_graph_that_memory_is_too_small_for_is_no_reason_to_make_steps_without():
    fed = captured(how=Failing(torch.AcceleratorError("CUDA error: out of memory")))
    with pytest.raises(torch.OutOfMemoryError, match="CUDA error: out of memory"):
        train(make("fedavg"), fed, 1)
    assert [shortage.clients for shortage in fed.executor.chunks.shortages] == [7, 3]
    assert not fed.executor.programs.uncaptured


# -- what cannot be captured ----------------------------------------------------------------------------------------------


def looks(w, *, anchor, strength):
    """A penalty that decides by a number: a graph would take the same way for ever."""
    pull = strength * (w - anchor)
    return (pull if float(pull.abs().max()) > 0 else pull * 2), pull.square().sum(-1)


def fit(fed, **how):
    S = fed.all_trainable()
    rows = fed.everyone(fed.initial())
    return fed.at(1).sgd(rows, S, penalty=looks, anchor=torch.zeros(fed.flat.size, dtype=fed.dtype), **how)


def test_a_step_that_reads_numbers_is_made_without_capture_and_said():
    """It is never tried: a capture that fails leaves a mess on a GPU."""
    fed = captured(how=Failing(AssertionError("tried")))
    torch.testing.assert_close(fit(fed, strength=0.1), fit(federation(n=SPREAD), strength=0.1), rtol=0, atol=1e-10)
    (reason,) = fed.executor.programs.uncaptured
    line = looks.__code__.co_firstlineno + 3
    assert reason == f"not captured: aten::_local_scalar_dense waits for the device (looks, test_capture.py:{line})"


class FailingAtFirst(Recorded):
    """A warm-up that fails behind the step, as one does whose kernels have to be compiled where there is no compiler."""

    def warm_up(self, step):
        step()
        raise RuntimeError("Failed to find C compiler.")


def test_a_step_whose_warm_up_fails_is_made_without_capture_and_said():
    fed = captured(how=FailingAtFirst())
    assert_same(train(make("fedavg"), fed, 2), train(make("fedavg"), federation(n=SPREAD), 2), 1e-10)
    assert list(fed.executor.programs.uncaptured) == ["not captured: RuntimeError: Failed to find C compiler."]


def test_a_run_says_once_that_steps_are_not_captured_and_why(shell, monkeypatch):
    monkeypatch.setattr("pflbench.run.prepared.capture", lambda name, device: Failing(RuntimeError("no such luck\nat all")))
    done = shell("run", "-m", "fedavg", "-d", "digits", "--rounds", "2", "--batch-size", "50", "--engine", "batched")
    assert done.err.count("without a CUDA graph") == 1
    assert "with the same results: RuntimeError: no such luck. Python launches each" in " ".join(done.err.split())
    ((steps,),) = rows("SELECT json_extract(environment, '$.steps') FROM run")
    assert list(json.loads(steps)["apart"]) == ["not captured: RuntimeError: no such luck"]


class Idle(Recorded):
    """A capture that does nothing when it is called."""

    name = "idle"

    def __call__(self, step):
        step()
        return lambda: None


def test_a_program_that_gives_other_numbers_is_not_used():
    fed = captured(how=Idle())
    assert_same(train(make("fedala"), federation(n=SPREAD), 2), train(make("fedala"), fed, 2), 1e-10)
    assert list(fed.executor.programs.uncaptured) == ["not captured: the program gave other numbers"]


def test_numbers_that_change_from_request_to_request_are_not_captured_for_ever(monkeypatch):
    monkeypatch.setattr(program, "KINDS", 3)
    for as_tensors in (False, True):
        fed = captured()
        S, anchor = fed.all_trainable(), torch.zeros(fed.flat.size, dtype=fed.dtype)
        rows = fed.everyone(fed.initial())
        for strength in torch.linspace(0, 0.1, 5, dtype=fed.dtype):
            given = strength if as_tensors else float(strength)
            rows = fed.at(1).sgd(rows, S, penalty=proximal, anchor=anchor, strength=given)
        assert as_tensors != any("give numbers that change as tensors" in reason for reason in fed.executor.programs.uncaptured)


def test_steps_are_captured_on_a_gpu_alone():
    assert [capture(name, CPU) for name in ("auto", "graph", "none")] == [None] * 3
    found = [capture(name, torch.device("cuda", 7)) for name in ("auto", "graph", "none")]
    assert [one and one.name for one in found] == ["graph", "graph", None]
