"""Who makes a sweep's runs, as it is asked for: options that go together, shares of GPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import make_url
from support.gpu import NAME, plugged_in
from support.runs import spec

from pflbench import environment
from pflbench.errors import UserError
from pflbench.run.execution import Execution
from pflbench.sweep import choose_executor
from pflbench.sweep.choose_executor import ExecutorOptions, at_a_time, executor_options
from pflbench.sweep.run_queue import RunQueue

SPECS = [spec(seed=seed, rounds=2, clients=3) for seed in range(40)]


def test_a_sweep_goes_on_where_it_was_begun_unless_another_place_is_named():
    begun = executor_options({"executor": "slurm", "jobs": 8, "cpus_per_job": 2, "slurm": ["partition=gpu"], "ray_address": None})
    assert begun == ExecutorOptions("slurm", jobs=8, cpus_per_job=2, slurm=("partition=gpu",))
    assert executor_options({}, begun.plain()) == ExecutorOptions("slurm", cpus_per_job=2, slurm=("partition=gpu",))
    assert executor_options({"cpus_per_job": 4, "slurm": []}, begun.plain()).cpus_per_job == 4
    assert executor_options({"executor": "local"}, begun.plain()) == ExecutorOptions()
    assert executor_options({}, None) == ExecutorOptions()
    assert executor_options({}, executor_options({"gpus_per_job": 0.0}).plain()).gpus_per_job == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"slurm": ["time=1"]}, "--slurm means nothing to --executor local."),
        ({"executor": "slurm", "ray_address": "a:1"}, "--ray-address means nothing to --executor slurm."),
        ({"executor": "slurm", "gpus_per_job": 0.5}, "--gpus-per-job is 0 or 1 with Slurm."),
    ],
)
def test_what_does_not_go_together(given, said):
    with pytest.raises(UserError, match=said):
        executor_options(given)


@pytest.mark.parametrize(
    ("share", "memory", "expected"), [(None, 8, 2), (0.5, 8, 4), (0.3, 8, 6), ("auto", 8, 12), ("auto", 1, 2)]
)
def test_shares_of_gpus(monkeypatch, share, memory, expected):
    """By hand: 80 % of 8 GiB holds six processes of a gigabyte and little more each; of 1 GiB, one runs anyway."""
    monkeypatch.setattr(environment, "cores", lambda: 32)
    with plugged_in(devices=2, memory=memory << 30):
        assert at_a_time(ExecutorOptions(gpus_per_job=share), SPECS, Path("data"), Execution(device=NAME)) == expected


def test_cores_of_a_job(monkeypatch):
    monkeypatch.setattr(environment, "cores", lambda: 8)
    monkeypatch.setattr(choose_executor.memory, "free", lambda device: None)
    asked = [ExecutorOptions(cpus_per_job=cores) for cores in (None, 2, 3, 16)]
    found = [at_a_time(options, SPECS, Path("data"), Execution(device="cpu")) for options in asked]
    assert found == [8, 4, 2, 1]


@pytest.mark.parametrize(
    ("engine", "device", "expected"),
    [("loop", "cpu", ("cpu", 3)), ("batched", "cpu", ("cpu", None)), ("auto", "cuda:1", ("cuda:1", None))],
)
def test_a_worker_has_its_device_and_its_share_of_the_cores(engine, device, expected):
    how = Execution(engine=engine)
    queue = RunQueue(
        tuple(SPECS), make_url("sqlite://"), Path("data"), how, own={SPECS[0].key: replace(how, save_artifacts_every=2)}
    ).on(device, 3)
    assert [(one.device, one.workers) for one in map(queue.execution, SPECS[:2])] == [expected] * 2
    assert [queue.execution(one).save_artifacts_every for one in SPECS[:2]] == [2, 0]
