"""Captured steps: the same numbers, few programs, no Python in between; and what cannot be captured is said."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from pflbench import methods
from pflbench.contract.recorded import Recorded
from pflbench.contract.small import federation, tensors, train
from pflbench.engine.batched.executor import BatchedExecutor
from pflbench.engine.batched.program import MIXED, WARM_UPS, Graph, bucket, capture
from pflbench.engine.batched.programs import KINDS, frozen
from pflbench.engine.batched.steps import blocks
from pflbench.engine.batches import Plan
from pflbench.engine.samples import Samples
from pflbench.methods.fedprox import proximal

CPU = torch.device("cpu")
# Between two sizes of program: some programs are for more clients than take a step.
SPREAD = (16, 8, 21, 14, 11, 5, 17)


def make(name):
    return methods.make(methods.spec(name, {"max_init_epochs": "2"} if name == "fedala" else {}))


def captured(model="mlp", how=None, **settings):
    fed = federation(model, "batched", **{"n": SPREAD, **settings})
    fed.executor.close()
    fed.executor = BatchedExecutor(fed.flat, fed.executor.samples, capture=how or Recorded())
    return fed


def assert_same(a, b, tolerance=1e-10):
    for field, value in tensors(a).items():
        torch.testing.assert_close(tensors(b)[field], value, rtol=0, atol=tolerance)


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


@pytest.mark.parametrize("model", ["mlp", "batchnorm", "fasttext"])
@pytest.mark.parametrize("name", ["ditto", "pfedme", "fedphp", "fedala"])
def test_clients_that_have_finished_stay_as_they_are(name, model):
    settings = {"n": SPREAD, "drop_last": "never" if name == "ditto" else "auto"}
    fed = captured(model, **settings)
    assert_same(train(make(name), federation(model, "batched", **settings), 1), train(make(name), fed, 1))
    assert fed.executor.programs.record()["programs"] > 0
    assert set(fed.executor.programs.apart) <= {MIXED}


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
    programs, calls, whole = fed.executor.programs.record()["programs"], [], Samples.batch
    monkeypatch.setattr(Samples, "batch", lambda self, index: calls.append(index.shape) or whole(self, index))
    S = fed.nobody_left_out()
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


@pytest.fixture
def cuda(monkeypatch):
    """A stand-in for CUDA: from which pools graphs take their memory, and on which streams work is done."""
    pools, streams = [], []

    class Drawn:
        def replay(self):
            pass

        def pool(self):
            return 7

    @contextmanager
    def graph(drawn, pool):
        pools.append(pool)
        yield

    @contextmanager
    def on(stream):
        streams.append(stream)
        yield

    stands_in = {
        "Stream": lambda device: Mock(),
        "current_stream": lambda device=None, stream=Mock(): stream,
        "CUDAGraph": Drawn,
        "graph": graph,
        "stream": on,
    }
    for name, value in stands_in.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return SimpleNamespace(pools=pools, streams=streams)


def test_graphs_share_memory_as_long_as_there_is_one(cuda):
    pools, streams = cuda.pools, cuda.streams
    taken, record = Graph(torch.device("cuda")), Mock()
    calls = [taken(record), taken(record)]
    assert pools == [None, 7]
    assert record.call_count == 2 * (WARM_UPS + 1)
    calls.clear()
    taken(record)
    assert pools[-1] is None, "the memory of graphs that are gone is gone"
    assert streams[0] is streams[2] is streams[4], "one stream for warming up"
    assert streams[1] is streams[3] is torch.cuda.current_stream(), "to which a failed capture returns, too"


def test_after_a_failed_capture_there_is_a_new_pool(cuda):
    taken, step = Graph(torch.device("cuda")), Mock()
    kept = taken(step)
    step.side_effect = [None] * WARM_UPS + [RuntimeError("operation not permitted when stream is capturing")]
    with pytest.raises(RuntimeError, match="not permitted"):
        taken(step)
    step.side_effect = None
    taken(step)
    assert cuda.pools == [None, 7, None]
    assert kept is not None


def test_programs_are_forgotten_when_memory_runs_out(monkeypatch):
    fed, whole, failed = captured(), Samples.batch, []
    train(make("fedavg"), fed, 1)

    def batch(self, index):
        if self.device.type != "meta" and index.dim() == 2 and len(index) > 3:
            failed.append(len(index))
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return whole(self, index)

    fed.executor.programs.forget()
    monkeypatch.setattr(Samples, "batch", batch)
    assert_same(train(make("fedavg"), fed, 1), train(make("fedavg"), federation("mlp", "loop", n=SPREAD), 1))
    assert failed
    assert {len(one.live) for one in fed.executor.programs.made.values()} == {3}


# -- what cannot be captured ----------------------------------------------------------------------------------------------


def looks(w, *, anchor, strength):
    """A penalty that decides by a number: a graph would take the same way for ever."""
    pull = strength * (w - anchor)
    return (pull if float(pull.abs().max()) > 0 else pull * 2), pull.square().sum(-1)


def fit(fed, **how):
    S = fed.nobody_left_out()
    rows = fed.everyone(fed.initial())
    return fed.at(1).sgd(rows, S, correct=looks, anchor=torch.zeros(fed.flat.size, dtype=fed.dtype), **how)


def test_a_step_that_reads_numbers_is_made_without_capture_and_said():
    fed = captured()
    torch.testing.assert_close(fit(fed, strength=0.1), fit(federation(n=SPREAD), strength=0.1), rtol=0, atol=1e-10)
    (reason,) = fed.executor.programs.apart
    assert "not permitted while a step is captured" in reason


class Idle:
    """A capture that does nothing when it is called."""

    name = "idle"

    def __call__(self, step):
        step()
        return lambda: None


def test_a_program_that_gives_other_numbers_is_not_used():
    fed = captured(how=Idle())
    assert_same(train(make("fedala"), federation(n=SPREAD), 2), train(make("fedala"), fed, 2))
    assert list(fed.executor.programs.apart) == ["not captured: the program gave other numbers"]


def test_numbers_that_change_from_request_to_request_are_not_captured_for_ever():
    fed = captured()
    S, anchor = fed.nobody_left_out(), torch.zeros(fed.flat.size, dtype=fed.dtype)
    rows = fed.everyone(fed.initial())
    for k in range(KINDS + 2):
        rows = fed.at(1).sgd(rows, S, correct=proximal, anchor=anchor, strength=0.01 * k)
    (reason,) = fed.executor.programs.apart
    assert "give numbers that change as tensors" in reason
    as_tensors = captured()
    rows = as_tensors.everyone(as_tensors.initial())
    for k in range(KINDS + 2):
        rows = as_tensors.at(1).sgd(rows, S, correct=proximal, anchor=anchor, strength=torch.tensor(0.01 * k, dtype=fed.dtype))
    assert not as_tensors.executor.programs.apart


def test_functions_are_known_by_themselves_and_their_arguments():
    assert frozen(partial(looks, strength=[1, 2])) == frozen(partial(looks, strength=[1, 2]))
    assert frozen(partial(looks, strength=1)) != frozen(partial(looks, strength=2))


def test_steps_are_captured_on_a_gpu_alone():
    assert [capture(name, CPU) for name in ("auto", "graph", "none")] == [None] * 3
    found = [capture(name, torch.device("cuda", 7)) for name in ("auto", "graph", "none")]
    assert [one and one.name for one in found] == ["graph", "graph", None]


def test_there_is_no_other_way_of_capture(shell):
    told = shell.refused("run", "-m", "fedavg", "-d", "digits", "--engine", "batched", "--capture", "compile", "--dry-run")
    assert "Unknown capture 'compile'" in told
    assert "Valid: auto, graph, none" in told
