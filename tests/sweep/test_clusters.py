"""Sweeps by Ray: their rows are those of runs that were made one after another here, whatever is killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command import ROOT
from support.runs import by_key, run, spec

from pflbench.run.execution import Execution
from pflbench.store.database import connect, to_url
from pflbench.sweep.run_jobs import run_jobs
from pflbench.sweep.run_queue import RunQueue

pytestmark = pytest.mark.slow
SPECS = [spec(name, seed=seed, rounds=40, clients=3) for seed in range(3) for name in ("fedavg", "local")]
HOW = Execution(engine="loop", checkpoint_every=0.2)


@pytest.fixture
def store(tmp_path):
    engine = connect(to_url(str(tmp_path / "results.db")))
    yield engine
    engine.dispose()


def test_ray_with_three_nodes_of_which_one_is_killed(store, tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="ray is not installed")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    from ray.cluster_utils import Cluster

    from pflbench.sweep.on_ray import RayTasks

    cluster, killed = Cluster(), []

    def kill_a_node(state):
        if not killed and any((state.runs[key].last_round or 0) >= 5 for key in state.keys("running") if state.runs[key]):
            killed.append(nodes.pop())
            cluster.remove_node(killed[0], allow_graceful=False)

    try:
        nodes = [cluster.add_node(num_cpus=1, include_dashboard=False) for _ in range(3)]
        workers = RayTasks(cluster.address)
        assert workers.places == 3
        assert (
            run_jobs(RunQueue(tuple(SPECS), store.url.render_as_string(), Path("data"), HOW), store, workers, kill_a_node) == ""
        )
    finally:
        cluster.shutdown()
    assert (len(killed), workers.lost) == (1, 1)
    alone = connect(to_url(str(tmp_path / "alone.db")))
    for one in SPECS:
        run(one, alone)
    assert by_key(store) == by_key(alone)
    alone.dispose()
