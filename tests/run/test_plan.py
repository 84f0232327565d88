"""From options to specifications: the paper's defaults (methods.md 2.2, 3), and refusals in words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.vision_files import put_pfllib

from pflbench import partition
from pflbench.errors import UserError
from pflbench.methods import hyperparameters
from pflbench.run.federation_data import load_federation_data
from pflbench.run.options import RunOptions
from pflbench.run.plan import SCHEMES, plan
from pflbench.spec import DataSpec, Dirichlet, Groups, Pathological, Pfllib, RunSpec


def one(**options: object) -> RunSpec:
    (spec,) = plan(RunOptions(**{"methods": ("fedavg",), "datasets": ("mnist",), **options}))  # type: ignore[arg-type]
    return spec


def refused(**options: object) -> str:
    with pytest.raises(UserError) as caught:
        one(**options)
    assert 1 <= len(str(caught.value).splitlines()) <= 2
    return str(caught.value)


@pytest.mark.parametrize(
    ("dataset", "model", "lr", "classes_per_client"),
    [
        ("mnist", "cnn", 0.1, 2),
        ("cifar10", "cnn", 0.005, 2),
        ("cifar100", "cnn", 0.005, 10),
        ("tiny", "cnn", 0.005, 20),
        ("agnews", "fasttext", 0.1, 2),
    ],
)
def test_the_papers_protocol_is_the_default(dataset: str, model: str, lr: float, classes_per_client: int) -> None:
    spec = one(datasets=(dataset,))
    assert spec.partition == Dirichlet(clients=20, beta=0.1, seed=1, test_share=0.25)
    assert (spec.model, spec.train.lr, spec.train.rounds, spec.seed) == (model, lr, 2000, 0)
    assert (spec.train.local_epochs, spec.train.batch_size, spec.train.join_ratio) == (1, 10, 1.0)
    pathological = one(datasets=(dataset,), partition="pathological").partition
    assert pathological == Pathological(clients=20, classes_per_client=classes_per_client, seed=1)


def test_the_learning_rate_follows_the_model() -> None:
    assert one(datasets=("tiny",), model="resnet18").train.lr == 0.1
    assert one(datasets=("tiny",), model="resnet18", lr=0.02).train.lr == 0.02
    assert one(datasets=("cifar100",), model="resnet20").train.lr == 0.05
    assert one(datasets=("cifar10",), model="resnet20-gn").train.lr == 0.05


def test_every_option_reaches_the_specification() -> None:
    train = {
        "rounds": 7, "local_epochs": 2, "batch_size": 5, "lr": 0.3, "join_ratio": 0.5, "eval_every": 3,
        "evaluate": "all", "drop_last": "never", "bn_buffers": "reset", "dtype": "float64",
    }  # fmt: skip
    assert one(**train).train.model_dump().items() >= train.items()
    shared = {"clients": 6, "partition_seed": 9, "test_share": 0.5}
    made = one(partition="groups", groups=3, dominant_share=0.7, group_sizes="30,20,10", **shared).partition
    assert made == Groups(clients=6, seed=9, test_share=0.5, groups=3, dominant_share=0.7, group_sizes=(30, 20, 10))
    made = one(partition="pathological", classes_per_client=3, min_samples=4, **shared).partition
    assert made == Pathological(clients=6, seed=9, test_share=0.5, classes_per_client=3, min_samples=4)
    assert one(partition="pathological", balanced=True).partition.model_dump()["balanced"] is True
    assert one(partition="iid", iid_shares="reference").partition.model_dump()["shares"] == "reference"
    assert one(beta=0.5, min_samples=12).partition == Dirichlet(clients=20, beta=0.5, min_samples=12)


def test_an_optimizer_is_written_out_where_it_is_not_plain_sgd() -> None:
    """With PyTorch's defaults, and with nothing that says the same twice."""

    def told(**options: object) -> dict[str, object]:
        plain = one().train.model_dump()
        return {name: value for name, value in one(**options).train.model_dump().items() if plain.get(name) != value}

    assert one(optimizer="sgd", weight_decay=0.0, optimizer_state="fresh", lr_schedule="constant").key == one().key
    assert told(optimizer="momentum") == {"optimizer": "momentum", "momentum": 0.9}
    assert told(optimizer="momentum", weight_decay=0.0) == told(optimizer="momentum", momentum=0.9)
    adamw = {"optimizer": "adamw", "weight_decay": 0.01, "lr": 0.001}
    assert told(optimizer="adamw") == adamw
    assert told(optimizer="adamw", weight_decay=0.0, lr=0.2) == {**adamw, "weight_decay": 0.0, "lr": 0.2}
    kept = {"optimizer": "momentum", "momentum": 0.5, "weight_decay": 0.1, "optimizer_state": "kept"}
    assert told(**kept) == kept
    assert told(weight_decay=0.1) == {"weight_decay": 0.1}
    assert told(lr_schedule="cosine") == {"lr_schedule": "cosine"}
    step = {"lr_schedule": "step", "lr_step_every": 5, "lr_gamma": 0.1}
    assert told(lr_schedule="step", lr_step_every=5) == told(**step) == step
    for options in ({"optimizer": "adamw", "weight_decay": 0.0}, kept, step):
        spec = one(**options)
        assert RunSpec.model_validate(spec.model_dump()) == RunSpec.model_validate_json(spec.model_dump_json()) == spec


def test_a_method_with_a_step_of_its_own_refuses_optimizers() -> None:
    said = refused(methods=("fedavg", "pfedme+ala"), weight_decay=0.1)
    assert said.startswith("pFedMe does not work with weight decay: w follows theta by the gradient")
    assert "fedavg" in said.splitlines()[1]
    assert "apple" not in said.splitlines()[1]


def test_fedamps_limit_is_that_of_the_optimizer() -> None:
    """lr * lam / alpha_k = 2.5: too far for a step of SGD, not with momentum 0.9 or for AdamW."""
    far: dict[str, object] = {"methods": ("fedamp",), "lr": 2.5, "settings": ("fedamp.lam=1000",)}
    assert "cannot converge" in refused(**far)
    assert "cannot converge" in refused(**far, optimizer="momentum", momentum=0.2)
    for optimizer in ("momentum", "adamw"):
        assert one(**far, optimizer=optimizer)


def test_methods_times_datasets_times_seeds() -> None:
    specs = plan(RunOptions(methods=("fedavg", "ditto", "fedavg"), datasets=("digits", "mnist"), seeds="0-2,5"))
    assert [(s.data.name, s.seed, s.method.name) for s in specs] == [
        (data, seed, method) for data in ("digits", "mnist") for seed in (0, 1, 2, 5) for method in ("fedavg", "ditto")
    ]
    assert len({spec.key for spec in specs}) == 16
    # Methods and seeds of one setting share partition and protocol: they may stand in one cell and row.
    assert len({spec.protocol for spec in specs}) == 2
    assert {spec.partition.seed for spec in specs if not isinstance(spec.partition, Pfllib)} == {1}


def test_hyperparameters_are_complete_typed_and_set_by_method() -> None:
    specs = plan(RunOptions(methods=("fedala", "fedprox"), datasets=("mnist",), settings=("fedala.p=2", "fedprox.mu=0.5")))
    fedala, fedprox = (spec.method.hyperparameters for spec in specs)
    assert fedala["p"] == 2
    assert isinstance(fedala["p"], int)
    assert (fedala["eta"], fedala["s"]) == (1.0, 80)  # methods.md 1.14
    assert fedprox["mu"] == 0.5
    plain = plan(RunOptions(methods=("fedprox",), datasets=("mnist",)))[0]
    assert plain.method.hyperparameters["mu"] == 0.001  # methods.md 1.3
    assert plain.key != specs[1].key


def test_ala_is_plugged_into_every_method() -> None:
    asked = plan(RunOptions(methods=("ditto", "fedprox+ala"), ala=True, settings=("ditto.lam=0.5", "fedprox+ala.p=2")))
    named = plan(RunOptions(methods=("ditto+ala", "fedprox+ala"), settings=("ditto+ala.lam=0.5", "fedprox+ala.p=2")))
    assert asked == named
    assert [spec.method.name for spec in asked] == ["ditto+ala", "fedprox+ala"]
    both = {h.name: h.default for name in ("ditto", "fedala") for h in hyperparameters(name)}
    assert asked[0].method.hyperparameters == {**both, "lam": 0.5}
    assert asked[1].method.hyperparameters["p"] == 2
    with pytest.raises(UserError, match=r"fedala\+ala is not possible: FedALA is FedAvg with ALA already"):
        plan(RunOptions(methods=("fedala",), ala=True))


def test_a_preset_switches_hyperparameters_below_what_is_set() -> None:
    def drop_last(**options: object) -> object:
        return one(methods=("fedala",), **options).method.hyperparameters["drop_last"]

    assert drop_last() is False
    assert drop_last(preset="fedala2022") is True
    assert drop_last(preset="fedala2022", settings=("fedala.drop_last=false",)) is False
    assert one(preset="fedala2022") == one(), "FedAvg is the same in both"
    assert one(methods=("ditto+ala",), preset="fedala2022").method.hyperparameters["drop_last"] is True


def test_the_schemes_are_those_of_the_partitions() -> None:
    assert set(SCHEMES) == {*partition.SCHEMES, "natural", "pfllib"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"methods": ("fedvg",)}, "Did you mean 'fedavg'?"),
        ({"datasets": ("mnits",)}, "Did you mean 'mnist'?"),
        ({"model": "cn"}, "Did you mean 'cnn'?"),
        ({"partition": "dirichlett"}, "Did you mean 'dirichlet'?"),
        ({"partition": "iid:x"}, "--partition iid takes no path"),
        ({"batch_size": 0}, "--batch-size 0"),
        ({"lr": -1.0}, "--lr -1.0"),
        ({"lr": float("nan")}, "--lr nan"),
        ({"beta": float("inf")}, "--beta inf"),
        ({"clients": 0}, "--clients 0"),
        ({"test_share": 1.0}, "--test-share 1.0"),
        ({"partition_seed": -1}, "--partition-seed -1"),
        ({"partition": "iid", "iid_shares": "some"}, "--iid-shares some"),
        ({"evaluate": "none"}, "--evaluate none"),
        ({"partition": "pathological", "beta": 1.0}, "--beta does not belong to --partition pathological"),
        ({"partition": "iid", "min_samples": 3}, "It belongs to pathological and dirichlet"),
        ({"partition": "groups", "group_sizes": "3,x"}, "--group-sizes x is not possible: it must be a whole number"),
        ({"seeds": "3-1"}, "'3-1' is no seed"),
        ({"seeds": "0,,2"}, "'' is no seed"),
        ({"seeds": "0-10000000000"}, "at most 1000"),
        ({"seeds": "0-4", "seed": 1}, "exclude each other"),
        ({"settings": ("p=2",)}, "expected method.name=value"),
        ({"settings": ("fedala.p=2",)}, "fedala is not run by this command"),
        ({"settings": ("fedavgg.p=2",)}, "Did you mean 'fedavg'?"),
        ({"methods": ("fedala",), "settings": ("fedala.etaa=2",)}, "Did you mean 'eta'?"),
        ({"methods": ()}, "No method given"),
        ({"methods": ("fedvag+ala",)}, "Unknown method"),
        ({"preset": "fedala2023"}, "Did you mean 'fedala2022'?"),
        ({"optimizer": "adam"}, "--optimizer adam is not possible: it must be 'sgd', 'momentum' or 'adamw'"),
        ({"momentum": 0.5}, "--momentum goes with --optimizer momentum, but that is sgd"),
        ({"optimizer": "adamw", "momentum": 0.5}, "--momentum goes with --optimizer momentum, but that is adamw"),
        ({"optimizer": "momentum", "momentum": 0.0}, "--momentum 0.0"),
        ({"optimizer": "momentum", "momentum": 1.0}, "--momentum 1.0"),
        ({"weight_decay": -0.1}, "--weight-decay -0.1"),
        ({"optimizer_state": "kept"}, "--optimizer-state goes with --optimizer momentum or adamw, but that is sgd"),
        ({"lr_schedule": "step"}, "--lr-schedule step needs --lr-step-every"),
        ({"lr_step_every": 5}, "--lr-step-every goes with --lr-schedule step, but that is constant"),
        ({"lr_schedule": "cosine", "lr_gamma": 0.5}, "--lr-gamma goes with --lr-schedule step, but that is cosine"),
        ({"lr_schedule": "step", "lr_step_every": 0}, "--lr-step-every 0"),
    ],
)
def test_what_cannot_be_is_refused_in_words(options: dict[str, object], words: str) -> None:
    assert words in refused(**options)


@pytest.fixture
def pfllib(tmp_path: Path) -> Path:
    """A folder with images of MNIST's size."""
    return put_pfllib(tmp_path / "MNIST", clients=3, side=28, non_iid=True, partition="dir", alpha=0.1)


def test_natural_has_by_default_a_client_for_each_owner_with_enough_samples(tmp_path: Path) -> None:
    owner = np.repeat(["one", "ten", "twenty", "thirty"], [1, 10, 20, 30])
    np.savez(tmp_path / "own.npz", x=np.zeros((61, 4)), y=np.arange(61) % 2, owner=owner)
    for min_samples, clients in ((None, 3), (15, 2)):
        spec = one(datasets=(f"npz:{tmp_path}/own.npz",), partition="natural", min_samples=min_samples)
        assert spec.partition.clients == clients
        assert len(load_federation_data(spec, tmp_path).partition.train) == clients
    none = refused(datasets=(f"npz:{tmp_path}/own.npz",), partition="natural", min_samples=31)
    assert "None of 4 owners has 31 samples or more" in none


def test_a_pfllib_folder_brings_its_data_along(pfllib: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = one(datasets=(), partition=f"pfllib:{pfllib}")
    assert isinstance(spec.partition, Pfllib)
    assert (spec.data.name, spec.model, spec.train.lr) == ("mnist", "cnn", 0.1)
    assert (spec.partition.clients, spec.partition.kind, spec.partition.beta) == (3, "dirichlet", 0.1)
    monkeypatch.chdir(pfllib.parent)
    assert one(datasets=(), partition="pfllib:MNIST") == spec, "where the command was typed is no part of a run"
    assert one(datasets=("fashionmnist",), partition=f"pfllib:{pfllib}").train.lr == 0.005
    assert one(datasets=("mnist",), partition=f"pfllib:{pfllib}").data == DataSpec(name="mnist"), "its content is the folder's"
    assert "holds one dataset" in refused(datasets=("mnist", "cifar10"), partition=f"pfllib:{pfllib}")
    assert "--clients does not belong to --partition pfllib" in refused(partition=f"pfllib:{pfllib}", clients=5)
    assert "needs a folder" in refused(partition="pfllib:")
    other = pfllib.rename(pfllib.with_name("stuff"))
    assert "'stuff'" in refused(datasets=(), partition=f"pfllib:{other}")
    assert "Write -p pfllib:PATH" in refused(datasets=(f"pfllib:{other}",))
    (other / "config.json").unlink()
    assert "config.json is missing" in refused(partition=f"pfllib:{other}")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cifar10", "holds samples 1 x 28 x 28 of 4 classes; 'cifar10' has 3 x 32 x 32 of 10 classes"),
        ("digits", "'digits' has 1 x 8 x 8"),
        ("emnist:letters", "of 10 classes; 'emnist:letters' has 1 x 28 x 28 of 26 classes"),
        ("agnews", "'agnews' is text, and PFLlib's text folders are not supported"),
    ],
)
def test_a_pfllib_folder_that_contradicts_its_name_is_refused(name: str, said: str, pfllib: Path) -> None:
    """Else MNIST would be trained with another dataset's learning rate, and stand in its column."""
    if ":" in name:
        config = json.loads((pfllib / "config.json").read_text())
        (pfllib / "config.json").write_text(json.dumps({**config, "num_classes": 10}))
    with pytest.raises(UserError) as refusal:
        load_federation_data(one(datasets=(name,), partition=f"pfllib:{pfllib}"), pfllib)
    assert said in refusal.value.message


def test_labels_beyond_the_datasets_classes_are_refused_when_they_are_read(pfllib: Path, tmp_path: Path) -> None:
    """The samples of one file do not tell how many classes there are; all labels do."""
    many = np.array({"x": np.zeros((2, 1, 28, 28), np.float32), "y": np.array([0, 46])}, dtype=object)
    np.savez(pfllib / "test" / "2.npz", data=many)
    with pytest.raises(UserError, match=r"1 x 28 x 28 of 47 classes; 'mnist' has .* 10 classes"):
        load_federation_data(one(datasets=("mnist",), partition=f"pfllib:{pfllib}"), tmp_path)


def test_the_key_is_that_of_the_content(tmp_path: Path) -> None:
    """Own data have the same key wherever they lie, and another when they change."""
    x, y = np.zeros((8, 4), np.float32), np.arange(8) % 2
    for name in ("a", "b"):
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
    request = RunOptions(methods=("fedavg",), datasets=(f"npz:{tmp_path / 'a.npz'}",), clients=2, data_dir=tmp_path)
    first = plan(request)[0]
    assert first.key == plan(replace(request, datasets=(f"npz:{tmp_path / 'b.npz'}",)))[0].key
    np.savez(tmp_path / "b.npz", x=x + 1, y=y)
    assert first.key != plan(replace(request, datasets=(f"npz:{tmp_path / 'b.npz'}",)))[0].key
