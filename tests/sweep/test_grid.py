"""A grid's runs are those that `run` makes of its points, counted by hand; a file's faults are said with their place."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from pflbench.cli.progress import named
from pflbench.errors import UserError
from pflbench.plugins.methods import plugged_in
from pflbench.run.options import RunOptions
from pflbench.run.plan import plan
from pflbench.sweep.grid import RunGrid, of_run, specifications
from pflbench.sweep.study import from_command_line, read

DATA = Path("data")
STUDY = """
name: heads
method: [fedavg, fedala]
dataset: digits
partition: [dirichlet, pathological]
beta: [0.1, 1]
seeds: 0-2
rounds: 5
fedala.p: [1, 2]
exclude:
  - {method: fedala, partition: pathological}
change:
  - {if: {beta: 1}, to: {rounds: 7}}
include:
  - {method: ditto}
"""
WORDED = """
from typing import Literal

from pflbench.methods.base import hyper, method
from pflbench.methods.fedavg import FedAvg


@method
class Worded(FedAvg):
    name = "worded"
    title = "Worded"
    words: str = hyper("none", "Any text.")
    mode: Literal["one", "two"] = hyper("one", "One of two.")
"""


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "heads.yaml"
    path.write_text(STUDY)
    return read(path)


def described(spec):
    p = spec.method.hyperparameters.get("p")
    return spec.method.name, p, spec.partition.label, spec.train.rounds


def test_every_combination_that_has_a_meaning_is_one_run(study):
    found = specifications(study.grid, DATA)
    settings = [
        ("fedavg", None, "Dir(0.1)", 5),
        ("fedavg", None, "Dir(1)", 7),
        ("fedavg", None, "Pathological(2)", 5),
        ("fedala", 1, "Dir(0.1)", 5),
        ("fedala", 2, "Dir(0.1)", 5),
        ("fedala", 1, "Dir(1)", 7),
        ("fedala", 2, "Dir(1)", 7),
        ("ditto", None, "Dir(0.1)", 5),
    ]
    assert [(described(spec), spec.seed) for spec in found] == [(one, seed) for seed in range(3) for one in settings]
    assert study.name == "heads"

    together = specifications(study.grid, DATA, "setting")
    assert [spec.seed for spec in together] == [0, 1, 2] * 8
    keys = {spec.key for spec in found}
    assert {spec.key for spec in together} == keys
    typed = plan(RunOptions(("fedala",), ("digits",), DATA, settings=("fedala.p=2",), seeds="0-2", beta=1.0, rounds=7))
    assert {spec.key for spec in typed} < keys

    names = list(named(found).values())
    assert len(set(names)) == len(names) == 24
    assert names[0] == "fedavg digits Dir(0.1) seed 0"
    assert names[3] == "fedala (p=1) digits Dir(0.1) seed 0", "what differs tells them apart"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("method: [fedavg, fedala]\nfedala.p: 2\ninclude: [{method: ditto}]",
         ["fedavg Dir(0.1)", "fedala Dir(0.1)", "ditto Dir(0.1)"]),
        ("method: fedavg\nbeta: 0.1\ninclude: [{method: ditto, partition: iid}]", ["fedavg Dir(0.1)", "ditto IID"]),
        ("method: [fedavg, fedala]\nbeta: [0.1, 1]\nchange: [{if: {method: fedala}, to: {partition: iid}}]",
         ["fedavg Dir(0.1)", "fedavg Dir(1)", "fedala IID"]),
        ("method: fedavg\npartition: [iid, dirichlet]\nchange: [{if: {method: fedavg}, to: {beta: 5}}]",
         ["fedavg IID", "fedavg Dir(5)"]),
        ("method: fedavg\noptimizer: [sgd, momentum]\nmomentum: 0.5\nchange: [{if: {method: fedavg}, to: {optimizer: sgd}}]",
         ["fedavg Dir(0.1)"]),
    ],
)  # fmt: skip
def test_options_that_do_not_apply_are_ignored_also_after_a_change_and_in_an_inclusion(tmp_path, text, wanted):
    path = tmp_path / "study.yaml"
    path.write_text(f"dataset: digits\n{text}\n")
    found = specifications(read(path).grid, DATA)
    assert [f"{spec.method.name} {spec.partition.label}" for spec in found] == wanted


def test_the_command_line_says_the_same(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text("method: [fedavg, fedala]\nbeta: [0.1, 1]\nseeds: [0, 2]\nfedala.p: [1, 2]\nlocal-epochs: 2\n")
    options = {"method": ["fedavg", "fedala"], "local-epochs": 2}
    with_grid = from_command_line(["beta=0.1,1", "fedala.p=1,2"], {**options, "seeds": "0,2"}, None)
    with_set = from_command_line(["beta=0.1,1", "seeds=0,2"], options, None, ["fedala.p=1,2"])
    keys = [[spec.key for spec in specifications(study.grid, DATA)] for study in (read(path), with_grid, with_set)]
    assert keys[0] == keys[1] == keys[2]
    assert len(keys[0]) == 2 * (2 + 4)


def test_a_hyperparameter_goes_with_the_method_that_ala_is_plugged_into():
    found = specifications(RunGrid({"method": ("ditto", "fedavg"), "ala": (True,), "ditto.lam": (0.5, 1.0)}), DATA)
    assert [spec.method.name for spec in found] == ["ditto+ala", "ditto+ala", "fedavg+ala"]


def test_a_list_that_is_set_is_a_run_for_each_value_of_its_own_method(tmp_path):
    np.savez(tmp_path / "own.npz", x=np.zeros((40, 4), np.float32), y=np.arange(40) % 2)
    data = ("digits", f"npz:{tmp_path / 'own.npz'}")

    def keys_of(method, dataset, seed, *settings):
        return [spec.key for spec in plan(RunOptions((method,), (dataset,), clients=2, seed=seed, settings=settings))]

    settings = ("fedala.p=1, 2", "ditto.lam=0.5", "fedala.eta=0.5,1,0.50")
    found = of_run(RunOptions(("fedavg", "fedala", "ditto"), data, clients=2, seeds="1,0", settings=settings))
    by_hand = [
        key
        for dataset in data
        for seed in (1, 0)
        for key in (
            *keys_of("fedavg", dataset, seed),
            *(keys_of("fedala", dataset, seed, f"fedala.p={p}", f"fedala.eta={eta}")[0] for p in (1, 2) for eta in (0.5, 1)),
            *keys_of("ditto", dataset, seed, "ditto.lam=0.5"),
        )
    ]
    assert [spec.key for spec in found] == by_hand


def test_without_a_list_the_runs_are_those_of_the_plan():
    for wish in (
        {"methods": ("fedavg", "ditto", "fedavg"), "seeds": "0-2,5"},
        {"methods": ("ditto", "fedprox+ala"), "ala": True, "settings": ("ditto.lam=0.5", "fedprox+ala.p=2"), "beta": 1.0},
        {"methods": ("per-fedavg", "local"), "preset": "fedala2022", "partition": "groups", "group_sizes": "40,40,40,40,40"},
    ):
        assert of_run(RunOptions(**wish)) == list({spec.key: spec for spec in plan(RunOptions(**wish))}.values())


def test_text_may_have_commas(tmp_path):
    path = tmp_path / "worded.py"
    path.write_text(WORDED)
    with plugged_in([path]):
        found = of_run(RunOptions(("worded",), settings=("worded.words=a,b", "worded.mode=one,two")))
    assert [(spec.method.hyperparameters["words"], spec.method.hyperparameters["mode"]) for spec in found] == [
        ("a,b", "one"), ("a,b", "two"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("fedala.p",), "--set fedala.p: expected method.name=value."),
        (("fedalla.p=1,2",), "Unknown method 'fedalla'. Did you mean 'fedala'?"),
        (("fedala.p=1,2", "fedala.p=4"), "--set gives fedala.p twice."),
        (("ditto.lam=1,2",), "ditto.lam: ditto is not among the methods that are run."),
        (("fedala.p=1,x",), "fedala.p = 'x' is not possible: it must be a whole number."),
        (("fedala.p=1,",), "fedala.p = '' is not possible"),
        (("fedala.q=1,2",), "Unknown hyperparameter of fedala 'q'."),
    ],
)
def test_what_is_wrong_with_a_list_is_said(settings, said):
    with pytest.raises(UserError) as refused:
        of_run(RunOptions(("fedala",), settings=settings))
    assert said in refused.value.message
    assert " = " not in said or "(at " not in refused.value.message, "the hyperparameter is named already"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("betta: 1\nmethod: [fedavg]", "line 1, column 8: Unknown option of a sweep 'betta'. Did you mean 'beta'?"),
        ("method: [fedavg]\nbeta: x", "line 2, column 7: beta: 'x' is not possible: it must be a number."),
        ("method: fedavg\nbeta: [0.1\n", "line 3, column 1: expected ',' or ']'"),
        ("method: fedavg\nbeta:\n", "line 2, column 6: beta has no value."),
        ("method: fedavg\nrounds: yes", "line 2, column 9: rounds: 'True' is not possible: it must be a whole number."),
        ("method: fedala\nfedala.p: [[1, 2]]", "line 2, column 11: fedala.p has a value that is neither a number nor a word."),
        ("method: fedala\nfedala.p: {1: 2}", "line 2, column 11: fedala.p has a value that is neither a number nor a word."),
        ("method: fedavg\nmethod: ditto", "line 2, column 1: method is given twice."),
        ("- fedavg", "line 1, column 1: Expected names and values for the file."),
        ("", "is empty."),
        ("name: a b\nmethod: fedavg", "line 1, column 7: 'a b' cannot be the name of a sweep."),
        ("method: fedavg\nchange:\n- {if: {method: fedavg}}", "line 3, column 3: A change has the parts if and to."),
        ("method: fedavg\nchange:\n- {if: {method: fedavg}, to: {rounds: [1, 2]}}", "An option has several values in `to`."),
        (
            "method: fedavg\nexclude:\n- {method: ditto}",
            "line 3, column 3: This asks for method ditto, which the sweep does not have.",
        ),
        ("method: fedavg\nexclude: {method: fedavg}", "line 2, column 10: A list is expected here."),
        ("method: fedavg\nrounds: !!python/object/apply:os.system [id]", "line 2, column 9: This is no value."),
        ("method: fedavg\nrounds: 2020-13-45", "line 2, column 9: This is no value."),
        ("method: fedavg\nrounds: 2020-01-05", "line 2, column 9: rounds: datetime.date(2020, 1, 5) is not possible"),
        ("method: fedavg\nrounds: {[1]: 2}", "line 2, column 9: This is no value."),
    ],
)
def test_a_fault_of_a_file_is_said_with_its_place(tmp_path, text, said):
    path = tmp_path / "faulty.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as refused:
        read(path)
    assert said in refused.value.message
    assert str(path) in refused.value.message


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({"method": ("fedavvg",)}, "Unknown method 'fedavvg'. Did you mean 'fedavg'?"),
        ({"method": ("fedavg",), "partition": ("iid",), "beta": (1.0,)}, "goes with partition dirichlet"),
        ({"method": ("fedavg",), "beta": (-1.0,)}, "--beta -1.0 is not possible: it must be above 0."),
        ({"method": ("fedavg", "local"), "beta": (0.1, -1.0), "rounds": (3,)}, "it must be above 0. (at beta -1.0)"),
    ],
)
def test_what_run_would_refuse_is_refused(axes, said):
    with pytest.raises(UserError) as refused:
        specifications(RunGrid(axes), DATA)
    assert said in refused.value.message


HUNDRED = f"[{', '.join(map(str, range(1, 101)))}]"
MILLION = f"method: fedavg\nbeta: {HUNDRED}\nlr: {HUNDRED}\nrounds: {HUNDRED}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{MILLION}clients: [2, 3, 4, 5]", "more than 50,000 combinations"),
        (f"{MILLION}exclude: [{{method: fedavg}}]", "more than 50,000 combinations"),
        ("method: fedavg\nexclude: [{method: fedavg}]", "no run"),
    ],
)
def test_too_many_runs_are_refused_at_once_and_none(tmp_path, text, said):
    """Four million runs; a million that are excluded."""
    path = tmp_path / "large.yaml"
    path.write_text(text)
    begun = time.process_time()
    with pytest.raises(UserError, match=said):
        specifications(read(path).grid, DATA)
    assert time.process_time() - begun < 2


def test_many_grids_and_seeds_are_counted_together(monkeypatch):
    monkeypatch.setattr("pflbench.sweep.grid.MOST", 20)
    one = RunGrid({"method": ("fedavg",), "dataset": ("digits",), "seeds": ("0-8",)})
    with pytest.raises(UserError, match="more than 20 combinations"):
        specifications(RunGrid({**one.axes, "rounds": (1, 2, 3)}), DATA)
    assert len(specifications(RunGrid({**one.axes, "rounds": (1, 2)}), DATA)) == 18
    with pytest.raises(UserError, match="more than 20 combinations"):
        list(RunGrid(one.axes, also=(one,) * 20).points())


def grid(**axes):
    return RunGrid({name.replace("_", "-"): values for name, values in {"method": ("fedavg",), **axes}.items()})


def test_what_belongs_to_one_optimizer_is_left_out_beside_the_others():
    of = {"momentum": (0.5, 0.9), "optimizer_state": ("fresh", "kept"), "lr": (0.01,)}
    axes = grid(optimizer=("sgd", "momentum", "adamw"), lr_schedule=("constant", "step"), lr_step_every=(2, 3), **of)
    found = specifications(axes, DATA)
    assert len(found) == (1 + 2 * 2 + 2) * (1 + 2)
    every = {(one.train.optimizer, one.train.momentum) for one in found}
    assert every == {("sgd", None), ("momentum", 0.5), ("momentum", 0.9), ("adamw", None)}
    for axes, said in (
        (grid(optimizer=("sgd", "adamw"), momentum=(0.5,)), "momentum goes with optimizer momentum, which the sweep does not"),
        (grid(lr_gamma=(0.5,)), "lr-gamma goes with lr-schedule step"),
        (grid(method=("fedavg", "pfedme"), optimizer=("sgd", "adamw")), r"pFedMe does not work with .*\(at optimizer adamw\)"),
    ):
        with pytest.raises(UserError, match=said):
            specifications(axes, DATA)
