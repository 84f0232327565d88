"""A grid's runs are those that `run` makes of its points, counted by hand; a file's faults are said with their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from pflbench.cli.progress import named
from pflbench.errors import UserError
from pflbench.run.plan import Wish, plan
from pflbench.sweep.grid import RunGrid, specifications
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


def test_a_run_of_a_grid_is_the_run_of_the_same_command(study):
    keys = {spec.key for spec in specifications(study.grid, DATA)}
    same = plan(Wish(("fedala",), ("digits",), DATA, settings=("fedala.p=2",), seeds="0-2", beta=1.0, rounds=7))
    assert {spec.key for spec in same} < keys


def test_all_seeds_of_a_setting_can_come_together(study):
    found = specifications(study.grid, DATA, "setting")
    assert [spec.seed for spec in found] == [0, 1, 2] * 8
    assert {spec.key for spec in found} == {spec.key for spec in specifications(study.grid, DATA)}


def test_the_command_line_says_the_same(study, tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(
        "method: [fedavg, fedala]\ndataset: digits\nbeta: [0.1, 1]\nseeds: [0, 2]\nfedala.p: [1, 2]\nlocal-epochs: 2\n"
    )
    typed = from_command_line(
        ["beta=0.1,1", "fedala.p=1,2"],
        {"method": ["fedavg", "fedala"], "dataset": ["digits"], "seeds": "0,2", "local-epochs": 2},
        None,
    )
    keys = [[spec.key for spec in specifications(grid, DATA)] for grid in (read(path).grid, typed.grid)]
    assert keys[0] == keys[1]
    assert len(keys[0]) == 2 * (2 + 4)


def test_points_that_come_to_the_same_are_one_run():
    twice = RunGrid({"method": ("fedavg",)}, also=(RunGrid({"method": ("fedavg",), "dataset": ("digits",)}),))
    assert len(specifications(twice, DATA)) == 1


def test_a_hyperparameter_goes_with_the_method_that_ala_is_plugged_into():
    found = specifications(RunGrid({"method": ("ditto", "fedavg"), "ala": (True,), "ditto.lam": (0.5, 1.0)}), DATA)
    assert [spec.method.name for spec in found] == ["ditto+ala", "ditto+ala", "fedavg+ala"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("betta: 1\nmethod: [fedavg]", "line 1, column 8: Unknown option of a sweep 'betta'. Did you mean 'beta'?"),
        ("method: [fedavg]\nbeta: x", "line 2, column 7: beta: 'x' is not possible: it must be a number."),
        ("method: fedavg\nbeta: [0.1\n", "line 3, column 1: expected ',' or ']'"),
        ("method: fedavg\nbeta:\n", "line 2, column 6: beta has no value."),
        ("method: fedavg\nmethod: ditto", "line 2, column 1: method is given twice."),
        ("- fedavg", "line 1, column 1: Expected names and values for the file."),
        ("rounds: 3", "names no method."),
        ("", "is empty."),
        ("name: a b\nmethod: fedavg", "line 1, column 7: 'a b' cannot be the name of a sweep."),
        ("method: fedavg\nchange:\n- {if: {method: fedavg}}", "line 3, column 3: A change has two parts."),
        ("method: fedavg\nchange:\n- {when: {method: fedavg}, to: {rounds: 3}}", "Unknown part of a change 'when'."),
        ("method: fedavg\nchange:\n- {if: {method: fedavg}, to: {rounds: [1, 2]}}", "rounds has 2 values in `to`."),
        (
            "method: fedavg\nexclude:\n- {method: ditto}",
            "line 3, column 3: This asks for method ditto, which the sweep does not have.",
        ),
        ("method: fedavg\nexclude: {method: fedavg}", "line 2, column 10: A list is expected here."),
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
        ({"method": ("fedavvg",)}, "Unknown method 'fedavvg'. Did you mean 'fedavg'? (at method fedavvg)"),
        ({"method": ("fedavg",), "fedala.p": (1,)}, "fedala is not among the methods of the sweep."),
        ({"method": ("fedala",), "fedala.q": (1,)}, "Unknown hyperparameter of fedala 'q'."),
        ({"method": ("fedavg",), "partition": ("iid",), "beta": (1.0,)}, "belongs to the partition dirichlet"),
        ({"method": ("fedavg",), "beta": (-1.0,)}, "--beta -1.0 is not possible: it must be above 0."),
    ],
)
def test_what_run_would_refuse_is_refused(axes, said):
    with pytest.raises(UserError) as refused:
        specifications(RunGrid(axes), DATA)
    assert said in refused.value.message


def test_a_grid_without_a_run_is_refused(tmp_path):
    path = tmp_path / "none.yaml"
    path.write_text("method: fedavg\nexclude:\n- {method: fedavg}")
    with pytest.raises(UserError, match="no run"):
        specifications(read(path).grid, DATA)


def test_a_file_that_is_not_there_or_no_text(tmp_path):
    with pytest.raises(UserError, match="There is no file"):
        read(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"method: \xff")
    with pytest.raises(UserError, match="no text in UTF-8"):
        read(tmp_path / "bytes.yaml")


def test_runs_are_told_apart_by_what_differs(study):
    names = named(specifications(study.grid, DATA))
    assert len(set(names)) == len(names) == 24
    assert names[3] == "fedala (p=1) digits Dir(0.1) seed 0"
    assert names[0] == "fedavg digits Dir(0.1) seed 0"
