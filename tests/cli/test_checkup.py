"""`doctor --gpu` and the check before a first run, on the GPU made of Python."""

from __future__ import annotations

import json

import pytest
import torch
from support import planted
from support.gpu import NAME, plugged_in

from pflbench.contract import as_run
from pflbench.contract import device as contract
from pflbench.contract.device import PRODUCTS, TF32, Check, Pace
from pflbench.run import gpu_check

FEW = [Check(PRODUCTS, "", "float64"), Check(PRODUCTS, "", "float32"), Check(TF32, "", "float32")]
FEW += [Check("mlp", way, "float64") for way in ("loop", "batched", "captured")]
FAST = ("-d", "digits", "--rounds", "1", "--batch-size", "200", "--clients", "3", "--device", NAME)


@pytest.fixture
def gpu(shell, monkeypatch):
    monkeypatch.setattr(contract, "whole", lambda: FEW)
    monkeypatch.setattr(contract, "pace", lambda device: Pace(300, 100))
    monkeypatch.setattr(as_run, "WITH_EVERY_MODEL", ("fedavg",))
    with plugged_in() as world:
        yield world


def test_without_a_gpu_it_says_so(shell):
    assert "no GPU here" in shell.refused("doctor", "--gpu")
    assert "no GPU here" in shell.refused("doctor", "--gpu", "--device", "cpu", "--json")


def test_a_driver_that_is_older_than_pytorch_s_cuda_is_said_with_both_versions(shell, monkeypatch):
    """With PyTorch's own words for it, and GPUs that it counts all the same: it asks another library for their number."""

    def init():
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 12040). Please update your GPU driver by")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    both = "CUDA up to 12.4, and this PyTorch needs CUDA 13.0"
    found = shell("doctor")
    assert (found.code, both in found.err) == (2, True), found
    asked = ("run", "-m", "fedavg", "-d", "digits", "--rounds", "1", "--batch-size", "200")
    assert both in shell.refused(*asked, "--device", "cuda")
    auto = shell(*asked)
    assert (auto.code, auto.err.count(both)) == (0, 1), auto
    assert both not in shell(*asked, "--device", "cpu", "--force").err


@pytest.mark.slow
def test_a_healthy_gpu_passes_and_is_remembered(shell, gpu):
    done = shell("doctor", "--gpu", "--device", f"{NAME}:0")
    assert done.code == 0, done
    lines = done.out.splitlines()
    assert lines[0].split() == ["check", "result"]
    assert next(line for line in lines if line.startswith("mlp, captured")).endswith("passed")
    assert "not supported" in next(line for line in lines if line.startswith("tf32"))
    assert "300 steps/s, 100 one client after another: 3.0 times as fast" in lines[-1]
    assert "0 failed" in done.err
    assert gpu_check.in_short(torch.device(NAME, 0)) == "passed"


@pytest.mark.slow
def test_a_fault_is_named_and_counted(shell, gpu, monkeypatch):
    planted.plant(monkeypatch, *planted.ONE_STEP_MORE)
    done = shell("doctor", "--gpu", "--json")
    found = json.loads(done.out)
    assert done.code == 1
    failed = {(one["what"], one["way"], one["floats"]) for one in found["checks"] if one["status"] == "failed"}
    assert failed == {("mlp", "captured", "float64")}
    assert found["device"] == "A GPU made of Python"
    assert found["pace"] is None


def test_the_first_run_says_that_there_is_a_check_and_its_record_what_it_found(shell, gpu):
    def noted(seed, *more):
        done = shell("run", "-m", "fedavg", "--seed", str(seed), *more, *FAST)
        assert done.code == 0, done
        record = json.loads(shell("runs", "show", str(seed + 1), "--json").out)["environment"]
        assert record["steps"]["capture"] == "graph"
        return [line for line in done.err.splitlines() if "doctor --gpu" in line], record["gpu_check"]

    assert noted(0, "--quiet") == ([], "not checked")
    gpu_check.keep(torch.device(NAME, 0), [{"check": "mlp, captured in float64", "status": "failed"}])
    (line,), known = noted(1)
    assert "checks of this GPU have failed: mlp, captured in float64" in line
    assert known == "1 of 1 failed: mlp, captured in float64"
