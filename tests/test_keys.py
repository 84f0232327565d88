"""Keys of runs that people have stored: the same command finds them."""

from __future__ import annotations

import json
import lzma
import sqlite3
from pathlib import Path

import pytest

from pflbench import methods
from pflbench.spec import IID, LATER, DataSpec, MethodSpec, RunSpec, TrainSpec

STORED = Path(__file__).parents[1] / "reports" / "cifar10-6000.db.xz"


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    path = tmp_path_factory.mktemp("stored") / "stored.db"
    path.write_bytes(lzma.decompress(STORED.read_bytes()))
    with sqlite3.connect(path) as connection:
        return [(key, json.loads(spec)) for key, spec in connection.execute("SELECT key, spec FROM run")]


def test_the_same_command_has_the_same_key(stored):
    """Method by method, from its hyperparameters as they were written down when the run was made."""
    assert len({spec["method"]["name"] for _, spec in stored}) == 44
    for key, spec in stored:
        name = spec["method"]["name"]
        plugged = methods.load(name).ala_decides if name.endswith("+ala") else {}
        given = {k: v for k, v in spec["method"]["hyperparameters"].items() if k not in plugged}
        now = methods.spec(name, given)
        assert now.hyperparameters == spec["method"]["hyperparameters"], name
        # A version that has risen since then is another run, and meant to be.
        planned = RunSpec.model_validate({**spec, "method": {**now.model_dump(), "version": spec["method"]["version"]}})
        assert planned.key == key, name
        methods.make(planned.method)


def test_an_optimizer_is_in_the_key_where_it_is_not_plain_sgd(stored):
    key, spec = stored[0]
    plain = {"optimizer": "sgd", "momentum": None, "weight_decay": 0.0, "optimizer_state": "fresh", "lr_schedule": "constant"}
    assert RunSpec.model_validate({**spec, "train": {**spec["train"], **plain}}).key == key
    others = [{"optimizer": "momentum"}, {"optimizer": "momentum", "optimizer_state": "kept"}, {"optimizer": "adamw"},
              {"weight_decay": 0.1}, {"lr_schedule": "cosine"}, {"lr_schedule": "step", "lr_step_every": 2}]  # fmt: skip
    specs = [RunSpec.model_validate({**spec, "train": {**spec["train"], **other}}) for other in others]
    assert len({key, *(one.key for one in specs)}) == len({one.protocol for one in specs}) + 1 == len(others) + 1


def test_every_field_and_hyperparameter_is_written_down():
    """So a change of a default changes keys, and never what a stored key means."""
    for name in methods.names(with_ala=True):
        own = methods.spec(name, {})
        assert own.hyperparameters.keys() >= {hyper.name for hyper in methods.hyperparameters(name)}
        assert own == methods.spec(name, {hyper.name: hyper.default for hyper in methods.hyperparameters(name)})
    spec = RunSpec(
        data=DataSpec(name="mnist"), partition=IID(clients=2), model="cnn", train=TrainSpec(rounds=1, lr=0.1), method=own
    )
    parts = {"data": DataSpec, "partition": IID, "train": TrainSpec, "method": MethodSpec}
    plain = spec.canonical()
    assert plain.keys() == RunSpec.model_fields.keys()
    for part, kind in parts.items():
        assert plain[part].keys() == kind.model_fields.keys() - {"path", "test_labels", *LATER}
