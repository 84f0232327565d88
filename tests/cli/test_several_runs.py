"""`run` with lists, and `run` and `reproduce` with --jobs: the runs of separate commands, told apart."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command import parsed, rows

from pflbench.methods.local import Local

SHORT = ("-d", "digits", "--rounds", "2", "--clients", "5")


@pytest.mark.slow
def test_the_runs_of_a_list_are_told_apart(shell):
    command = ("run", "-m", "fedavg", "-m", "fedala", *SHORT, "--rounds", "1")  # FedALA's initial stage is in the second
    done = shell(*command, "--set", "fedala.p=1,2")
    assert done.code == 0
    assert [line.split("  ")[1] for line in done.out.splitlines()] == ["fedavg", "fedala (p=1)", "fedala (p=2)"]
    begun = [line.split(": ")[0] for line in done.err.splitlines() if "started" in line]
    assert begun == [f"{name} digits Dir(0.1) seed 0" for name in ("fedavg", "fedala (p=1)", "fedala (p=2)")]
    again = shell(*command, "--set", "fedala.p=1,2", "--json", "--jobs", "2")
    assert [(one["run"], one["settings"]) for one in parsed(again)] == [(1, ""), (2, "p=1"), (3, "p=2")]
    assert "fedala (p=2) digits Dir(0.1) seed 0: run 3 is finished already; --force runs it anew." in again.err
    assert rows("SELECT COUNT(*) FROM run") == [(3,)]


@pytest.mark.parametrize("values", ["4,1", "1,4"])
def test_a_value_that_the_model_does_not_take_is_refused_before_the_first_run(shell, values):
    assert "p = 4" in shell.refused("run", "-m", "fedala", *SHORT, "--set", f"fedala.p={values}")
    assert not Path("pflbench.db").exists()


@pytest.mark.parametrize("jobs", ["0", "many", "-1"])
def test_a_number_of_jobs_that_is_none(shell, jobs):
    for command in (("run", "-m", "local", *SHORT), ("reproduce", "ablation", "--scale", "smoke"), ("sweep", "-m", "local")):
        assert f"'{jobs}' is neither auto nor a number" in shell.refused(*command, "--jobs", jobs)


@pytest.mark.parametrize("keep_going", [False, True])
def test_a_run_that_fails_ends_the_command_unless_it_keeps_going(shell, monkeypatch, keep_going):
    def broken(self, fed, s, S):
        raise RuntimeError("broken")

    monkeypatch.setattr(Local, "update", broken)
    command = ("run", "-m", "local", "-m", "fedavg", *SHORT, *(["--keep-going"] if keep_going else []))
    done = shell(*command, "--json")
    assert done.code == (2 if keep_going else 1)
    assert "Error: RuntimeError: broken" in done.err
    assert [one["method"] for one in parsed(done, done.code)] == (["fedavg"] if keep_going else [])
    assert rows("SELECT method, status FROM run") == [("local", "failed"), *([("fedavg", "finished")] if keep_going else [])]


@pytest.mark.slow
def test_reproduce_makes_as_many_as_the_limit(shell):
    command = ("reproduce", "ablation", "--scale", "smoke", "--limit", "1")
    done = shell(*command)
    assert done.code == 0
    assert rows("SELECT COUNT(*) FROM run") == [(1,)]
    assert shell(*command).code == 0
    assert rows("SELECT status FROM run") == [("finished",)] * 2
    assert "No run is missing." in shell(*command).err
