"""`doctor --gpu` and the check before a first run, on the GPU made of Python."""

from __future__ import annotations

import json

import pytest
import torch
from support.gpu import NAME, plugged_in

from pflbench.contract import as_run
from pflbench.contract import device as contract
from pflbench.run import verdict
from pflbench.run.verdict import PRODUCTS, TF32, Check

FEW = [Check(PRODUCTS, "", "float64"), Check(PRODUCTS, "", "float32"), Check(TF32, "", "float32")]
FEW += [Check("mlp", way, "float64") for way in ("loop", "batched", "captured")]
FAST = ("-d", "digits", "--rounds", "1", "--batch-size", "200", "--clients", "3", "--device", NAME)


@pytest.fixture
def gpu(request, shell, tmp_path, monkeypatch):
    """Two of them; its parameter is the one that can be trained on, by default the first."""
    monkeypatch.delenv(verdict.SKIP)
    monkeypatch.setenv(verdict.FILE, str(tmp_path / "gpu.json"))
    monkeypatch.setattr(verdict, "_known", {})
    monkeypatch.setattr(contract, "whole", lambda: FEW)
    monkeypatch.setattr(as_run, "WITH_EVERY_MODEL", ("fedavg",))
    with plugged_in(trains_on=getattr(request, "param", 0)) as world:
        yield world


def ending_early(world, monkeypatch):
    """Plants a fault: each third replay does nothing."""
    replay, calls = type(world).replay, []

    def replayed(self, tape):
        calls.append(1)
        if len(calls) % 3:
            replay(self, tape)

    monkeypatch.setattr(type(world), "replay", replayed)


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


@pytest.mark.parametrize("gpu", [1], indirect=True)
def test_a_healthy_gpu_passes_and_is_remembered(shell, gpu):
    done = shell("doctor", "--gpu", "--device", f"{NAME}:1")
    assert done.code == 0, done
    lines = done.out.splitlines()
    assert lines[0].split() == ["check", "float64", "float32"]
    assert next(line for line in lines if line.startswith("mlp, captured")).split() == ["mlp,", "captured", "passed"]
    assert "not supported" in next(line for line in lines if line.startswith("tf32"))
    assert "  captured: mlp" in lines
    assert "0 failed" in done.err
    known, problem = verdict.read(torch.device(NAME, 1))
    assert (set(known), problem) == (set(FEW), "")


@pytest.mark.slow
def test_a_fault_is_named_and_counted(shell, gpu, monkeypatch):
    ending_early(gpu, monkeypatch)
    done = shell("doctor", "--gpu", "--json")
    found = json.loads(done.out)
    assert done.code == 1
    failed = {(one["what"], one["way"], one["floats"]) for one in found["checks"] if one["status"] == "failed"}
    assert failed == {("mlp", "captured", "float64")}
    assert found["fast_paths"]["captured"] == []
    assert found["fast_paths"]["batched"] == ["mlp"]
    assert found["device"] == "A GPU made of Python"


@pytest.mark.slow
def test_the_first_run_checks_what_it_needs_and_the_second_nothing(shell, gpu, monkeypatch):
    monkeypatch.setattr(contract, "MANY", (10,) * 8)
    first = shell("run", "-m", "fedavg", *FAST)
    assert first.code == 0, first
    assert "is checked first" in first.err
    assert "checks passed" in first.err
    assert "slower" not in first.err
    second = shell("run", "-m", "fedavg", "--seed", "1", *FAST)
    assert "is checked first" not in second.err
    recorded = json.loads(shell("runs", "show", "2", "--json").out)["environment"]
    assert recorded["gpu_check"] == "passed"
    assert recorded["steps"]["capture"] == "graph"


def test_who_wants_no_check_gets_none(shell, gpu, monkeypatch):
    monkeypatch.setenv(verdict.SKIP, "off")
    done = shell("run", "-m", "fedavg", *FAST)
    assert "check" not in done.err
    assert json.loads(shell("runs", "show", "1", "--json").out)["environment"]["gpu_check"] == "left out (PFLBENCH_GPU_CHECK=off)"
