"""Workers of a Ray cluster: what Ray is asked and told, with a stand-in, and three nodes of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from sqlalchemy import make_url
from support.command import ROOT
from support.runs import by_key, run, spec

from pflbench.errors import UserError
from pflbench.run.execution import Execution
from pflbench.store.database import connect, to_url
from pflbench.sweep import on_ray
from pflbench.sweep.choose_executor import ITSELF
from pflbench.sweep.run_jobs import run_jobs
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
    workers.reserve(**share)
    workers.start(RunQueue((), make_url("sqlite://"), Path("data"), Execution()))
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


@pytest.mark.slow
def test_three_nodes_of_which_one_is_killed(tmp_path, monkeypatch):
    """The rows are those of runs that were made one after another here."""
    pytest.importorskip("ray", reason="ray is not installed")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    from ray.cluster_utils import Cluster

    specs = [spec(name, seed=seed, rounds=200, clients=3) for seed in range(3) for name in ("fedavg", "local")]
    store, alone = (connect(to_url(str(tmp_path / name))) for name in ("results.db", "alone.db"))
    queue = RunQueue(tuple(specs), store.url, Path("data"), Execution(engine="loop", checkpoint_every=0.2))
    cluster, killed = Cluster(), []

    def kill_a_node(state):
        if not killed and any((state.runs[key].last_round or 0) >= 5 for key in state.keys("running") if state.runs[key]):
            killed.append(nodes.pop())
            cluster.remove_node(killed[0], allow_graceful=False)

    try:
        nodes = [cluster.add_node(num_cpus=1, include_dashboard=False) for _ in range(3)]
        workers = on_ray.RayTasks(cluster.address)
        assert workers.places == 3
        assert run_jobs(queue, store, workers, kill_a_node) == ""
    finally:
        cluster.shutdown()
    assert (len(killed), workers.lost) == (1, 1)
    for one in specs:
        run(one, alone)
    assert by_key(store) == by_key(alone)
    store.dispose()
    alone.dispose()
