"""What is known of a GPU: where the result of `doctor --gpu` is kept, what is said of it before a run, and in a run's record."""

from __future__ import annotations

import pytest
import torch
from support.gpu import NAME, plugged_in

from pflbench.run import gpu_check

CPU, GPU = torch.device("cpu"), torch.device(NAME, 0)
PASSED, FAILED = {"check": "mlp, loop in float64", "status": "passed"}, {"check": "resume in float64", "status": "failed"}


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with plugged_in():
        yield tmp_path


def test_an_unchecked_gpu_is_told_of_once():
    assert gpu_check.in_short(GPU) == "not checked"
    assert "`pflbench doctor --gpu`" in gpu_check.note(GPU)
    assert gpu_check.note(GPU) == ""
    assert gpu_check.in_short(GPU) == "not checked"


@pytest.mark.parametrize(
    ("checks", "note", "in_short"),
    [
        ([PASSED], "", "passed"),
        ([PASSED, FAILED], "checks of this GPU have failed: resume in float64. ", "1 of 2 failed: resume in float64"),
        ([FAILED, FAILED], "resume in float64, resume in float64. ", "2 of 2 failed"),
    ],
)
def test_the_last_result_is_what_is_known(checks, note, in_short):
    gpu_check.keep(GPU, [FAILED])
    gpu_check.keep(GPU, checks)
    for _ in range(2):
        assert note in gpu_check.note(GPU)
        assert bool(note) == bool(gpu_check.note(GPU))
    assert in_short in gpu_check.in_short(GPU)


@pytest.mark.parametrize("word", ["device", "driver", "torch"])
def test_it_is_of_one_device_driver_and_pytorch(monkeypatch, word):
    about = gpu_check.identity(GPU)
    gpu_check.keep(GPU, [PASSED])
    with monkeypatch.context() as other:
        other.setattr(gpu_check, "identity", lambda device: {**about, word: "another"})
        assert gpu_check.in_short(GPU) == "not checked"
        gpu_check.keep(GPU, [FAILED])
    assert gpu_check.in_short(GPU) == "passed"


def test_of_a_cpu_nothing_is_said():
    assert (gpu_check.note(CPU), gpu_check.in_short(CPU)) == ("", None)


def test_where_nothing_can_be_written_runs_are_made_all_the_same(state):
    (state / "pflbench").write_text("")
    assert gpu_check.note(GPU) == gpu_check.note(GPU) != ""
    with pytest.raises(OSError, match="pflbench"):
        gpu_check.keep(GPU, [PASSED])


def test_the_driver_is_found_where_the_system_says_it(monkeypatch, tmp_path):
    told = tmp_path / "version"
    monkeypatch.setattr(gpu_check, "NVIDIA", told)
    assert gpu_check.driver(torch.device("cuda")) == "unknown"
    told.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC version: 12.2.0\n")
    assert gpu_check.driver(torch.device("cuda")) == "570.86.15"
    assert gpu_check.driver(CPU) == "unknown"
