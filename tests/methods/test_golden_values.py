"""Numbers of every method that change only with its version: tests/golden/values.json, written by tests/golden/values.py."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from golden import values
from support.cases import rest_slow
from support.planted import plant

from pflbench import methods
from pflbench.engine.federation import Federation
from pflbench.engine.flat import Flat
from pflbench.methods import pfedme
from pflbench.methods.ala import ALA
from pflbench.methods.ditto import Ditto
from pflbench.methods.fedfomo import FedFomo
from pflbench.methods.fedprox import FedProx
from pflbench.run.execution import Execution

NAMES = methods.names(with_ala=True)
WRITE = "python tests/golden/values.py"


@pytest.mark.parametrize("name", rest_slow(NAMES, *methods.METHODS, "fedavg+ala"))
def test_numbers_are_those_of_the_version(name: str) -> None:
    kept = values.kept().get(name)
    assert kept is not None, f"{name} has no numbers yet: run `{WRITE} {name}`"
    version = methods.spec(name, {}).version
    assert version == kept["version"], f"{name} has version {version}, its numbers are of {kept['version']}: run `{WRITE} {name}`"
    changed = next(values.differences(values.values(name), kept["values"]), None)
    assert changed is None, f"numbers of {name} changed ({changed}): raise its version and run `{WRITE} {name}`"


def test_there_are_no_numbers_of_other_methods() -> None:
    assert values.kept().keys() == set(NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_batched_executor_gives_them_as_well(name: str) -> None:
    found = values.values(name, Execution("cpu", "batched"))
    assert list(values.differences(found, values.kept()[name]["values"], 1e-9)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_rounding_does_not_pass_for_a_change(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No value lies where the last digits decide, as at a ReLU's kink or between two samples that are predicted alike."""
    row = Flat.row

    def shaken(flat: Flat) -> torch.Tensor:
        exact = row(flat).double()
        return exact * (1 + 1e-14 * torch.sin(torch.arange(len(exact), dtype=exact.dtype)))

    monkeypatch.setattr(Flat, "row", shaken)
    found = values.values(name)
    assert list(values.differences(found, values.kept()[name]["values"], 1e-10)) == []


# A method, what of it is changed, and how little.
FAULTS: dict[str, tuple[str, Any, str, str, str]] = {
    "an aggregation weight": ("fedavg", Federation, "shares", "self.n[S] / ", "(self.n[S] + 1e-5) / "),
    "one epoch of ALA's initial stage": ("fedala", ALA, "_learn", "epochs > WINDOW", "epochs >= WINDOW"),
    "one epoch of ALA later on": ("fedavg+ala", ALA, "_learn", "epochs >= self.min_epochs", "epochs > self.min_epochs"),
    "FedProx's mu": ("fedprox", FedProx, "train", "self.mu", "self.mu * 1.01"),
    "one epoch of Ditto's personal branch": ("ditto", Ditto, "update", "self.personal_epochs", "self.personal_epochs + 1"),
    "one of pFedMe's steps": ("pfedme", pfedme, "moreau", "range(K)", "range(K - 1)"),
    "FedFomo's epsilon": ("fedfomo", FedFomo, "worth", "distance + self.epsilon", "distance"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_small_change_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, owner, function, old, new = FAULTS[fault]
    plant(monkeypatch, owner, function, old, new)
    assert next(values.differences(values.values(name), values.kept()[name]["values"]), None) is not None


def test_they_are_written_anew_under_another_version_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(values, "TARGET", Path(shutil.copy(values.TARGET, tmp_path)))
    before = values.TARGET.read_bytes()
    assert values.renew(["fedprox", "local"]) == 0
    assert values.TARGET.read_bytes() == before
    plant(monkeypatch, FedProx, "train", "self.mu", "2 * self.mu")
    assert values.renew(["fedprox", "local"]) == 2
    assert "numbers of fedprox changed" in capsys.readouterr().err
    assert values.TARGET.read_bytes() == before
    monkeypatch.setattr(FedProx, "version", 2)
    assert values.renew(["fedprox", "local"]) == 0
    assert values.kept()["fedprox"]["version"] == 2
    assert values.kept()["local"] == json.loads(before)["local"]
    test_numbers_are_those_of_the_version("fedprox")
