"""A built-in model is added by a file and a line: nothing else has to know it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
from support.command import Shell, parsed
from torch import Tensor, nn

from pflbench import models
from pflbench.contract.small import federation, train
from pflbench.methods.fedavg import FedAvg
from pflbench.models import Entry
from pflbench.models.base import Backbone


class LeNet(Backbone):
    head = "output"
    blocks = (("output",), ("conv",))

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 4, 3)
        self.output = nn.Linear(4, classes)

    def features(self, x: Tensor) -> Tensor:
        return self.conv(x).relu().mean((2, 3))


@pytest.fixture
def lenet(monkeypatch: pytest.MonkeyPatch) -> None:
    file = ModuleType("pflbench.models.lenet")
    file.LeNet = LeNet  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, file.__name__, file)
    line = Entry("LeNet", "a small one", 0.3, ("output", "conv"), lambda shape, _: "" if len(shape) == 3 else "images",
                 "lenet", lambda module, shape, classes, _: module.LeNet(shape[0], classes))  # fmt: skip
    monkeypatch.setitem(models.MODELS, "lenet", line)


@pytest.mark.usefixtures("lenet")
def test_a_new_model_runs_and_has_its_rate_and_its_title(shell: Shell) -> None:
    done = shell("run", "-m", "fedala", "-d", "digits", "--model", "lenet", "--rounds", "2", "--save-artifacts-every", "1")
    assert done.code == 0, done.err
    run = parsed(shell("runs", "show", "1", "--json"))
    assert (run["spec"]["model"], run["spec"]["train"]["lr"]) == ("lenet", 0.3)
    assert "LeNet" in shell("table", "accuracy").out
    assert "lenet" in shell("models", "list").out
    assert shell("plot", "ala-weights", "-o", "weights.svg").code == 0
    assert "output" in Path("weights.svg").read_text()


@pytest.mark.usefixtures("lenet")
def test_the_contract_makes_federations_of_it() -> None:
    assert train(FedAvg(), federation("lenet", shape=None), 1).w.isfinite().all()
