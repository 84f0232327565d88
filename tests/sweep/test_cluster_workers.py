"""What a Ray cluster is asked and told: with a stand-in for Ray."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pflbench.errors import UserError
from pflbench.run.execution import Execution
from pflbench.sweep import on_ray
from pflbench.sweep.capacity import ITSELF
from pflbench.sweep.run_queue import RunQueue

GB = 1_000_000_000


class Ray:
    """The module, with a cluster of these nodes. asked: what each task asks for."""

    def __init__(self, *nodes):
        self._nodes, self.asked = nodes, []

    def init(self, **settings):
        pass

    def nodes(self):
        return [{"Alive": True, "Resources": node} for node in self._nodes]

    def remote(self, *arguments, **asked):
        """A function becomes a task; a task is started."""
        self.asked.append(asked)
        return lambda function: self

    def shutdown(self):
        pass


def asked(monkeypatch, nodes, **share):
    """What Ray is asked for, for a worker."""
    ray = Ray(*nodes)
    monkeypatch.setitem(sys.modules, "ray", ray)
    workers = on_ray.RayTasks(None)
    workers.take(**share)
    workers.start(RunQueue((), "sqlite://", Path("data"), Execution()))
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
def test_ray_is_asked_for_no_more_memory_than_a_node_has(monkeypatch, runs, bytes, expected):
    """It would wait for such a node for ever. The node with the most memory is none for a worker of two cores."""
    nodes = [{"CPU": 8.0, "memory": 16.0 * GB}, {"CPU": 1.0, "memory": 64.0 * GB}]
    assert asked(monkeypatch, nodes, cores=2, bytes=bytes, runs=runs)["memory"] == expected


def test_ray_is_told_no_password(monkeypatch):
    """It writes a task's variables into its logs. A worker has the database from its queue."""
    for name, value in {"DB": "postgresql://me:secret@server/x", "ELSE": "secret", "DB_WAIT": "5"}.items():
        monkeypatch.setenv(f"PFLBENCH_{name}", value)
    told = asked(monkeypatch, [{"CPU": 1.0}])
    assert "secret" not in str(told)
    assert told["runtime_env"] == {"env_vars": {"PFLBENCH_DB_WAIT": "5"}}


def test_a_worker_that_no_node_has_the_cores_for(monkeypatch):
    with pytest.raises(UserError, match="No node of the Ray cluster has 16 cores"):
        asked(monkeypatch, [{"CPU": 8.0, "memory": 16.0 * GB}], cores=16, bytes=GB)
