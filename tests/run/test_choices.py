"""What was measured when a run was begun holds until its end, and with --deterministic nothing is measured."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.gpu import plugged_in
from support.runs import environments, interrupted, numbers, rows, run, short
from support.spies import on_call
from torch import nn

from pflbench.engine import devices, memory
from pflbench.engine.batched import convolutions
from pflbench.engine.batched.batched_executor import BatchedExecutor
from pflbench.engine.memory import Chunks
from pflbench.engine.samples import Samples
from pflbench.errors import UserError
from pflbench.run import arithmetic
from pflbench.run.arithmetic import exact_arithmetic
from pflbench.run.device import checked
from pflbench.run.execution import Execution
from pflbench.run.options import RunOptions
from pflbench.run.pack import execute_pack
from pflbench.run.plan import plan
from pflbench.run.prepared import Prepared
from pflbench.run.record import as_begun
from pflbench.run.training import execute
from pflbench.store import runs

CPU, GPU = torch.device("cpu"), torch.device("cuda")
BATCHED = Execution("cpu", "batched", checkpoint_every=0.0)
FEW, MANY = 120_000, 10**12  # bytes: room for some of five clients, and for all


def spec(**more):
    return short("fedavg", **more)


def room(monkeypatch, size):
    monkeypatch.setattr(memory, "room", lambda *_, **__: size)


def begin(store, rounds=2, how=BATCHED):
    """A run that is interrupted after this round; what is told of it."""
    return [text for step in interrupted(spec(), store, rounds, how) for text in step.news]


def too_little(monkeypatch, clients):
    """Memory is not enough for more clients in a training step."""

    def batch(self, index):
        if self.device.type != "meta" and index.shape[0] > clients and torch.is_grad_enabled():
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    on_call(monkeypatch, Samples, "batch", batch)


# -- an interrupted run -------------------------------------------------------------------------------------------------


def test_a_run_goes_on_with_as_many_clients_at_a_time(store, monkeypatch):
    room(monkeypatch, FEW)
    begin(store)
    (begun,) = environments(store)
    clients = begun["chunk"]["clients"]["training"]
    assert 1 <= clients < 5
    room(monkeypatch, MANY)
    resumed = run(spec(), store, engine="batched")
    assert resumed[0].kind == "resumed"
    assert environments(store)[0]["chunk"] == begun["chunk"]
    run(spec(), store, engine="batched", force=True)
    assert environments(store)[1]["chunk"]["clients"] == {}, "a run of its own has what is free now"
    room(monkeypatch, FEW)
    run(spec(), store, engine="batched", force=True)
    assert numbers(store, 1) == numbers(store, 3), "the numbers of a run that was not interrupted"


def test_what_is_asked_for_is_done(store, monkeypatch):
    room(monkeypatch, FEW)
    begin(store)
    run(spec(), store, engine="batched", chunk=4)
    assert environments(store)[0]["chunk"]["asked"] == 4
    assert environments(store)[0]["chunk"]["clients"] == {"training": 4, "evaluation": 4}


def test_choices_are_stored_before_the_first_round(store, monkeypatch):
    room(monkeypatch, FEW)
    steps = execute(spec(), store, Path("data"), BATCHED)
    assert next(steps).kind == "started"
    assert rows(store, "SELECT COUNT(*) FROM round") == [(0,)]
    (begun,) = environments(store)
    assert 1 <= begun["chunk"]["estimate"] < 5
    assert begun["steps"]["capture"] == "none"
    steps.close()


@pytest.mark.parametrize(
    ("asked", "recorded", "device", "expected"),
    [
        ("auto", "unfold", None, "unfold"),
        ("auto", "groups", None, "groups"),
        ("groups", "unfold", None, "groups"),
        ("auto", "unfold", "another GPU", "auto"),
    ],
)
def test_the_convolution_that_was_measured_is_taken_again(store, asked, recorded, device, expected):
    begin(store)
    found = runs.newest(store, spec().key)
    found = replace(found, environment={"steps": {"convolution": recorded}}, device=device or found.device)
    assert as_begun(replace(BATCHED, convolution=asked), found, CPU).convolution == expected
    assert as_begun(BATCHED, None, CPU) == BATCHED


def test_on_a_gpu_nothing_is_measured_twice(store, tmp_path, monkeypatch):
    np.savez(tmp_path / "own.npz", x=np.zeros((60, 16, 16), np.uint8), y=np.arange(60) % 3)
    few = {"clients": 3, "beta": 50.0, "min_samples": 4, "batch_size": 10, "rounds": 2}
    (images,) = plan(RunOptions(("fedavg",), (f"npz:{tmp_path / 'own.npz'}",), tmp_path, "cnn", **few))
    ways = []
    on_call(monkeypatch, BatchedExecutor, "_sgd", lambda own, asked: ways.append(own.convolution))
    monkeypatch.setattr(convolutions, "fastest", lambda _: "unfold")
    with plugged_in():
        interrupted(images, store, 1, Execution(capture="none"))
        monkeypatch.setattr(convolutions, "fastest", lambda _: "groups")
        list(execute(images, store, tmp_path, Execution(capture="none")))
        list(execute(images, store, tmp_path, Execution(capture="none"), force=True))
    assert [one["steps"]["convolution"] for one in environments(store)] == ["unfold", "groups"]
    assert ways == ["unfold", "unfold", "groups", "groups"]


def test_a_pack_goes_on_as_its_runs_did(store, monkeypatch):
    specs = [spec(seed=seed) for seed in (0, 1)]
    how = replace(BATCHED, pack=2)
    room(monkeypatch, FEW)
    told = execute_pack(specs, store, Path("data"), how)
    next(each for each in told if each[1].round == 2)
    told.close()
    begun = [one["chunk"]["estimate"] for one in environments(store)]
    room(monkeypatch, MANY)
    list(execute_pack(specs, store, Path("data"), how))
    assert [one["chunk"]["estimate"] for one in environments(store)] == begun
    assert begun[0] == begun[1] < 10


# -- memory that ran out --------------------------------------------------------------------------------------------------


def test_a_run_goes_on_with_what_a_shortage_left(store, monkeypatch):
    room(monkeypatch, MANY)
    with monkeypatch.context() as patched:
        too_little(patched, 3)
        (told,) = begin(store)
    assert told.startswith("Out of memory in training with 5 clients at a time: 2 at a time from here on")
    (begun,) = environments(store)
    assert begun["chunk"]["out_of_memory"] == [{"work": "training", "clients": 5, "then": 2, "round": 1}]
    told = [text for step in run(spec(), store, engine="batched") for text in step.news]
    assert not any("Out of memory" in text for text in told), "it was told"
    assert environments(store)[0]["chunk"] == begun["chunk"]
    too_little(monkeypatch, 3)
    run(spec(), store, engine="batched", force=True)
    assert numbers(store, 1) == numbers(store, 2), "the numbers of a run that was not interrupted"


def test_a_shortage_after_the_checkpoint_has_not_happened(store, tmp_path, monkeypatch):
    """A killed process: the database is ahead of the checkpoint, and the rounds between are made again."""
    room(monkeypatch, MANY)
    begin(store, rounds=1)
    (checkpoint,) = tmp_path.glob("*.checkpoints/*.pt")
    shutil.copy(checkpoint, tmp_path / "kept")
    with monkeypatch.context() as patched:
        too_little(patched, 3)
        begin(store, rounds=3)
    assert [one["round"] for one in environments(store)[0]["chunk"]["out_of_memory"]] == [2]
    shutil.copy(tmp_path / "kept", checkpoint)
    assert run(spec(), store, engine="batched")[0].round == 1
    assert environments(store)[0]["chunk"]["out_of_memory"] == []
    run(spec(), store, engine="batched", force=True)
    assert numbers(store, 1) == numbers(store, 2)


def test_runs_that_share_an_executor_remember_as_the_one_that_got_furthest():
    chunks, two = Chunks(), [memory.Shortage("training", 8, 4), memory.Shortage("training", 4, 2)]
    for known in (two[:1], two, [], two[:1]):
        chunks.remember(known)
    assert chunks.shortages == two
    seen = []
    chunks.each("training", np.arange(6), CPU, lambda some: seen.append(len(some)))
    assert seen == [2, 2, 2]


# -- the same bits on a GPU -------------------------------------------------------------------------------------------


@pytest.fixture
def cublas(monkeypatch):
    """Its setting, which stays as it was."""
    monkeypatch.delenv(arithmetic.CUBLAS, raising=False)
    yield lambda: os.environ.get(arithmetic.CUBLAS)
    os.environ.pop(arithmetic.CUBLAS, None)


def test_operations_take_their_deterministic_form(cublas):
    with exact_arithmetic(GPU):
        assert not torch.are_deterministic_algorithms_enabled()
        assert cublas() is None
    with exact_arithmetic(GPU, deterministic=True):
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.backends.cudnn.deterministic
        assert cublas() == ":4096:8"
        assert not torch.utils.deterministic.fill_uninitialized_memory, "one more kernel for each tensor"
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert not torch.are_deterministic_algorithms_enabled()


def newer():
    torch.backends.fp32_precision = "tf32"
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    torch.backends.cudnn.conv.fp32_precision = "ieee"


@pytest.mark.parametrize("device", [GPU, torch.device("cpu")])
@pytest.mark.parametrize("others", [newer, lambda: torch.set_float32_matmul_precision("medium"), lambda: None])
def test_float32_is_itself_whatever_others_have_set(others, device):
    """By either of PyTorch's two ways, of which the older one cannot be read where the newer one says something else."""
    cuda, cudnn, cpu = torch.backends.cuda, torch.backends.cudnn, torch.backends.mkldnn
    kinds, before = (cuda.matmul, cudnn.conv, cudnn.rnn, cpu.matmul, cpu.conv, cpu.rnn), torch.backends.fp32_precision
    others()
    for dtype, precision, older in (("tf32", "tf32", ("high", True)), ("float32", "ieee", ("highest", False))):
        if (device.type, dtype) != ("cpu", "tf32"):
            with exact_arithmetic(device, dtype):
                assert {kind.fp32_precision for kind in kinds} == {precision}
                assert (torch.get_float32_matmul_precision(), cudnn.allow_tf32) == older
    torch.backends.fp32_precision = before


def put(device="cpu"):
    torch.zeros(3, device=device).put_(torch.zeros(2, dtype=torch.int64, device=device), torch.zeros(2, device=device))


def test_an_operation_without_one_is_refused_by_its_name(cublas):
    put()
    with pytest.raises(UserError) as refused, exact_arithmetic(GPU, deterministic=True):
        put()
    assert refused.value.message == "--deterministic: 'put_' has no deterministic form on this device."
    assert not torch.are_deterministic_algorithms_enabled()
    with pytest.raises(RuntimeError, match="another"), exact_arithmetic(GPU, deterministic=True):
        raise RuntimeError("another error")


def test_cublas_without_its_setting_is_refused(cublas):
    """PyTorch's words, where the process used it before."""
    with pytest.raises(UserError, match="CUBLAS_WORKSPACE_CONFIG") as refused, exact_arithmetic(GPU, deterministic=True):
        raise RuntimeError(
            "Deterministic behavior was enabled, but this operation is not deterministic because it uses CuBLAS and you have "
            "CUDA >= 10.2. To enable it, you must set an environment variable: CUBLAS_WORKSPACE_CONFIG=:4096:8"
        )
    assert ":4096:8" in refused.value.hint


@pytest.mark.parametrize("capture", ["graph", "none"])
def test_a_refused_run_ends_with_one_line(capture, store, monkeypatch, cublas):
    whole = BatchedExecutor._descent

    def descent(*given):
        advance = whole(*given)
        return lambda state, *more: put(device=state["models"].device) or advance(state, *more)

    monkeypatch.setattr(BatchedExecutor, "_descent", descent)
    how = Execution(capture=capture, deterministic=True)
    with plugged_in(), pytest.raises(UserError, match="'put_' has no deterministic form"):
        list(execute(spec(rounds=1), store, Path("data"), how))
    assert rows(store, "SELECT status FROM run") == [("failed",)]


def test_nothing_is_measured(monkeypatch):
    monkeypatch.setattr(convolutions, "fastest", lambda _: pytest.fail("a measurement"))
    samples = Samples(np.zeros((2, 8, 8), np.uint8), np.zeros(2), torch.float32, torch.device("meta"))
    how = Execution("cuda", "batched", deterministic=True)

    class Flat:
        module = nn.Conv2d(1, 1, 3)

    assert Prepared(None, None, None, None, how).convolution(Flat, samples, 4) == "groups"
    assert not how.unfolds("cuda")
    with pytest.raises(UserError, match="--convolution search excludes --deterministic"):
        checked(replace(how, convolution="search"))


def test_clients_at_a_time_do_not_depend_on_what_is_free(monkeypatch):
    class Gpu:
        @staticmethod
        def mem_get_info(device):
            return 3, 80

    monkeypatch.setattr(devices, "of", lambda device: Gpu)
    monkeypatch.setattr(memory, "release", lambda device: None)
    assert memory.room(GPU) == 3
    assert memory.room(GPU, fixed=True) == 40


def test_a_shortage_ends_a_deterministic_run(store, monkeypatch):
    too_little(monkeypatch, 3)
    with pytest.raises(UserError, match="Out of GPU memory") as caught:
        run(spec(), store, engine="batched", deterministic=True)
    assert "--chunk N" in caught.value.hint
    run(spec(), store, engine="batched", deterministic=True, chunk=3)
    assert rows(store, "SELECT status FROM run") == [("finished",)]


@pytest.mark.parametrize(("first", "then", "recorded"), [(True, True, True), (False, True, None), (True, False, None)])
def test_the_record_says_so_only_of_all_rounds(store, first, then, recorded):
    begin(store, how=replace(BATCHED, deterministic=first))
    run(spec(), store, engine="batched", deterministic=then)
    assert environments(store)[0].get("deterministic") == recorded


def test_on_a_cpu_the_bits_are_the_same_anyway(store):
    run(spec(), store, engine="batched")
    run(spec(), store, engine="batched", deterministic=True, force=True)
    assert numbers(store, 1) == numbers(store, 2)


def test_the_command_line(shell):
    command = ("-d", "digits", "--rounds", "1", "--clients", "2", "--deterministic", "--json")
    assert shell("run", "-m", "fedavg", *command).code == 0
    refused = shell.refused("run", "-m", "fedavg", *command, "--engine", "batched", "--convolution", "search")
    assert "--convolution search needs a GPU" in refused
