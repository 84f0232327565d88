"""What a Ray cluster is asked and told: with a stand-in for Ray."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.runs import spec

from pflbench.errors import UserError
from pflbench.run.execution import Execution
from pflbench.sweep import on_ray
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
