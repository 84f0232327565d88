"""What a run is said to need of memory, before it."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from pflbench import methods
from pflbench.contract.small import train
from pflbench.engine import memory
from pflbench.engine.memory import SHARE
from pflbench.run.execution import Execution
from pflbench.run.federation_data import load_federation_data
from pflbench.run.memory_estimate import Peak, footprint
from pflbench.run.options import RunOptions
from pflbench.run.plan import plan
from pflbench.run.prepared import prepare

CPU = torch.device("cpu")
HEAD = 64 * 10 + 10  # parameters
P = 64 * 64 + 64 + HEAD
DIGITS = ("-d", "digits", "--rounds", "2", "--batch-size", "50", "--engine", "batched")


def test_the_estimate_in_a_dry_run(shell, tmp_path):
    done = shell("run", "-m", "fedavg", *DIGITS, "--chunk", "4", "--seeds", "0-1", "--dry-run", "--json")
    first, second = (planned["memory"] for planned in json.loads(done.out))
    assert first["total"] == second["total"]
    assert (first["engine"], first["clients"], first["batch_norm"]) == ("batched", 4, 0)
    assert first["data"] == 1797 * (64 * 4 + 8)
    assert first["models"] == 4 * P * (2 * 2 + 2 * 10), "two vectors of this and of the last round, ten clients before and after"
    assert first["copies"] == 4 * P * 2 * 4
    assert first["total"] == first["data"] + first["models"] + max(first["copies"] + first["activations"], first["evaluation"])
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_fit_is_said(shell, monkeypatch):
    for what in ("free", "room"):
        monkeypatch.setattr(memory, what, lambda device, **_: 200_000)
    done = shell("run", "-m", "local", *DIGITS, "--dry-run", "--json")
    assert "local on digits needs about 0.00" in done.err
    assert "but 0.0002 GB are free on cpu" in done.err
    assert json.loads(done.out)[0]["memory"]["clients"] == 1


def test_without_data_there_is_no_estimate(shell):
    done = shell("run", "-m", "fedavg", "-m", "local", "-d", "mnist", "--dry-run", "--json")
    assert [planned["memory"] for planned in json.loads(done.out)] == [None, None]
    assert done.err.count("The data of 'mnist' are missing") == 1


def specs(*names, **more):
    return plan(RunOptions(methods=names, datasets=("digits",), data_dir=Path("data"), **more))


def test_every_method_has_an_estimate_also_for_a_gpu_that_is_not_here():
    for spec in specs(*methods.names(with_ala=True)):
        found = footprint(spec, load_federation_data(spec, Path("data")), Execution(device="cuda:7"))
        assert found is not None, f"{spec.method.name}.init needs values"
        assert (found.device, found.engine, found.clients, found.free) == ("cuda:7", "batched", 10, None)
        size = load_federation_data(spec, Path("data")).model(spec)  # the model with what the method has beside it
        row = 4 * sum(parameter.numel() for parameter in size.parameters())
        assert row >= 4 * P
        assert found.models >= row * 10
        assert found.copies == row * 2 * 10
        assert found.programs == row * (3 + 3) * 10 + found.activations
        assert not found.problem()


@pytest.mark.parametrize("runs", [1, 3])
def test_a_run_begins_with_as_many_clients_at_a_time_as_were_said(runs, monkeypatch):
    """By one estimate. Three runs keep three times as much, and share the data."""
    (spec,) = specs("fedavg", clients=12)
    setting, how = load_federation_data(spec, Path("data")), Execution(engine="batched")
    whole = footprint(spec, setting, how)
    fixed = whole.data + runs * (whole.models + whole.batch_norm)
    each = (whole.copies + whole.activations) / whole.clients
    monkeypatch.setattr(memory, "room", lambda device, **_: fixed + 5.5 * each / SHARE)

    def estimated(how):
        run = prepare(spec, setting, CPU, how)
        return run.executor(run.initial_model(), runs).chunks.estimate

    assert estimated(how) == 5
    assert estimated(Execution(engine="batched", chunk=3)) is None
    if runs == 1:
        assert footprint(spec, setting, how).clients == 5


def test_where_nothing_is_known_all_are_tried(monkeypatch):
    (spec,) = specs("fedavg", clients=12)
    setting, how = load_federation_data(spec, Path("data")), Execution(engine="batched")
    looks = Mock(side_effect=RuntimeError("Tensor.item() cannot be called on meta tensors"))
    monkeypatch.setattr(methods, "make", lambda spec: Mock(init=looks, model=lambda backbone: backbone))
    assert footprint(spec, setting, how) is None
    assert prepare(spec, setting, CPU, how).federation().executor.chunks.estimate is None
    assert looks.call_count == 2


def test_what_optimizers_keep_is_counted():
    """Two rows of each client and model for AdamW, of this and of the last round, and of the cohort before and after training."""
    (plain,) = specs("ditto", clients=12, join_ratio=0.5)
    for more, rows in (("fresh", 2 * 2 * 6), ("kept", 2 * 2 * 6 + 2 * 2 * 2 * 12)):
        (spec,) = specs("ditto", clients=12, join_ratio=0.5, optimizer="adamw", optimizer_state=more)
        one, other = (footprint(s, load_federation_data(s, Path("data")), Execution(engine="batched")) for s in (spec, plain))
        assert one.models - other.models == 4 * P * rows
        assert one.copies > 2 * other.copies


def test_what_is_only_tested_is_kept_once_more():
    """All models of FedALA's clients, its weights and flags: beside those of this and the last round, in a copy for the test."""
    found = [
        footprint(spec, load_federation_data(spec, Path("data")), Execution(engine="batched")).models
        for evaluate in ("participants", "all")
        for spec in specs("fedala", clients=12, join_ratio=0.5, evaluate=evaluate)
    ]
    assert found[1] - found[0] == 4 * P * (1 + 12) + 12 * (4 * HEAD + 2)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        *((name, {}) for name in ("fedavg", "ditto", "apple", "fedamp")),
        ("ditto", {"optimizer": "adamw", "optimizer_state": "kept", "batch_size": 100}),
    ],
)
def test_the_estimate_is_close_to_what_a_round_takes(name, more):
    (spec,) = specs(name, clients=12, **more)
    setting = load_federation_data(spec, Path("data"))
    said = footprint(spec, setting, Execution(engine="batched"))
    fed = prepare(spec, setting, CPU, Execution(engine="batched")).federation()
    method = methods.make(spec.method)
    with Peak() as peak:
        state = train(method, fed, 1)
        train(method, fed, 1, state, start=2)
        fed.evaluate(method.deployed(state), fed.all_trainable(), method.tested_model)
    assert said.clients == 12
    assert 0.6 < (said.total - said.data) / peak.most < 2
