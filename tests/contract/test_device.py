"""The checks of a device: a right one passes, planted faults are found and named.

The device is a CPU where that will do, and else the GPU made of Python.
"""

from __future__ import annotations

import re

import pytest
import torch
from support import planted
from support.gpu import NAME, plugged_in
from support.planted import plant
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from pflbench.contract import as_run, device, small
from pflbench.contract.device import MEMORY, PACKING, PRODUCTS, TF32, Check
from pflbench.contract.recorded import Recorded
from pflbench.engine.batched.batched_executor import BatchedExecutor
from pflbench.engine.batched.program import bucket
from pflbench.engine.memory import Chunks
from pflbench.run import prepared

CPU = torch.device("cpu")
GPU = torch.device(NAME, 0)


TWENTY = as_run.CLIENTS["n"]


@pytest.fixture(autouse=True)
def _seven_clients(monkeypatch):
    """Of which 7, 6 and 1 make a step: all that is checked of 20 is here, in less time."""
    monkeypatch.setitem(as_run.CLIENTS, "n", (12, *(21,) * 5, 33))


def found(*checks, on=CPU):
    return dict(device.check([Check(*check) for check in checks], on))


def only(check, on=CPU):
    (said,) = found(check, on=on).values()
    return said


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(device, "MANY", (10,) * 16)
    with plugged_in() as world:
        yield world


@pytest.fixture
def recorded(monkeypatch):
    """What a run would capture on a GPU is recorded on a CPU."""
    monkeypatch.setattr(prepared, "capture", lambda name, device: None if name == "none" else Recorded())


class Rounded(TorchDispatchMode):
    """Arithmetic that is TF32 where float32 was asked for."""

    PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "convolution", "convolution_backward")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in self.PRODUCTS:
            args = tree_map(self.rounded, args)
        return func(*args, **(kwargs or {}))

    @staticmethod
    def rounded(value):
        if not isinstance(value, torch.Tensor) or value.dtype != torch.float32:
            return value
        return ((value.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


# -- what is right passes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("floats", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_a_cpu_passes(floats, recorded):
    wanted = [(PRODUCTS, "", floats), (PACKING, "captured", floats), ("apple", "captured", floats)]
    said = found(*wanted, ("mlp", "batched", floats), ("fasttext", "captured", floats))
    assert {str(check): str(one) for check, one in said.items()} == {str(check): "passed" for check in said}
    assert len(said) == len(wanted) + 2
    # What is allowed is far from what is there.
    assert all(one.off < one.allowed / 10 for one in said.values())


@pytest.mark.slow
def test_a_cpu_passes_all(recorded, monkeypatch):
    monkeypatch.setitem(as_run.FEWER_STEPS, "n", (11, 21))
    for what, (channels, *_) in as_run.IMAGES.items():
        monkeypatch.setitem(as_run.IMAGES, what, (channels, 16, 16))
    said = dict(device.check(device.whole(), CPU))
    unable = {check.what for check, one in said.items() if one.status == "not supported"}
    assert unable == {TF32, MEMORY}
    assert {one.status for check, one in said.items() if check.what not in unable} == {"passed"}


def test_clients_are_as_unequal_as_those_of_runs():
    """All programs that 20 clients can need are made, some of them for more clients than take the step."""
    steps = sorted(n // 10 for n in TWENTY)
    at_work = [sum(count > step for count in steps) for step in range(steps[-1])]
    assert len(steps) == 20
    assert {bucket(count, 20) for count in at_work} == {bucket(count, 20) for count in range(1, 21)}
    assert any(bucket(count, 20) > count for count in at_work)


def test_the_pace_is_measured(monkeypatch):
    monkeypatch.setitem(as_run.IMAGES, "cnn, 3 channels", (3, 16, 16))
    found = device.pace(CPU)
    assert min(found.together, found.alone) > 0


# -- planted faults ---------------------------------------------------------------------------------------------------------


def test_float32_that_is_tf32_in_secret_is_found():
    with Rounded():
        said = found((PRODUCTS, "", "float32"), ("mlp", "batched", "float32"), ("mlp", "batched", "float64"))
    by_name = {str(check): one for check, one in said.items()}
    assert by_name["products in float32"].status == "failed"
    assert 1e-4 < by_name["products in float32"].off < 1e-3
    assert by_name["mlp, batched in float32"].status == "failed"
    assert by_name["mlp, batched in float64"].status == "passed"


def test_a_program_of_wrong_numbers_is_found(monkeypatch):
    """Such as the engine finds itself, and then makes its steps as they are."""

    class Forgetful(Recorded):
        def __call__(self, step):
            made = super().__call__(step)
            made.__self__.operations.pop()
            return made

    monkeypatch.setattr(small, "Recorded", Forgetful)
    said = only(("fedavg", "captured", "float64"))
    assert (said.status, "other numbers" in said.why) == ("failed", True)
    assert said.off <= said.allowed, "no run of it had wrong numbers"


def test_what_cannot_be_captured_is_not_supported(monkeypatch):
    class Refusing(Recorded):
        def __call__(self, step):
            raise RuntimeError("operation not permitted")

    monkeypatch.setattr(small, "Recorded", Refusing)
    said = only(("fedavg", "captured", "float64"))
    assert said.status == "not supported"
    assert "operation not permitted" in said.why


def test_what_raises_has_failed(monkeypatch):
    def broken(*_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nMore of it")

    monkeypatch.setattr(BatchedExecutor, "_sgd", broken)
    said = only(("mlp", "batched", "float64"))
    assert (said.status, said.why) == ("failed", "RuntimeError: CUDA error: an illegal memory access was encountered")


# -- on the GPU made of Python ----------------------------------------------------------------------------------------------


def test_memory_that_runs_out_is_found_to_be_handled(gpu, monkeypatch):
    assert only((MEMORY, "batched", "float64"), GPU).status == "passed"
    assert torch.zeros(1 << 20, device=NAME).nbytes, "what was taken is given back"


def test_a_halving_that_leaves_clients_out_is_found(gpu, monkeypatch):
    plant(monkeypatch, Chunks, "each", "forget()", "start += 1; forget()")
    said = only((MEMORY, "batched", "float64"), GPU)
    assert said.status == "failed"
    assert said.off > 1e-6


FAULTS = {
    "a learning rate that stays the first round's": (planted.FROZEN_RATE, ("mlp", "captured", "float64"), ""),
    "one step more": (planted.ONE_STEP_MORE, ("fedavg", "captured", "float64"), ""),
    "statistics of the other model": (planted.OTHER_STATISTICS, ("feddeper", "captured", "float64"), "buffers|test loss"),
    "a pool of graphs that are gone": (planted.DEAD_POOL, (MEMORY, "captured", "float64"), "pool of graphs that are gone"),
}


@pytest.mark.parametrize(("fault", "check", "why"), FAULTS.values(), ids=FAULTS)
def test_a_fault_of_captured_steps_is_found(gpu, monkeypatch, fault, check, why):
    plant(monkeypatch, *fault)
    said = only(check, GPU)
    assert said.status == "failed"
    assert re.search(why, said.why)


def test_bits_that_are_others_the_second_time_are_found(gpu, monkeypatch):
    plant(monkeypatch, BatchedExecutor, "_sgd", "loss_out / _step", "loss_out * (1 + 1e-5 * float(torch.rand(()))) / _step")
    said = only(("mlp", "deterministic", "float32"), GPU)
    assert (said.status, said.why[:5]) == ("failed", "other")


def test_convolutions_are_made_as_a_run_chooses(gpu, monkeypatch):
    monkeypatch.setattr(prepared.Prepared, "convolution", lambda *_: "the chosen one")
    fed = as_run.federation("cnn, 3 channels", "captured", "float32", GPU)
    assert fed.executor.record()["steps"]["convolution"] == "the chosen one"
