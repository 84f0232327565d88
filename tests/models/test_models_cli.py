"""`pflbench models`: what is listed and shown, and the contract suite, which good models pass and broken ones fail."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.command import Shell
from support.nets import NETS

from pflbench.models import MODELS

SMALL = """

class Small(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.hidden, self.fc = nn.Linear(64, 8), nn.Linear(8, classes)

    def forward(self, x):
        return self.fc(F.relu(self.hidden(x.flatten(1))))
"""


def write(text: str) -> str:
    Path("nets.py").write_text(NETS + SMALL + text)
    return "nets.py"


@pytest.mark.slow
def test_all_models_are_listed_with_their_parts(shell: Shell) -> None:
    rows = {row["name"]: row for row in json.loads(shell("models", "list", "--json").out)}
    assert list(rows) == list(MODELS)
    assert (rows["cnn"]["for"], rows["cnn"]["parameters"], rows["cnn"]["head"]) == ("mnist", 582026, "output")  # methods.md 4.1
    assert (rows["fasttext"]["for"], rows["fasttext"]["parameters"]) == ("agnews", 3157508)  # methods.md 4.2
    assert rows["resnet18"]["blocks"] == ["fc", "layer4", "layer3", "layer2", "layer1", "conv1 + bn1"]
    digits = {row["name"]: row for row in json.loads(shell("models", "list", "-d", "digits", "--json").out)}
    assert digits["mlp"]["parameters"] == 4810
    assert "at least 16 x 16" in digits["cnn"]["blocks"]


def test_a_model_is_shown_for_a_dataset(shell: Shell) -> None:
    shown = json.loads(shell("models", "show", "cnn", "-d", "cifar100", "--json").out)
    assert [block["top p blocks"] for block in shown["blocks"]] == [51300, 871012, 922276, 924708]  # methods.md 4.1
    shown = json.loads(shell("models", "show", f"{write('')}:Net", "--json").out)
    assert (shown["description"], shown["buffers"], shown["head"]) == (
        "A convolution, and a linear layer.",
        9,
        "fc",
    )
    assert [(block["p"], block["block"], block["parameters"]) for block in shown["blocks"]] == [
        (1, "fc", 650), (2, "norm", 8), (3, "conv", 40),
    ]  # fmt: skip
    assert "head                    fc" in shell("models", "show", "nets.py:Net").out
    assert "does not work on samples 3 x 32 x 32" in shell.refused("models", "show", "nets.py:Small", "-d", "cifar10")
    assert "Unknown dataset 'cifar'" in shell.refused("models", "show", "cnn", "-d", "cifar")
    assert "Did you mean 'cnn'" in shell.refused("models", "show", "cn")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["nets.py:Net", "nets.py:Small", "mlp", "fasttext"])
def test_a_good_model_keeps_the_contract(shell: Shell, model: str) -> None:
    write("")
    done = shell("models", "test", model)
    assert done.code == 0, done.out
    assert "11 passed" in done.out
    assert sorted(path.name for path in Path().iterdir()) == ["nets.py"], "nothing is left behind"


OWN = "\n\nclass Own(Small):\n    def forward(self, x):\n        {}\n"
BROKEN = {
    "samples that see one another": ("h = self.hidden(x.flatten(1)); return self.fc(h - h.mean(0))", "see_one_another"),
    "single precision alone": (
        "h = torch.zeros(len(x), 64).add(1); return super().forward(h.mul_(x.flatten(1).float()))",
        "logits",
    ),
    "a gradient cut off": ("return self.fc(self.hidden(x.flatten(1)) * 0.0)", "a_gradient_reaches"),
    "batches of 2 alone": ("return super().forward(x[:2].repeat(len(x) // 2, 1, 1, 1))", "logits_for_any_batch"),
    "a memory of evaluation": (
        "self.n = getattr(self, 'n', 0) + (not self.training); return self.fc(self.hidden(x.flatten(1)) + self.n)",
        "logits_of_features",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("defect", BROKEN)
def test_a_broken_model_fails_the_test_of_what_it_breaks(shell: Shell, defect: str) -> None:
    code, failing = BROKEN[defect]
    done = shell("models", "test", f"{write(OWN.format(code))}:Own")
    assert done.code == 1, done.out
    (test,) = re.findall(r"^FAILED \S+::ModelContract::(\w+)", done.out, re.M)
    assert re.search(failing, test), done.out


@pytest.mark.slow
def test_what_cannot_be_done_for_all_clients_at_once_is_told(shell: Shell) -> None:
    done = shell("models", "test", f"{write(OWN.format('return super().forward(x * (2 if x.sum().item() > 1e9 else 1))'))}:Own")
    assert done.code == 0, done.out
    assert "4 skipped" in done.out
    assert "goes with --engine loop alone: vmap" in done.out


@pytest.mark.slow
def test_packs_and_sweeps(shell: Shell) -> None:
    """What a worker is given is the specification, which says where the file is."""
    file = write("")
    common = ("-d", "digits", "-r", "2", "--clients", "3", "--batch-size", "200", "-q", "--json")
    packed = ("run", "-m", "fedavg", "--seeds", "0-1", "--engine", "batched", "--pack", "2", "--model", f"{file}:Net")
    alone = json.loads(shell("run", "-m", "fedavg", "--seeds", "0-1", "--db", "alone.db", "--model", f"{file}:Net", *common).out)
    together = json.loads(shell(*packed, *common).out)
    assert [row["key"] for row in together] == [row["key"] for row in alone]
    assert [row["best"] for row in together] == pytest.approx([row["best"] for row in alone], abs=0.01)
    swept = shell("sweep", "-m", "fedavg", "--grid", f"model={file}:Net,{file}:Small,mlp", "--jobs", "1", *common)
    assert swept.code == 0, swept.err
    states = [one["state"] for one in json.loads(swept.out)["runs"]]
    assert states == ["finished"] * 2, "seed 0 of Net was there"
