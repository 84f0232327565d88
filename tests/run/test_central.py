"""The central test set: what is set aside, what is tested on it, who cannot have one, and keys."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.command import Shell, rows
from torch.nn import functional as F

from pflbench import data, methods, partition
from pflbench.contract.small import EXECUTORS, federation
from pflbench.errors import Diverged, UserError
from pflbench.report import paper
from pflbench.run.federation_data import load_federation_data
from pflbench.run.round import evaluate_central, global_model
from pflbench.run.training import execute
from pflbench.spec import IID, DataSpec, Dirichlet, Groups, MethodSpec, PartitionSpec, Pathological, RunSpec, TrainSpec
from pflbench.store import database as db
from pflbench.store.runs import RoundRule

SCHEMES: dict[str, PartitionSpec] = {
    "dirichlet": Dirichlet(clients=4, beta=1.0, central_test=True),
    "pathological": Pathological(clients=4, classes_per_client=2, central_test=True),
    "iid": IID(clients=4, central_test=True),
    "groups": Groups(clients=4, groups=2, central_test=True),
}
CLASSES, PER_CLASS, TESTED = "abc", 40, 15  # images of a class in train/ and in test/


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder with train/ and test/: 8 x 8 grey images, lighter with every class."""
    random = np.random.default_rng(3)
    for part, count in (("train", PER_CLASS), ("test", TESTED)):
        for k, name in enumerate(CLASSES):
            folder = tmp_path / "images" / part / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = random.integers(60 * k, 60 * k + 130, (8, 8), np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    return tmp_path / "images"


def spec(source: DataSpec, held: PartitionSpec, method: str = "fedavg", model: str = "logreg") -> RunSpec:
    train = TrainSpec(rounds=1, lr=0.1)
    return RunSpec(data=source, partition=held, model=model, train=train, method=methods.spec(method, {}))


# -- keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "key", "protocol"),
    [
        (Dirichlet(clients=20, beta=0.1), "0bd321fbf6cc48c2", "8a4bac44e4171f55"),
        (Pathological(clients=20, classes_per_client=2), "4e5b23d594fea958", "fb016f640d31b05c"),
        (IID(clients=10), "8391979d93917b43", "ad941c7d48f88c19"),
        (Groups(clients=10, group_sizes=(1, 2, 3, 4, 5)), "bf2f7ee50a763813", "9be3956fbe1f459f"),
    ],
)
def test_keys_stay(held: Any, key: str, protocol: str) -> None:
    method = MethodSpec(name="fedala", hyperparameters={"p": 1, "s": 80, "eta_w": 1.0, "cap": None})
    train = TrainSpec(rounds=2000, lr=0.005)
    run = RunSpec(data=DataSpec(name="cifar10"), partition=held, model="cnn", train=train, method=method, seed=3)
    assert (run.key, run.protocol) == (key, protocol)
    everyone = run.model_copy(update={"train": TrainSpec(rounds=2000, lr=0.005, evaluate="all")})
    assert everyone.key == key, "all take part: whoever takes part is everyone"
    other = run.model_copy(update={"partition": held.model_copy(update={"central_test": True})})
    assert other.key != key
    assert other.protocol != protocol, "no table puts the two beside each other"
    assert RunSpec(**other.model_dump(mode="json")) == other
    assert RunSpec(**run.model_dump(mode="json")) == run


# -- what is set aside ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", SCHEMES.values(), ids=SCHEMES)
def test_clients_share_the_training_part(held: Any, images: Path, tmp_path: Path) -> None:
    run = spec(data.parse(f"folder:{images}", tmp_path), held)
    setting = load_federation_data(run, tmp_path)
    train_size = len(CLASSES) * PER_CLASS
    assert setting.arrays.y[:train_size].tolist() == np.repeat(range(len(CLASSES)), PER_CLASS).tolist()
    assert setting.central is not None
    assert setting.central.tolist() == list(range(train_size, train_size + len(CLASSES) * TESTED))
    alone = partition.make(held, setting.arrays.y[:train_size], len(CLASSES))
    for ours, theirs in zip((setting.partition.train, setting.partition.test), (alone.train, alone.test), strict=True):
        assert [part.tolist() for part in ours] == [part.tolist() for part in theirs]
    merged = load_federation_data(run.model_copy(update={"partition": held.model_copy(update={"central_test": False})}), tmp_path)
    assert merged.central is None
    assert merged.record.hash != setting.record.hash
    held_by_all = np.concatenate([*merged.partition.train, *merged.partition.test])
    assert held_by_all.max() >= train_size


def test_data_without_an_official_test_part_are_refused(tmp_path: Path) -> None:
    for name, dataset in data.DATASETS.items():
        assert dataset.test_part == (name not in ("digits", "tiny"))
    with pytest.raises(UserError, match="digits has no official test part") as caught:
        load_federation_data(spec(DataSpec(name="digits"), IID(clients=4, central_test=True), model="mlp"), tmp_path)
    assert "mnist, fashionmnist, emnist, cifar10, cifar100, agnews, har, leaf:PATH, and folder:PATH" in caught.value.hint


# -- what is tested ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", EXECUTORS)
@pytest.mark.parametrize("count", [1, 7, 2500])
def test_a_linear_model_by_hand(engine: str, count: int) -> None:
    fed = federation("logreg", engine, n=(1500, 900, 300), tests=(9, 0, 5))
    samples = np.random.default_rng(2).permutation(2714)[:count]
    x, y = fed.executor.samples.x[samples].numpy(), fed.executor.samples.y[samples].numpy()  # type: ignore[attr-defined]
    row = np.random.default_rng(1).normal(size=fed.flat.size)
    logits = x @ row[:48].reshape(4, 12).T + row[48:]
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(count), y]
    accuracy, loss = fed.evaluate_central(torch.from_numpy(row), samples)
    assert accuracy == pytest.approx((logits.argmax(1) == y).mean(), abs=1e-12)
    assert loss == pytest.approx(losses.mean(), abs=1e-12)


@pytest.mark.parametrize("engine", EXECUTORS)
def test_batch_norm_uses_the_mean_of_the_clients_statistics(engine: str) -> None:
    fed = federation("batchnorm", engine, n=(30, 10, 0))
    statistics = torch.rand(3, 13, dtype=torch.float64) + 0.5  # running mean [6], running variance [6], counter
    fed.buffers["personal"] = statistics
    samples = np.arange(40)
    row = fed.initial()
    named = fed.flat.views(row)
    mean = 0.75 * statistics[0] + 0.25 * statistics[1]
    hidden = F.linear(fed.executor.samples.x[samples], named["hidden.weight"], named["hidden.bias"])  # type: ignore[attr-defined]
    normalised = F.batch_norm(hidden, mean[:6], mean[6:12], named["norm.weight"], named["norm.bias"])
    logits = F.linear(normalised.relu(), named["output.weight"], named["output.bias"])
    expected = F.cross_entropy(logits, fed.executor.samples.y[samples])  # type: ignore[attr-defined]
    assert fed.evaluate_central(row, samples, "personal")[1] == pytest.approx(float(expected), abs=1e-12)


def test_the_global_model_is_what_all_use_or_the_series_of_that_name() -> None:
    fed = federation()
    found = {}
    for name in ("fedavg", "ditto", "local", "fedala"):
        method = methods.make(MethodSpec(name=name))
        found[name] = global_model(method, method.init(fed))
    for name, model in found.items():
        assert (model is None) == (name in ("local", "fedala"))
        if model is not None:
            assert torch.equal(model[0], fed.initial())
            assert model[1] == "model"


def test_a_loss_that_is_not_finite_stops_the_run() -> None:
    fed, method = federation().at(4), methods.make(MethodSpec(name="fedavg"))
    state = method.init(fed)
    with pytest.raises(Diverged, match="global model has a non-finite loss on the central test set before training in round 4"):
        evaluate_central(method, fed, replace(state, start=state.start * float("nan")), np.arange(3))


# -- a run ------------------------------------------------------------------------------------------------------------


def test_a_run_with_a_central_test_set(shell: Shell, images: Path) -> None:
    command: tuple[str, ...] = ("run", "-m", "fedavg", "-m", "ditto", "-d", f"folder:{images}", "--model", "logreg")
    command += ("--clients", "3", "--beta", "1", "--rounds", "5", "--eval-every", "2", "--dtype", "float64", "--quiet")
    assert shell(*command, "--central-test").code == 0
    query = "SELECT series.round, accuracy, test_loss FROM series JOIN run ON run.id = run_id WHERE method = '{}' AND name = '{}'"
    fedavg, ditto = (rows(query.format(name, "central")) for name in ("fedavg", "ditto"))
    assert [row[0] for row in fedavg] == [0, 2, 4, 5]
    assert fedavg == [pytest.approx(row) for row in ditto], "Ditto's global branch is an unchanged FedAvg"
    assert rows(query.format("ditto", "global")) != ditto
    assert all(row[1] * len(CLASSES) * TESTED == pytest.approx(round(row[1] * len(CLASSES) * TESTED)) for row in fedavg)
    assert fedavg[-1][1] > 0.6
    assert fedavg[-1][2] < fedavg[0][2]
    ((tested,),) = rows("SELECT SUM(total) FROM client_round WHERE run_id = 1 AND round = 0")
    assert len(CLASSES) * PER_CLASS / 4 <= tested <= len(CLASSES) * PER_CLASS / 4 + 3, "E1 goes on, on the clients' own quarters"
    assert shell(*command).code == 0
    table = shell("table", "accuracy").out
    heads = table.partition("Accuracy in")[0]
    assert heads.count("Dir(1)") == 2
    assert heads.count("central") == 1


@pytest.mark.parametrize("method", ["local", "fedala", "fedavg+ala"])
def test_a_method_without_a_global_model_is_refused_before_anything_runs(
    method: str, shell: Shell, images: Path, tmp_path: Path
) -> None:
    told = shell.refused(
        *("run", "-m", "fedavg", "-m", method, "-d", f"folder:{images}", "--model", "logreg"),
        *("--clients", "3", "--rounds", "1", "--beta", "1", "--central-test"),
    )
    assert f"{method} has no single global model" in told
    assert f"-m {method}" in told
    assert not (tmp_path / "pflbench.db").exists()
    store = db.connect(db.to_url(str(tmp_path / "own.db")))
    with pytest.raises(UserError, match="no single global model"):
        list(execute(spec(data.parse(f"folder:{images}", tmp_path), SCHEMES["iid"], method), store, tmp_path))
    assert rows("SELECT COUNT(*) FROM run", "own.db") == [(0,)]


def test_the_option(shell: Shell, images: Path) -> None:
    for scheme in SCHEMES:
        done = shell("run", "-m", "fedavg", "-d", "mnist", "-p", scheme, "--central-test", "--dry-run", "--json")
        assert json.loads(done.out)[0]["spec"]["partition"]["central_test"] is True
    assert "--central-test does not belong to --partition pfllib" in shell.refused(
        "run", "-m", "fedavg", "-p", f"pfllib:{images}", "--central-test"
    )
    assert "digits has no official test part" in shell.refused("run", "-m", "fedavg", "--central-test")
    shown = json.loads(shell("partition", "show", "-d", f"folder:{images}", "--clients", "3", "--central-test", "--json").out)
    assert sum(map(sum, shown[0]["train"] + shown[0]["test"])) == len(CLASSES) * PER_CLASS


def test_the_papers_value_stands_beside_it_only_as_another_protocol() -> None:
    for central_test in (True, False):
        held = Dirichlet(clients=20, beta=0.1, central_test=central_test)
        match = paper.find(spec(DataSpec(name="cifar10"), held, model="cnn").model_dump(mode="json"), RoundRule("best"))
        assert match is not None
        assert ("central test set True instead of False" in match[1]) == central_test
