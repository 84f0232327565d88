"""Sweeps by clusters: their rows are those of runs that were made one after another here, whatever is killed or requeued."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from support.command import ROOT, finish, start
from support.runs import by_key, rows, run, spec

from pflbench.run.execution import Execution
from pflbench.store import runs
from pflbench.store.database import connect, to_url
from pflbench.sweep.conduct import conduct, course
from pflbench.sweep.jobs import jobs_of

pytestmark = pytest.mark.slow
SPECS = [spec(name, seed=seed, rounds=40, clients=3) for seed in range(3) for name in ("fedavg", "local")]
ROUND_3 = "SELECT run_id, seconds_update FROM round WHERE round = 3 ORDER BY run_id"
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


class LocalQueue:
    """Of submitit's local jobs. Each is a process that watches over the one of the job, with its number as id."""

    ids = ()

    def states(self):
        return {id: "RUNNING" for id in self.ids if children(id)}

    def interrupt(self, ids):
        for id in ids:
            for child in children(id):
                os.kill(child, signal.SIGINT)

    def take_out(self, ids):
        self.interrupt(ids)

    def end(self, id):
        return "unknown"


def children(id):
    path = Path(f"/proc/{id}/task/{id}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []


def test_a_job_that_is_told_that_its_time_is_over_goes_on_at_its_checkpoint(store, alone, tmp_path, monkeypatch):
    submitit = pytest.importorskip("submitit", reason="submitit is not installed")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    from pflbench.sweep.on_slurm import SlurmJobs

    specs = SPECS[:2]
    executor = submitit.LocalExecutor(tmp_path / "jobs")
    executor.update_parameters(timeout_min=10)
    queue = LocalQueue()
    workers = SlurmJobs(executor, queue, places=1)
    queue.ids = workers._handed

    before = []

    def time_is_over():
        before.extend(rows(store, ROUND_3))
        (id,) = workers._handed
        (child,) = children(id)
        os.kill(child, signal.SIGUSR2)

    found = conducted(store, workers, specs, time_is_over)
    assert {outcome.state for outcome in found.ended.values()} == {"finished"}
    assert by_key(store) == alone(specs)
    assert rows(store, ROUND_3)[:1] == before, "it was not made anew"
    assert not (tmp_path / "jobs").exists(), "what is over leaves no files"


def slurm(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout


@pytest.mark.skipif(shutil.which("sbatch") is None, reason="there is no Slurm here")
def test_slurm_requeues_a_job_which_goes_on(tmp_path):
    try:
        slurm("squeue")
    except subprocess.SubprocessError:
        pytest.skip("Slurm does not answer here")
    grid = "method: [fedavg, local]\ndataset: digits\nclients: 3\nrounds: 60\nseeds: 0\nmodel: mlp\n"
    (tmp_path / "small.yaml").write_text(grid)
    process = start(
        "sweep", "small.yaml", "--executor", "slurm", "--slurm", "time=10", "--checkpoint-every", "0", folder=tmp_path
    )
    database = tmp_path / "pflbench.db"
    begun = []
    while not begun and process.poll() is None:
        time.sleep(0.1)
        begun = ids_under_way(database) if database.exists() else []
    slurm("scontrol", "requeue", begun[0])
    while slurm("squeue", "--noheader", f"--jobs={begun[0]}", "--format=%T").strip() != "PENDING":
        time.sleep(0.1)
    slurm("scontrol", "update", f"JobId={begun[0]}", "StartTime=now")  # Slurm would wait for two minutes
    process.send_signal(signal.SIGKILL)  # what is in the queue is taken over by the next command
    process.communicate()
    done = finish(start("sweep", "resume", "small", "--json", folder=tmp_path))
    assert done.code == 0, done.err
    assert finish(start("sweep", "small.yaml", "--db", "alone.db", folder=tmp_path)).code == 0
    engines = [connect(to_url(str(tmp_path / name))) for name in ("pflbench.db", "alone.db")]
    assert by_key(engines[0]) == by_key(engines[1])
    for engine in engines:
        engine.dispose()


def ids_under_way(database):
    """Of the jobs in Slurm's queue, once a run has a few rounds."""
    engine = connect(to_url(str(database)))
    try:
        if not any((one.last_round or 0) >= 5 for one in runs.stored(engine, runs.ALL)):
            return []
    finally:
        engine.dispose()
    return slurm("squeue", "--noheader", "--array", "--states=RUNNING", "--format=%i").split()
