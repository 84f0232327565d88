"""Memory: what is counted, how many clients are computed at a time, and what happens when there is not enough."""

import weakref

import numpy as np
import pytest
import torch
from support.cases import rest_slow
from support.spies import on_call

from pflbench.contract.as_run import method as make
from pflbench.contract.small import federation, tensors, train
from pflbench.contract.suite import assert_same
from pflbench.engine import memory
from pflbench.engine.batched.program import _near
from pflbench.engine.memory import Chunks
from pflbench.engine.requests import Scan, Sgd
from pflbench.engine.samples import Samples
from pflbench.methods import METHODS
from pflbench.run.memory_estimate import Peak
from pflbench.run.record import messages

CPU = torch.device("cpu")


def batched(chunks=None, model="mlp", **how):
    fed = federation(model, "batched", **{"n": (14, 13, 19, 13, 15), **how})
    fed.executor.chunks = chunks or Chunks()
    return fed


def limit(monkeypatch, clients):
    """No more clients than this fit: the second batch of more of them fails, after a step that changed what it could."""
    calls = []

    def batch(self, index):
        if self.device.type != "meta" and index.dim() == 2 and len(index) > clients:
            calls.append(len(index))
            if len(calls) % 2 == 0:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    on_call(monkeypatch, Samples, "batch", batch)


# -- what is counted --------------------------------------------------------------------------------------------------


def test_the_peak_counts_what_lives_at_once():
    a = torch.zeros(1000)
    with Peak() as peak:
        b = a + 1  # 4,000 bytes
        c = b.double()  # 8,000 more
        view = c[:10]
        del b
        d = a[:5].view(5).add_(1)  # nothing new
        e = torch.ones(100)  # 400
    assert (peak.most, peak.now, peak.largest) == (12_000, 8_400, 8_000)
    assert len(view) + len(d) + len(e) == 115


def test_a_program_is_compared_with_its_step_in_less_memory_than_the_rows_have():
    wanted = torch.randn(32, 1000, generator=torch.Generator().manual_seed(0))
    wanted[3, 5] = torch.inf
    before, near, far = wanted + 1, wanted * (1 + 1e-7), wanted.clone()
    before[3], near[3, 5], far[9, 7] = 0, torch.nan, torch.nan
    with Peak() as peak:
        assert _near(near, wanted, before)
    assert peak.most < wanted.nbytes
    assert not _near(far, wanted, before)
    assert not _near(near + 0.01, wanted, before)


@pytest.mark.parametrize(
    ("refused", "free"), [(None, 730), (RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED"), 700)]
)
def test_free_memory_of_a_gpu_is_what_the_driver_has_once_the_cache_is_empty(refused, free, monkeypatch):
    """Of 50 bytes reserved without a tensor, 20 are those of a graph, which no other tensor gets."""
    driver = {"free": 700}

    def empty_cache():
        if refused:
            raise refused
        driver["free"] += 30

    monkeypatch.setattr(torch.cuda, "empty_cache", empty_cache)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (driver["free"], 1000))
    assert memory.free(torch.device("cuda")) == free


def container(folder, **files):
    """What Linux says of its memory."""
    for name, text in files.items():
        (folder / f"memory.{name}").write_text(f"{text}\n")


def test_free_memory_of_a_cpu_is_within_the_container_s_limit(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    of_machine = memory.free(CPU)
    in_use = "anon 3000000\ninactive_file 1500000\nactive_file 400000\nslab 7"
    container(tmp_path, max=9_000_000, current=5_000_000, stat=in_use)
    assert memory.free(CPU) == 5_900_000
    container(tmp_path, max="max")
    if of_machine is not None:
        assert memory.free(CPU) == pytest.approx(of_machine, rel=0.5)


def test_what_else_takes_memory_does_not_change_how_many_fit_a_cpu(monkeypatch, tmp_path):
    """Their number decides the last digits of a result."""
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    rooms = []
    for used in (100, 9_000_000):
        container(tmp_path, max=10_000_000, current=used, stat="inactive_file 0")
        rooms.append((memory.room(CPU), memory.free(CPU)))
    assert rooms == [(5_000_000, 9_999_900), (5_000_000, 1_000_000)]


# -- how many clients at a time ---------------------------------------------------------------------------------------


def sizes(chunks, clients):
    seen = []
    chunks.each("training", np.arange(clients), CPU, lambda now: seen.append(now.tolist()))
    assert [client for now in seen for client in now] == list(range(clients))
    return [len(now) for now in seen]


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        (Chunks(), [10]),
        (Chunks(4), [4, 4, 2]),
        (Chunks(4, estimate=1), [4, 4, 2]),  # what was asked for is done
        (Chunks(9), [9, 1]),
        (Chunks(estimate=11), [10]),
        (Chunks(estimate=9), [5, 5]),  # two parts, and of one size
        (Chunks(estimate=4), [4, 4, 2]),
        (Chunks(estimate=1), [1] * 10),
    ],
)
def test_as_many_at_a_time_as_memory_is_thought_to_be_enough_for(chunks, expected):
    assert sizes(chunks, 10) == expected
    assert chunks.record()["clients"] == ({} if expected == [10] else {"training": expected[0]})
    assert sizes(chunks, 0) == []


def test_out_of_memory_halves_and_repeats_and_is_kept():
    chunks, done = Chunks(), []

    def work(now):
        if len(now) > 3:
            raise torch.OutOfMemoryError
        done.append(len(now))

    chunks.each("training", np.arange(10), CPU, work)
    chunks.each("training", np.arange(7), CPU, work)
    assert done == [2, 2, 2, 2, 2, 2, 2, 2, 1]
    assert [(s.clients, s.then) for s in chunks.shortages] == [(10, 5), (5, 2)]
    assert messages({"chunk": chunks.record()})[0].startswith("Out of memory in training with 10 clients at a time: 2 at a time")
    assert (chunks.halvings("training"), chunks.halvings("evaluation")) == (2, 0)


@pytest.mark.parametrize(
    ("error", "is_it"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"), True),
        (torch.AcceleratorError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_errors_that_mean_that_memory_ran_out(error, is_it):
    assert memory.ran_out(error) is is_it


def test_what_a_failed_part_held_is_free_before_the_next():
    held = []

    def work(now):
        if held:
            assert held[0]() is None
        mine = torch.zeros(10)
        held.append(weakref.ref(mine))
        if len(now) > 2:
            raise torch.OutOfMemoryError

    Chunks().each("training", np.arange(4), CPU, work)
    assert len(held) == 3


# -- the results do not depend on it ----------------------------------------------------------------------------------


QUICK = [("fedavg", "mlp"), ("fedala", "mlp"), ("fedrep+ala", "mlp"), ("fedavg", "batchnorm"), ("pfedme", "batchnorm")]


@pytest.mark.parametrize(
    ("name", "model"), rest_slow(dict.fromkeys([*QUICK, *((name, "mlp") for name in METHODS), ("fedala", "batchnorm")]), *QUICK)
)
def test_neither_fitting_nor_running_out_changes_a_method(name, model, monkeypatch):
    method = make(name)
    fed = batched(model=model, around=method.model)
    whole = train(method, fed, 1)
    tested = fed.evaluate(method.deployed(whole), fed.all_trainable(), method.tested_model)

    def same(chunks):
        other = batched(chunks, model, around=method.model)
        state = train(method, other, 1)
        assert_same(whole, state, 1e-12)
        for which, buffers in fed.buffers.items():
            torch.testing.assert_close(other.buffers[which], buffers, rtol=0, atol=1e-12)
        scores = other.evaluate(method.deployed(state), other.all_trainable(), method.tested_model)
        assert scores.correct.tolist() == tested.correct.tolist()
        assert scores.loss == pytest.approx(tested.loss, abs=1e-12)
        return chunks

    assert same(Chunks(estimate=2)).record()["clients"]["training"] == 2
    limit(monkeypatch, 2)
    assert [(s.clients, s.then) for s in same(Chunks()).shortages if s.work == "training"] == [(5, 2)]


def test_running_out_counts_no_loss_twice(monkeypatch):
    fed = batched()
    S, rows = fed.all_trainable(), fed.everyone(fed.initial())
    steps, buffers = fed.batches(S, 1), fed.buffers_of("model")

    def step(grad, w):
        return {"w": w - 0.1 * grad(w)}

    def losses():
        fed.executor.chunks = Chunks()
        scanned = fed.executor.do(Scan(steps, step, rows, {"w": rows}, {}, buffers.unsqueeze(1)))
        return torch.stack([scanned.loss, scanned.last_loss, fed.executor.do(Sgd(steps, rows, buffers, 0.1)).loss])

    expected = losses()
    limit(monkeypatch, 2)
    torch.testing.assert_close(losses(), expected, rtol=0, atol=1e-12)
    assert fed.executor.chunks.shortages


def test_running_out_in_evaluation_shrinks_its_batches_too(monkeypatch):
    fed = batched(tests=(90, 4, 30, 70, 110))
    models, S = fed.everyone(fed.initial()), fed.all_trainable()
    expected = fed.evaluate(models, S)
    monkeypatch.setattr("pflbench.engine.batched.batched_executor.EVALUATED_AT_ONCE", 64)
    seen = []

    def batch(self, index):
        seen.append(index.numel())
        if index.numel() > 40 and len(seen) % 2 == 0:
            raise torch.OutOfMemoryError

    on_call(monkeypatch, Samples, "batch", batch)
    after = fed.evaluate(models, S)
    assert seen[:3] == [60, 48, 32], "12 of each of 5 clients, then of the 4 that have more; then 16 of each of 2"
    assert max(seen[2:]) == 32
    assert after.correct.tolist() == expected.correct.tolist()
    assert after.loss == pytest.approx(expected.loss)
    assert fed.executor.chunks.record()["clients"] == {"evaluation": 2}


# -- nothing of size C x C x P ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedfomo", "apple", "fedamp", "heurfedamp"])
def test_no_tensor_is_larger_than_twice_all_models(name):
    C = 40
    fed = batched(n=(2,) * C, tests=(1,) * C, batch_size=2)
    one = C * fed.flat.size * fed.dtype.itemsize
    with Peak() as peak:
        state = train(make(name), fed, 1)
    assert one <= peak.largest <= 2 * one, "C x P, and with both parts of a step; C x C x P would be 40 times that"
    assert peak.most < 20 * one
    theta = next(value for value in tensors(state).values() if value.shape == (C, fed.flat.size))
    with Peak() as offence:
        (torch.ones(C, C, 1) * theta).sum(1)
    assert offence.largest == C * one, "such a one would be seen"
