"""Sweeps by Slurm: what it is told and what its workers do, with a stand-in, and with Slurm itself where it is at hand."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from support.command import Done, Shell, finish, parsed, start, until
from support.runs import by_key, count_reached, rows, spec

from pflbench.run.execution import Execution
from pflbench.store import write
from pflbench.store.database import connect, to_url
from pflbench.sweep import slurm
from pflbench.sweep.choose_executor import ExecutorOptions
from pflbench.sweep.grid import specifications
from pflbench.sweep.study import read

SMALL = "method: [fedavg, local]\ndataset: digits\nclients: 3\nrounds: {}\nseeds: 0\nmodel: mlp\nbatch-size: 100\n"
ROUND_3 = "SELECT run_id, seconds_update FROM round WHERE round = 3 ORDER BY run_id"
# It keeps what it is told, and lets a test start the jobs, where and when it likes.
SBATCH = """#!/bin/sh
[ "$REFUSED" ] && echo "sbatch: error: Invalid partition name specified" >&2 && exit 1
printf '%s\\n' "$@" > {folder}/options
cat > {folder}/script
env > {folder}/environment
echo 17
"""
SCONTROL = '#!/bin/sh\necho "$@" >> {folder}/asked\n'


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which a Slurm that runs nothing keeps what it is told."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, text in {"sbatch": SBATCH, "scontrol": SCONTROL}.items():
        (folder / name).write_text(text.format(folder=folder))
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return folder


def test_what_slurm_is_told(shell: Shell, cluster: Path, tmp_path: Path) -> None:
    """No file of ours holds a job, and nothing that is read later but the database."""
    Path("small.yaml").write_text(SMALL.format(2))
    before = set(tmp_path.rglob("*"))
    given = ("partition=gpu", "setup=module load cuda", "setup=b=c", "mem_per_cpu = 2G", "exclusive")
    options = [word for text in given for word in ("--slurm", text)]
    done = shell("sweep", "small.yaml", "--executor", "slurm", *options, "--cpus-per-job", "2", "--json")
    assert json.loads(done.out) == {"name": "small", "slurm_job": "17", "runs": 2}
    told = (cluster / "options").read_text().splitlines()
    assert {"--array=0-1", "--cpus-per-task=2", "--requeue", "--signal=B:USR1@90", "--time=60"} <= set(told)
    assert told[-5:-2] == ["--partition=gpu", "--mem-per-cpu=2G", "--exclusive"]
    script = (cluster / "script").read_text()
    worker = f"{sys.executable} -m pflbench sweep work small --cpus-per-job 2 --db sqlite:///{tmp_path}/pflbench.db &\n"
    assert script.startswith(f"#!/bin/bash\nmodule load cuda\nb=c\n{worker}")
    made = {path.name for path in set(tmp_path.rglob("*")) - before}
    assert {name for name in made if not name.startswith("pflbench.db")} == {"options", "script", "environment"}
    shell("sweep", "resume", "small", "--jobs", "1")
    assert "--array=0-0%1" in (cluster / "options").read_text()
    shell("sweep", "resume", "small", "--limit", "2", "--jobs", "1")
    assert "--array=0-1%1" in (cluster / "options").read_text()
    assert "--limit 1" in (cluster / "script").read_text()


def test_a_password_stands_in_no_script(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs have it in their environment, as they have ours."""
    store = create_engine("postgresql+psycopg://me:secret@server/x")
    slurm.submit(ExecutorOptions("slurm"), "heads", [spec()], store, Path("data"), Execution(), ["work"])
    assert "secret" not in (cluster / "script").read_text() + (cluster / "options").read_text()
    assert "PFLBENCH_DB=postgresql+psycopg://me:secret@server/x\n" in (cluster / "environment").read_text()


def test_what_slurm_refuses(shell: Shell, cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("small.yaml").write_text(SMALL.format(2))
    command = ("sweep", "small.yaml", "--executor", "slurm")
    for text, told in {"=x": "KEY=VALUE", "time=": "KEY=VALUE", "array=1": "--jobs", "cpus_per_task=1": "--cpus-per-job"}.items():
        assert told in shell.refused(*command, "--slurm", text)
    monkeypatch.setenv("REFUSED", "yes")
    assert "Slurm takes no job: sbatch: error: Invalid partition name" in shell.refused(*command, "--slurm", "partition=x")
    monkeypatch.setenv("PATH", "/nowhere")
    assert "There is no Slurm here" in shell.refused(*command)


def test_runs_that_failed_wait_in_the_queue_again(shell: Shell, cluster: Path) -> None:
    Path("small.yaml").write_text(SMALL.format(2))
    spec, _ = specifications(read(Path("small.yaml")).grid, Path("data"))
    store = connect(to_url("pflbench.db"))
    write.update_run(store, write.create_run(store, spec, {}), status="failed")
    shell("sweep", "small.yaml", "--executor", "slurm")
    assert rows(store, "SELECT status FROM run") == [("failed",)]
    shell("sweep", "resume", "small", "--executor", "slurm", "--retry-failed")
    assert rows(store, "SELECT status FROM run") == [("queued",)]
    store.dispose()


def alone(folder: Path) -> dict[str, object]:
    """The same runs, by one command."""
    assert finish(start("sweep", "small.yaml", "--db", "alone.db", "-q", folder=folder)).code == 0
    return numbers(folder / "alone.db")


def numbers(database: Path) -> dict[str, object]:
    engine = connect(to_url(str(database)))
    found = by_key(engine)
    engine.dispose()
    return dict(found)


@pytest.fixture
def job(shell: Shell, cluster: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts the script of a sweep, as a job of the array. The parameter: rounds of each run."""
    Path("small.yaml").write_text(SMALL.format(request.param))
    assert shell("sweep", "small.yaml", "--executor", "slurm", "--checkpoint-every", "0").code == 0
    script, started = (cluster / "script").read_text(), []
    variables = {**os.environ, "SLURM_JOB_ID": "18", "OMP_NUM_THREADS": "1"}

    def begin() -> subprocess.Popen[str]:
        started.append(subprocess.Popen(["bash", "-c", script], env=variables, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def end(process: subprocess.Popen[str]) -> Done:
    err = process.communicate(timeout=120)[1]
    return Done(process.returncode, "", err)


@pytest.mark.slow
@pytest.mark.parametrize("job", [300], indirect=True)
def test_workers_share_a_sweep(job: Callable[[], subprocess.Popen[str]], cluster: Path, tmp_path: Path) -> None:
    """The time of the first is over: Slurm tells the shell alone, which has the job queued again when the worker has kept its
    checkpoint. Then each run is made once, by one of three.
    """
    process = job()
    until(lambda: count_reached("pflbench.db", 5))
    process.send_signal(signal.SIGUSR1)
    assert end(process).code == 143
    assert (cluster / "asked").read_text() == "requeue 18\n"
    engine = connect(to_url("pflbench.db"))
    assert rows(engine, "SELECT status FROM run") == [("interrupted",)]
    before = rows(engine, ROUND_3)
    for process in [job(), job(), job()]:
        done = end(process)
        assert done.code == 0, done.err
    assert rows(engine, ROUND_3)[:1] == before, "it was not made anew"
    assert rows(engine, "SELECT attempt FROM run") == [(1,), (1,)]
    engine.dispose()
    assert numbers(tmp_path / "pflbench.db") == alone(tmp_path)
    assert end(job()).err.strip() == "small: no runs. Ended before: 2.", "none is left"


@pytest.mark.slow
@pytest.mark.parametrize("job", [100_000], indirect=True)  # a worker looks once a second: the run must not be over by then
def test_a_cancelled_sweep_ends_its_workers(shell: Shell, job: Callable[[], subprocess.Popen[str]], cluster: Path) -> None:
    """With checkpoints; and what still waits in the queue makes nothing."""
    process = job()
    until(lambda: count_reached("pflbench.db", 5))
    shell("sweep", "cancel", "small")
    assert "it was cancelled" in end(process).err
    assert "small is cancelled" in end(job()).err
    status = parsed(shell("sweep", "status", "small", "--json"))
    assert [one["state"] for one in status["runs"]] == ["interrupted", "missing"]
    assert not (cluster / "asked").exists(), "nor is it queued again"


# -- Slurm itself -----------------------------------------------------------------------------------------------------------


def said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("sbatch") is None, reason="there is no Slurm here")
def test_slurm_requeues_a_job_which_goes_on(tmp_path: Path) -> None:
    try:
        said("squeue")
    except subprocess.SubprocessError:
        pytest.skip("Slurm does not answer here")
    (tmp_path / "small.yaml").write_text(SMALL.format(200))
    command = ("sweep", "small.yaml", "--executor", "slurm", "--slurm", "time=10", "--checkpoint-every", "0", "--json")
    done = finish(start(*command, folder=tmp_path))
    assert done.code == 0, done.err
    array = json.loads(done.out)["slurm_job"]
    until(lambda: count_reached(str(tmp_path / "pflbench.db"), 5) == 2)
    said("scontrol", "requeue", f"{array}_0")
    until(lambda: said("squeue", "--noheader", f"--jobs={array}_0", "--format=%T") == "PENDING")
    said("scontrol", "update", f"JobId={array}_0", "StartTime=now")  # Slurm would wait for two minutes
    until(lambda: not said("squeue", "--noheader", "--name=pflbench-small", "--format=%i"))
    assert numbers(tmp_path / "pflbench.db") == alone(tmp_path)
