"""Baselines: the majority class; and the note on those that were not run, what it names, and that its command makes such runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from support.printed_commands import of_command
from support.report_database import add_partition, add_run, spec

from pflbench import methods
from pflbench.report import baselines
from pflbench.report.selection import Filters
from pflbench.report.tables.accuracy import build
from pflbench.run.options import RunOptions
from pflbench.run.plan import plan


def add(engine: Engine, *names: str, **of: Any) -> None:
    for name in names:
        add_run(engine, spec(name, hyperparameters={}, **of), [0.5])


def notes(engine: Engine, filters: Filters = Filters(), **options: Any) -> list[str]:
    return [note for note in build(engine, filters, **options).notes if note.startswith("Not run beside")]


def test_which_methods_count() -> None:
    fine_tuned = {name for name in methods.METHODS if methods.card(name).fine_tuned}
    assert fine_tuned == {"fedavg-ft", "fedavg-c", "fedprox-c", "fedbabu"}
    others = {"local", "fedavg", "fedprox", "elastic", "feddeper", "scaffold", "moon", "feddyn"} | fine_tuned - {"fedbabu"}
    assert {name for name in methods.METHODS if not baselines.is_personalized(name)} == others
    assert baselines.is_personalized("my-method"), "its category is not stored"


def test_the_note_names_what_is_missing_and_the_command(engine: Engine) -> None:
    add(engine, "fedavg", "fedprox", dataset="cifar10")
    assert notes(engine) == [], "no personalized method"
    add(engine, "ditto")
    add_run(engine, spec("ditto", 1, hyperparameters={}), [0.5])
    command = "pflbench run -m local -m fedavg-ft -d mnist --model cnn --clients 20 --beta 0.1 --rounds 2000 --lr 0.1 --seeds 0-1"
    assert notes(engine) == [
        f"Not run beside the personalized methods: Local and a fine-tuned global model (MNIST, Dir(0.1)). Next: `{command}`."
    ]
    add(engine, "local")
    (note,) = notes(engine)
    assert note.startswith("Not run beside the personalized methods: a fine-tuned global model (MNIST, Dir(0.1)). ")
    add(engine, "fedala", dataset="cifar10")
    (note,) = notes(engine)
    assert "a fine-tuned global model (MNIST, Dir(0.1)); Local and a fine-tuned global model (Cifar10, Dir(0.1))." in note
    add(engine, "fedbabu")
    add(engine, "local", "fedprox-c", dataset="cifar10")
    assert notes(engine) == notes(engine, Filters(methods=["ditto"])) == [], "what a filter hides is not missing"
    assert notes(engine, Filters(runs=["4"])) == [], "nor is what --run leaves out"


def test_local_is_not_asked_for_on_a_central_test_set(engine: Engine) -> None:
    """It has no global model that could be tested there: its command would be refused."""
    add(engine, "ditto", partition={"scheme": "iid", "clients": 20, "central_test": True})
    (note,) = notes(engine)
    assert "personalized methods: a fine-tuned global model" in note
    assert "-m local" not in note


# Test samples (3, 0), (1, 2), (0, 3) by client and class: client 1 predicts class 1 and client 2 class 1.
@pytest.mark.parametrize(("of", "expected"), [({}, 100 * 8 / 9), ({"new_clients": 1}, 100 * 5 / 6)])
def test_the_majority_class_is_each_clients_own_among_those_that_train(
    engine: Engine, of: dict[str, Any], expected: float
) -> None:
    partition = add_partition(engine, counts=((9, 0), (3, 6), (0, 9)))
    add_run(engine, spec(**of), [0.5], partition=partition)
    assert [column.majority for column in build(engine).columns] == [pytest.approx(expected)]


def test_a_central_test_set_and_other_measures_have_no_majority_class(engine: Engine) -> None:
    central = {"scheme": "dirichlet", "beta": 0.1, "clients": 20, "central_test": True}
    add_run(engine, spec(partition=central), [0.5], partition=add_partition(engine))
    add_run(engine, spec(), [0.5])
    table = build(engine)
    assert [column.majority for column in table.columns] == [None, None], "nor has a run without a stored partition"
    assert table.grid().labels == ("FedAvg",)


# Whatever decides a setting; the data are the embedded digits, so that the partition is known.
SETTINGS = [
    {},
    {"partition": "iid", "iid_shares": "reference", "partition_seed": 4, "test_share": 0.5, "model": "logreg"},
    {"partition": "pathological", "classes_per_client": 3, "balanced": True, "clients": 7, "central_test": True},
    {"partition": "groups", "group_sizes": "2,4,4", "groups": 3, "dominant_share": 0.5, "clients": 10},
    {"beta": 0.3, "min_samples": 7, "optimizer": "momentum", "optimizer_state": "kept", "join_ratio": 0.5, "eval_every": 3},
    {"optimizer": "adamw", "lr": 0.002, "lr_schedule": "step", "lr_step_every": 5, "join_ratio": 0.5, "evaluate": "all"},
    {
        "weight_decay": 0.001,
        "lr_schedule": "cosine",
        "dtype": "float64",
        "drop_last": "never",
        "val_share": 0.2,
        "eval_repeats": 3,
    },
]


@pytest.mark.parametrize("options", SETTINGS, ids=lambda options: ",".join(options) or "defaults")
def test_the_command_makes_runs_of_the_same_setting(options: dict[str, Any]) -> None:
    for seeds, said in (((0,), ""), ((3,), " --seed 3"), ((0, 1, 2), " --seeds 0-2"), ((1, 4), " --seeds 1,4")):
        given = [one for seed in seeds for one in plan(RunOptions(("local",), seed=seed, **options))]
        line = baselines.command_for(["local"], given[0].model_dump(mode="json"), seeds)
        assert line.endswith(said)
        assert [one.key for one in of_command(line)] == [one.key for one in given], line


def test_data_and_models_of_the_users_are_named_as_they_were_typed(tmp_path: Path) -> None:
    stored = spec().model_dump(mode="json")
    stored["data"] = {"name": "folder", "variant": None, "path": "/my data/images", "content": "a" * 64}
    stored |= {"model": "net", "own_model": {"path": "/code/nets.py", "content": "b" * 64}}
    line = baselines.command_for(["local"], stored, [0])
    assert "-d 'folder:/my data/images' --model /code/nets.py:net " in line
    stored["partition"] = {
        "scheme": "pfllib",
        "path": "/pfl/MNIST",
        "content": "c" * 64,
        "clients": 20,
        "kind": "dirichlet",
        "beta": 0.1,
    }
    stored["data"] = {"name": "agnews", "variant": "test", "path": None, "content": "a" * 64}
    assert "-d agnews:test --model /code/nets.py:net --partition pfllib:/pfl/MNIST --rounds" in (
        baselines.command_for(["local"], stored, [0]).replace(" -p ", " --partition ")
    )
