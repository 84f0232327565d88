"""What a cluster is asked and told, and what becomes of jobs when it does not answer: with stand-ins for Ray and Slurm."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.runs import spec

from pflbench.errors import UserError
from pflbench.run.execution import Execution
from pflbench.sweep import on_ray, on_slurm
from pflbench.sweep.jobs import Job
from pflbench.sweep.room import ITSELF

SPECS = tuple(spec(seed=seed, rounds=2, clients=3) for seed in range(40))
GB = 1_000_000_000


class Ray:
    """The module, with a cluster of these nodes. asked: what each task asks for."""

    exceptions = SimpleNamespace(
        **{
            name: type(name, (Exception,), {})
            for name in ("NodeDiedError", "WorkerCrashedError", "OutOfMemoryError", "TaskCancelledError", "RayError")
        }
    )

    def __init__(self, *nodes):
        self._nodes, self.asked = nodes, []

    def init(self, **settings):
        pass

    def nodes(self):
        return [{"Alive": True, "Resources": node} for node in self._nodes]

    def remote(self, *arguments):
        return self

    def options(self, **asked):
        self.asked.append(asked)
        return self

    def get(self, task):
        return []

    def shutdown(self):
        pass


def job(*specs):
    return Job(specs, "sqlite://", Path("data"), Execution())


def asked(monkeypatch, nodes, specs, **share):
    """What Ray is asked for, for a job of these runs."""
    ray = Ray(*nodes)
    monkeypatch.setitem(sys.modules, "ray", ray)
    workers = on_ray.RayTasks(None)
    workers.take(**share)
    workers.submit(job(*specs)).result(timeout=10)
    workers.close()
    return ray.asked[0]


@pytest.mark.parametrize(
    ("runs", "bytes", "expected"),
    [
        (1, ITSELF + 2 * GB, ITSELF + 2 * GB),
        (3, ITSELF + 2 * GB, ITSELF + 6 * GB),  # one process
        (40, ITSELF + 2 * GB, 16 * GB),
        (1, 40 * GB, 16 * GB),
        (40, 0, 0),
    ],
)
def test_a_pack_asks_ray_for_no_more_memory_than_a_node_has(monkeypatch, runs, bytes, expected):
    """Ray would wait for such a node for ever. The node with the most memory is none for a job of two cores."""
    nodes = [{"CPU": 8.0, "memory": 16.0 * GB}, {"CPU": 1.0, "memory": 64.0 * GB}]
    assert asked(monkeypatch, nodes, SPECS[:runs], cores=2, bytes=bytes)["memory"] == expected


def test_ray_is_told_no_password(monkeypatch):
    """It writes a task's variables into its logs. A worker has the database from its job."""
    for name, value in {"DB": "postgresql://me:secret@server/x", "ELSE": "secret", "DB_WAIT": "5"}.items():
        monkeypatch.setenv(f"PFLBENCH_{name}", value)
    told = asked(monkeypatch, [{"CPU": 1.0}], SPECS[:1])
    assert "secret" not in str(told)
    assert told["runtime_env"] == {"env_vars": {"PFLBENCH_DB_WAIT": "5"}}


def test_a_job_that_no_node_has_the_cores_for(monkeypatch):
    with pytest.raises(UserError, match="No node of the Ray cluster has 16 cores"):
        asked(monkeypatch, [{"CPU": 8.0, "memory": 16.0 * GB}], SPECS[:1], cores=16, bytes=GB)


class Submitit:
    """Its executor, whose jobs never leave a result."""

    def __init__(self, folder):
        self.folder, self.made = folder, 0

    def batch(self):
        return nullcontext()

    def submit(self, *arguments):
        self.made += 1
        id = f"7_{self.made}"
        (self.folder / f"{id}_submitted.pkl").touch()
        paths = SimpleNamespace(result_pickle=self.folder / f"{id}_result.pkl", stderr=self.folder / f"{id}.err")
        return SimpleNamespace(job_id=id, paths=paths)


class Squeue:
    """states: what it answers, one after another, and the last for ever; an exception is raised."""

    def __init__(self, *states):
        self._states, self.interrupted = list(states), []

    def states(self):
        found = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        if isinstance(found, Exception):
            raise found
        return found

    def interrupt(self, ids):
        self.interrupted += ids

    def take_out(self, ids):
        self.interrupted += ids


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Gives workers, and a job that has begun."""
    monkeypatch.setattr(on_slurm, "PAUSE", 0.01)
    monkeypatch.setattr(on_slurm, "LOOK", 0.02)
    made = []

    def begun(*then):
        workers = on_slurm.SlurmJobs(Submitit(tmp_path), Squeue({}, {"7_1": "RUNNING"}, *then))
        made.append(workers)
        future = workers.submit(job(*SPECS[:2]))
        until = time.monotonic() + 10
        while not future.running() and not future.done() and time.monotonic() < until:
            time.sleep(0.01)
        return workers, future

    yield begun
    for workers in made:
        workers.close()


def test_ctrl_c_ends_while_slurm_does_not_answer(slurm, tmp_path):
    """What is in the queue stays there, with its files: the next command takes it over. Without Ctrl-C it is waited for."""
    workers, future = slurm(None)
    time.sleep(0.2)
    assert future.running()
    workers.stop()
    outcomes = future.result(timeout=5)
    assert {(outcome.state, outcome.message) for outcome in outcomes} == {("interrupted", on_slurm.SILENT)}
    assert (tmp_path / "7_1_submitted.pkl").exists()


def test_ctrl_c_ends_while_the_shared_folder_is_away(slurm, tmp_path):
    workers, future = slurm({"7_1": "RUNNING"})
    tmp_path.rename(tmp_path.with_name("away"))
    try:
        time.sleep(0.2)
        assert future.running()
        workers.stop()
        assert {outcome.state for outcome in future.result(timeout=5)} == {"interrupted"}
    finally:
        tmp_path.with_name("away").rename(tmp_path)


def test_an_error_of_the_watching_ends_the_sweep(slurm):
    """It would be waited for for ever otherwise."""
    workers, future = slurm(ValueError("not enough values"))
    for one in (future, workers.submit(job(SPECS[2]))):
        with pytest.raises(ValueError, match="not enough values"):
            one.result(timeout=5)
