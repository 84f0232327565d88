"""`pflbench sweep` as it is typed, with real workers."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from support.command import finish, start, until, workers
from support.runs import count_reached

from pflbench.store import runs, sweeps
from pflbench.store.database import connect, to_url

LONG = "method: [fedavg, local]\ndataset: digits\nclients: 3\nrounds: 150\nbatch-size: 100\nseeds: 0-1\n"
SHORT = "method: [fedavg, local]\ndataset: digits\nclients: 3\nrounds: 2\nseeds: 0-1\n"


def test_dry_run_list_status_and_refusals(shell):
    Path("small.yaml").write_text(SHORT)
    told = json.loads(shell("sweep", "small.yaml", "--dry-run", "--json").out)
    assert (told["name"], told["runs"], told["to_run"], told["states"]) == ("small", 4, 4, {"missing": 4})
    assert "To run: 4" in shell("sweep", "small.yaml", "--dry-run").out
    assert not Path("pflbench.db").exists(), "a dry run makes no database"
    assert "There is no file" in shell.refused("sweep", "none.yaml")
    assert "No results yet" in shell.refused("sweep", "status", "none")
    assert shell("db", "upgrade").code == 0
    assert "There is no sweep 'none'" in shell.refused("sweep", "status", "none")
    assert "has all options of its runs: method" in shell.refused("sweep", "small.yaml", "-m", "fedavg")
    assert "'a b' cannot be the name of a sweep" in shell.refused("sweep", "small.yaml", "--name", "a b", "--dry-run")
    assert "No method given" in shell.refused("sweep", "run", "-d", "digits")
    assert "Unknown --order" in shell.refused("sweep", "small.yaml", "--order", "size")
    assert "gives fedala.p twice" in shell.refused("sweep", "-m", "fedala", "--set", "fedala.p=1", "--set", "fedala.p=2")
    assert "--rounds 0 is not possible" in shell.refused("sweep", "-m", "fedavg", "--rounds", "0")
    assert "No such option" in shell.refused("sweep", "-m", "fedavg", "--seed", "3")
    assert "expected NAME=VALUE" in shell.refused("sweep", "-m", "fedavg", "--grid", "beta")


def test_a_dry_run_counts_runs_whose_data_are_missing(shell):
    grid = ["-m", "fedavg", "-m", "local", "--grid", "dataset=mnist,digits", "--clients", "4", "--rounds", "2"]
    told = shell("sweep", *grid, "--dry-run").out
    assert "The data of 'mnist' are missing" in told
    assert "2 runs cannot start. Get them" in told
    assert "To run: 2, " in told
    assert "To run: 2. Time: unknown without the data." in shell("sweep", *grid[:4], "-d", "mnist", "--dry-run").out
    told = json.loads(shell("sweep", *grid, "--dry-run", "--json").out)
    assert (told["runs"], told["to_run"], list(told["without_data"])) == (4, 4, ["mnist"])


def test_a_password_of_checkpoints_is_not_stored(shell):
    """It is refused before the sweep is."""
    Path("small.yaml").write_text(SHORT)
    told = shell.refused("sweep", "small.yaml", "--checkpoints", "s3://me:secret@bucket/x")
    assert "A password in the URL of the checkpoints" in told
    assert json.loads(shell("sweep", "list", "--json").out) == []
    assert b"secret" not in Path("pflbench.db").read_bytes()


@pytest.mark.slow
def test_a_sweep_with_processes_then_again(shell, tmp_path):
    Path("small.yaml").write_text(SHORT)
    done = finish(start("sweep", "small.yaml", "-j", "2", "--json", folder=tmp_path))
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert [one["state"] for one in told["runs"]] == ["finished"] * 4
    assert shell("sweep", "small.yaml").err.strip() == "small: no runs. Ended before: 4."
    (listed,) = json.loads(shell("sweep", "list", "--json").out)
    assert (listed["name"], listed["runs"], listed["finished"]) == ("small", 4, 4)
    status = json.loads(shell("sweep", "status", "small", "--json").out)
    assert [one["rounds"] for one in status["runs"]] == ["2/2"] * 4
    assert "To run" not in shell("sweep", "small.yaml", "--dry-run").out


def counts(url):
    """Of its runs by state; each has one attempt."""
    engine = connect(to_url(url))
    state = sweeps.sweep_state(engine, sweeps.find(engine, "long").specs)
    assert {run.attempt for run in runs.stored(engine, runs.ALL)} <= {1}
    engine.dispose()
    return state.counts


@pytest.mark.slow
def test_a_sweep_broken_off_goes_on(shell, tmp_path):
    """By Ctrl-C, then by `sweep cancel`."""
    Path("long.yaml").write_text(LONG)
    process = start("sweep", "long.yaml", "-j", "2", folder=tmp_path)
    until(lambda: count_reached("pflbench.db", 4))
    process.send_signal(signal.SIGINT)
    done = finish(process)
    assert done.code == 130
    assert "Interrupted. Continue with: pflbench sweep resume long" in done.err
    process = start("sweep", "resume", "long", "-j", "2", folder=tmp_path)
    until(lambda: counts("pflbench.db")["running"])
    assert "is cancelled" in shell("sweep", "cancel", "long").err
    done = finish(process)
    assert done.code == 2
    assert "Stopped: it was cancelled" in done.err
    assert not counts("pflbench.db")["running"]
    done = finish(start("sweep", "resume", "long", "-j", "2", folder=tmp_path))
    assert done.code == 0, done.err
    assert counts("pflbench.db") == {"finished": 4}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_another_worker_goes_on_with_the_run_of_one_that_is_killed(tmp_path, kind, request):
    (tmp_path / "long.yaml").write_text(LONG)
    url = request.getfixturevalue("server").new() if kind == "postgresql" else str(tmp_path / "pflbench.db")
    process = start("sweep", "long.yaml", "-j", "2", folder=tmp_path, PFLBENCH_DB=url)
    until(lambda: count_reached(url, 4) >= 2)
    os.kill(workers(process)[-1], signal.SIGKILL)
    done = finish(process)
    assert done.code == 0, done.err
    assert done.err.strip().endswith("long: 4 finished.")
    assert counts(url) == {"finished": 4}
