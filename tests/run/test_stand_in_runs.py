"""Runs on the GPU made of Python: what `run` does on a GPU alone, from the choice of the device to memory that is not enough."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from support.gpu import NAME, faultless, plugged_in
from support.planted import plant
from support.runs import environments, interrupted, rows, short

from pflbench.engine import devices, memory
from pflbench.errors import UserError
from pflbench.run import doctor, prepared
from pflbench.run.checkpoint import Checkpoints
from pflbench.run.device import checked, find_device
from pflbench.run.execution import Execution
from pflbench.run.federation_data import load_federation_data
from pflbench.run.memory_estimate import estimate
from pflbench.run.pack import execute_pack
from pflbench.run.training import execute

DATA = Path("data")
MEASURED = "SELECT round, accuracy, test_loss, train_loss, bytes_up FROM round WHERE run_id = {} ORDER BY round"


@pytest.fixture
def gpu():
    with faultless() as world:
        yield world


def brief(method="fedavg", **more):
    return short(method, **{"rounds": 2, "clients": 4, **more})


def run(spec, store, device=NAME, **how):
    """Its number."""
    *_, last = execute(spec, store, DATA, Execution(device, **how), force=True)
    assert last.kind == "finished"
    return last.run_id


def measured(store, number):
    return torch.tensor([[float(v or 0) for v in row] for row in rows(store, MEASURED.format(number))], dtype=torch.float64)


def assert_same_numbers(store, ours, theirs):
    torch.testing.assert_close(measured(store, ours), measured(store, theirs), rtol=0, atol=1e-9)


# -- the device -----------------------------------------------------------------------------------------------------------


def test_the_device_is_the_gpu_if_there_is_one():
    assert find_device("auto") == torch.device("cpu")
    with pytest.raises(UserError, match="not supported"):
        find_device(NAME)
    with plugged_in(devices=2):
        assert find_device("auto") == find_device(NAME) == torch.device(NAME, 0)
        assert find_device(f"{NAME}:1") == torch.device(NAME, 1)
        with pytest.raises(UserError, match="sees 2 GPUs here"):
            find_device(f"{NAME}:2")
        assert Execution().engine_on(NAME) == "batched"
        assert checked(Execution(capture="graph")).capture == "graph"
        with pytest.raises(UserError, match="--workers 2"):
            checked(Execution(workers=2))


def test_the_doctor_sees_it(gpu):
    found = doctor._device([])
    assert found["gpus"] == [devices.name(torch.device(NAME))] * 2
    assert found["auto"].startswith(NAME)


def test_a_run_on_a_gpu_gives_the_numbers_of_one_on_a_cpu(store, gpu):
    ours, theirs = run(brief("fedala"), store, "auto"), run(brief("fedala"), store, "cpu", workers=1)
    assert_same_numbers(store, ours, theirs)
    assert rows(store, f"SELECT device, engine FROM run WHERE id = {ours}") == [(devices.name(torch.device(NAME)), "batched")]
    steps = environments(store)[ours - 1]["steps"]
    assert steps["capture"] == "graph"
    assert steps["programs"] > 0
    assert steps["apart"] == {}


def test_the_loop_executor_on_a_gpu(store, gpu):
    assert_same_numbers(store, run(brief(), store, engine="loop"), run(brief(), store, "cpu", workers=1))


# -- the clock, and how much memory was in use ----------------------------------------------------------------------------


def test_time_is_taken_when_the_gpu_is_done(store, gpu):
    run(brief(), store)
    waits = sum(count for (what, where), count in gpu.seen.waits.items() if what == "synchronize" and "devices.py" in where)
    assert waits >= 2 * 3 * 2, "before and after three phases of two rounds"


def test_the_peak_of_memory_is_the_gpus_and_begins_anew(store, gpu):
    number = run(brief(batch_size=400), store)
    (large,) = rows(store, f"SELECT MAX(peak_memory) FROM round WHERE run_id = {number}")[0]
    memory = gpu.gpus[0].memory
    assert memory.peak < large <= memory.most_reserved, "with what graphs keep"
    number = run(brief(batch_size=10), store)
    (small,) = rows(store, f"SELECT MAX(peak_memory) FROM round WHERE run_id = {number}")[0]
    assert 0 < small < large


def test_a_run_leaves_no_memory_behind(store, gpu):
    run(brief(), store)
    gc.collect()
    assert gpu.gpus[0].memory.live == 0
    assert gpu.gpus[0].memory.in_pools == 0


# -- memory that is not enough --------------------------------------------------------------------------------------------


def shortages(store, number):
    return environments(store)[number - 1]["chunk"]["out_of_memory"]


@pytest.mark.parametrize("capture", ["graph", "none"])
def test_where_memory_runs_out_clients_are_halved(store, monkeypatch, capture):
    monkeypatch.setattr(memory, "room", lambda device, **_: 1 << 40)  # the estimate knows nothing of the limit
    with plugged_in() as world:
        plenty = run(brief(), store, capture=capture)
        needed = world.gpus[0].memory.peak
    assert shortages(store, plenty) == []
    with plugged_in(memory=int(0.8 * needed)) as world:
        scarce = run(brief(), store, capture=capture)
        assert world.gpus[0].memory.peak <= 0.8 * needed
        assert not world.seen.races
    assert shortages(store, scarce)[0]["clients"] == 4
    assert environments(store)[scarce - 1]["steps"]["apart"] == {}
    assert_same_numbers(store, scarce, plenty)


def room_for(clients, spec):
    """Bytes of a device that by the estimate can compute so many clients at a time, if their steps are not captured."""
    needed = estimate(spec, load_federation_data(spec, DATA), Execution(capture="none"), NAME)
    return next(size for size in range(1 << 20, 1 << 30, 1 << 14) if needed.fitting(size) == clients)


@pytest.mark.parametrize(("capture", "clients"), [("graph", 8), ("none", 3)])
def test_by_its_estimate_a_run_keeps_within_the_memory(store, capture, clients):
    spec = brief(clients=8)
    with plugged_in(memory=room_for(clients, spec)):
        number = run(spec, store, capture=capture)
    assert shortages(store, number) == [], "fewer clients at a time from the start"
    assert_same_numbers(store, number, run(spec, store, "cpu", workers=1))


def test_an_estimate_that_forgets_captured_steps_is_found(store, monkeypatch):
    spec = brief(clients=8)
    plant(monkeypatch, prepared, "estimate", "if how.captures(device) else 0", "if not how.captures(device) else 0")
    with plugged_in(memory=room_for(8, spec)):
        assert shortages(store, run(spec, store))


def test_too_little_memory_for_anything_is_the_users_to_mend(store):
    with plugged_in(memory=1 << 20), pytest.raises(UserError, match="Out of GPU memory on pygpu"):
        run(brief(), store)


# -- resuming -------------------------------------------------------------------------------------------------------------


def test_a_run_that_was_interrupted_resumes_on_the_gpu(store, gpu):
    spec = brief("fedala")
    interrupted(spec, store, 1, Execution(NAME, checkpoint_every=0))
    kinds = [(step.kind, step.run_id) for step in execute(spec, store, DATA, Execution(NAME))]
    assert kinds[0][0] == "resumed"
    assert torch.equal(measured(store, kinds[0][1]), measured(store, run(spec, store)))


def test_a_checkpoint_that_comes_back_on_the_host_is_found(store, gpu, monkeypatch):
    plant(monkeypatch, Checkpoints, "load", "map_location=device", "map_location='cpu'")
    interrupted(brief(), store, 1, Execution(NAME, checkpoint_every=0))
    with pytest.raises(RuntimeError, match="same device"):
        list(execute(brief(), store, DATA, Execution(NAME)))


# -- packs ----------------------------------------------------------------------------------------------------------------


def test_a_pack_gives_the_numbers_of_its_runs(store, gpu):
    specs = [brief(seed=seed) for seed in (0, 1)]
    together = {number: told.run_id for number, told in execute_pack(specs, store, DATA, Execution(NAME, pack=2))}
    for number, spec in enumerate(specs):
        assert_same_numbers(store, together[number], run(spec, store, "cpu", workers=1))
