"""Who makes a sweep's runs, as it is asked for: options that go together, shares of GPUs."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest
from support.gpu import NAME, plugged_in
from support.runs import spec

from pflbench import environment
from pflbench.errors import UserError
from pflbench.run.execution import Execution
from pflbench.sweep import jobs, room
from pflbench.sweep.conduct import Course, conduct
from pflbench.sweep.hire import Hiring, asked_for
from pflbench.sweep.jobs import Job, RunOutcome

SPECS = [spec(seed=seed, rounds=2, clients=3) for seed in range(40)]


def test_a_sweep_goes_on_where_it_was_begun_unless_another_place_is_named():
    begun = asked_for({"executor": "slurm", "jobs": 8, "cpus_per_job": 2, "slurm": ["partition=gpu"], "ray_address": None})
    assert begun == Hiring("slurm", jobs=8, cpus_per_job=2, slurm=("partition=gpu",))
    assert asked_for({}, begun.plain()) == Hiring("slurm", cpus_per_job=2, slurm=("partition=gpu",))
    assert asked_for({"cpus_per_job": 4, "slurm": []}, begun.plain()).cpus_per_job == 4
    assert asked_for({"executor": "local"}, begun.plain()) == Hiring()
    assert asked_for({}, None) == Hiring()
    assert asked_for({}, asked_for({"gpus_per_job": 0.0}).plain()).gpus_per_job == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"executor": "dask"}, "Unknown executor 'dask'."),
        ({"slurm": ["time=1"]}, "--slurm means nothing to --executor local."),
        ({"executor": "slurm", "ray_address": "a:1"}, "--ray-address means nothing to --executor slurm."),
        ({"executor": "slurm", "gpus_per_job": 0.5}, "--gpus-per-job is 0 or 1 with Slurm."),
    ],
)
def test_what_does_not_go_together(given, said):
    with pytest.raises(UserError, match=said):
        asked_for(given)


@pytest.mark.parametrize(
    ("share", "memory", "expected"), [(None, 8, 2), (0.5, 8, 4), (0.3, 8, 6), ("auto", 8, 12), ("auto", 1, 2)]
)
def test_shares_of_gpus(monkeypatch, share, memory, expected):
    """By hand: 80 % of 8 GiB holds six processes of a gigabyte and little more each; of 1 GiB, one runs anyway."""
    monkeypatch.setattr(environment, "cores", lambda: 32)
    with plugged_in(devices=2, memory=memory << 30):
        assert room.places(SPECS, Path("data"), Execution(device=NAME), share=share) == expected


def test_cores_of_a_job(monkeypatch):
    monkeypatch.setattr(environment, "cores", lambda: 8)
    monkeypatch.setattr(room.memory, "free", lambda device: None)
    found = [room.places(SPECS, Path("data"), Execution(device="cpu"), cores) for cores in (None, 2, 3, 16)]
    assert found == [8, 4, 2, 1]


def test_a_job_elsewhere_begins_on_a_device_there_with_the_cores_of_its_share(monkeypatch):
    made = []
    monkeypatch.setattr(jobs, "make", lambda job, prepared: made.append(prepared()) or [])
    (job,) = waiting(SPECS[:1])
    jobs.make_away(replace(job, how=Execution(device="auto")), Path.cwd(), 3, again=False)
    assert (made[0].how.device, made[0].how.workers) == ("cpu", 3)


def test_a_run_that_a_killed_worker_holds_is_waited_for(monkeypatch):
    answers = iter(["elsewhere", "elsewhere", "finished"])
    monkeypatch.setattr(jobs, "make", lambda job, prepared: [RunOutcome("key", next(answers))])
    monkeypatch.setattr(jobs, "PAUSE", 0)
    (job,) = waiting(SPECS[:1])
    assert jobs.make_away(job, Path.cwd(), 1, again=True)[0].state == "finished"
    answers = iter(["elsewhere", "finished"])
    assert jobs.make_away(job, Path.cwd(), 1, again=False)[0].state == "elsewhere"


class Queue:
    """Takes all jobs at once and begins the first alone. broken: it takes none."""

    places = 100

    def __init__(self, broken=False):
        self.broken, self.futures, self.stopped = broken, [], False

    def submit(self, job):
        future = Future()
        self.futures.append((future, job))
        if self.broken:
            future.set_exception(UserError("It takes no job."))
        elif len(self.futures) == 1:
            future.set_running_or_notify_cancel()
        return future

    def stop(self):
        self.stopped = True

    def close(self):
        pass


def waiting(specs):
    return iter([Job((one,), "sqlite://", Path("data"), Execution()) for one in specs])


def test_what_waits_in_a_queue_is_ahead_and_is_taken_back_after_a_failure():
    found, queue = Course(SPECS[:3]), Queue()
    states = conduct(found, queue, waiting(SPECS[:3]))
    next(states)
    assert (found.under_way, found.ahead) == (SPECS[:1], SPECS[1:3])
    queue.futures[0][0].set_result([RunOutcome(SPECS[0].key, "failed", "broken")])
    assert list(states) == [found]
    assert (found.under_way, found.ahead, found.count("failed")) == ([], SPECS[1:3], 1)
    assert all(future.cancelled() for future, _ in queue.futures[1:])


def test_workers_that_take_no_job_end_the_sweep():
    found, queue = Course(SPECS[:3]), Queue(broken=True)
    with pytest.raises(UserError, match="It takes no job"):
        list(conduct(found, queue, waiting(SPECS[:3])))
    assert queue.stopped
    assert not found.ended
