"""Sweeps by Ray: their rows are those of runs that were made one after another here, whatever is killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command import ROOT
from support.runs import by_key, run, spec

from pflbench.run.execution import Execution
from pflbench.store import runs
from pflbench.store.database import connect, to_url
from pflbench.sweep.conduct import conduct, course
from pflbench.sweep.jobs import jobs_of

pytestmark = pytest.mark.slow
SPECS = [spec(name, seed=seed, rounds=40, clients=3) for seed in range(3) for name in ("fedavg", "local")]
HOW = Execution(engine="loop", checkpoint_every=0.2)


@pytest.fixture
def store(tmp_path):
    engine = connect(to_url(str(tmp_path / "results.db")))
    yield engine
    engine.dispose()


@pytest.fixture
def alone(tmp_path):
    """Rows of the same runs, made here."""

    def made(specs):
        engine = connect(to_url(str(tmp_path / "alone.db")))
        for one in specs:
            run(one, engine)
        found = by_key(engine)
        engine.dispose()
        return found

    return made


def conducted(store, workers, specs, then=lambda: None):
    """The sweep's course at its end. then: called once when some run has a few rounds."""
    found, called = course(store, specs), False
    try:
        for _ in conduct(found, workers, jobs_of(found.ahead, store, Path("data"), HOW)):
            newest = [runs.newest(store, one.key) for one in specs]
            if not called and any(one and one.status == "running" and (one.last_round or 0) >= 5 for one in newest):
                called = True
                then()
    finally:
        workers.close()
    assert called
    return found


def test_ray_with_three_nodes_of_which_one_is_killed(store, alone, monkeypatch):
    pytest.importorskip("ray", reason="ray is not installed")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    from ray.cluster_utils import Cluster

    from pflbench.sweep.on_ray import RayTasks

    cluster = Cluster()
    try:
        nodes = [cluster.add_node(num_cpus=1, include_dashboard=False) for _ in range(3)]
        workers = RayTasks(cluster.address)
        assert workers.places == 3
        found = conducted(store, workers, SPECS, lambda: cluster.remove_node(nodes[-1], allow_graceful=False))
    finally:
        cluster.shutdown()
    assert {outcome.state for outcome in found.ended.values()} == {"finished"}
    assert by_key(store) == alone(SPECS)
