"""Reports of a part of the runs: which runs are left, against SQL on the golden database; and what is refused."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from support.command import Shell
from support.report_database import add_run, spec
from support.store_samples import write_round

from pflbench.errors import UserError
from pflbench.report import looks, selection
from pflbench.report.arrangement import arrange
from pflbench.report.selection import Filters
from pflbench.report.tables import accuracy
from pflbench.store import database as db
from pflbench.store import runs, write
from pflbench.store.runs import ALL, RoundRule
from pflbench.store.write import RoundRecord

P = "json_extract(spec, '$.method.hyperparameters.p')"


@pytest.mark.parametrize(
    ("asked", "condition"),
    [
        ({"models": ["cnn"]}, "model = 'cnn'"),
        ({"models": ["ResNet-18", "logreg"]}, "model in ('resnet18', 'logreg')"),
        ({"clients": [5]}, "clients = 5"),
        ({"rounds": [2, 5], "clients": [10]}, "rounds in (2, 5) and clients = 10"),
        ({"runs": ["3", "7"]}, "id in (3, 7)"),
        ({"where": ["fedala.p=2"]}, f"method <> 'fedala' or {P} = 2"),
        ({"where": ["FedALA.p=2", "fedala.p=3"], "models": ["cnn"]}, f"model = 'cnn' and (method <> 'fedala' or {P} in (2, 3))"),
        ({"where": ["fedala.adapt=false"]}, "method <> 'fedala' or json_extract(spec, '$.method.hyperparameters.adapt') = 0"),
        ({"where": ["train.local_epochs=1", "train.local_epochs=3"]}, "json_extract(spec, '$.train.local_epochs') in (1, 3)"),
        ({"where": ["train.optimizer=sgd"], "clients": [5]}, "clients = 5"),
        ({"where": ["fedala.s=5.0"]}, "method <> 'fedala' or json_extract(spec, '$.method.hyperparameters.s') = 5"),
    ],
)  # fmt: skip
def test_the_runs_that_are_left(golden: Engine, asked: dict[str, Any], condition: str) -> None:
    with sqlite3.connect(str(golden.url.database)) as connection:
        expected = {row[0] for row in connection.execute(f"select id from run where {condition}")}
        every = connection.execute("select count(*) from run").fetchone()[0]
    assert 0 < len(expected) < every
    assert {run.id for run in runs.results(golden, Filters(**asked).among(golden), RoundRule("best"))} == expected


def test_a_run_by_its_key(golden: Engine) -> None:
    key = runs.find(golden, 4).key
    assert [run.id for run in runs.results(golden, Filters(runs=[key[:10]]).among(golden), RoundRule("best"))] == [4]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"models": ["lenet"]}, "No runs with model 'lenet'.*\nThere are: cnn, fasttext, logreg, mlp, resnet18."),
        ({"clients": [7]}, "No runs with clients '7'.*\nThere are: 10, 100, 20, 4, 5, 50."),
        ({"runs": ["9999"]}, "No run '9999'"),
        ({"where": ["p=2"]}, "expected METHOD.NAME=VALUE"),
        ({"where": ["fedala.p=9"]}, "No runs with fedala.p '9' in this database.\nThere are: 1, 2, 3."),
        ({"where": ["fedala.q=9"]}, "Unknown item of --where 'fedala.q'.*\nValid: fedala.adapt"),
        ({"where": ["train.optimizer=adamw"]}, "No runs with train.optimizer 'adamw'.*\nThere are: sgd."),
        ({"where": ["train.optimiser=adamw"]}, "Did you mean 'train.optimizer'"),
        ({"where": ["pfedme.p=9"]}, "Unknown item of --where 'pfedme.p'"),
        ({"runs": ["3"], "rounds": [2000]}, "No run fits these filters together"),
    ],
)
def test_what_no_run_has_is_refused(golden: Engine, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Filters(**asked).among(golden)


def test_a_row_names_what_differs_in_this_table_alone(tmp_path: Path) -> None:
    engine = db.connect(f"sqlite:///{tmp_path / 'results.db'}")
    usual = {"p": 1, "s": 80.0, "eta": 1.0}
    for changed in ({}, {"p": 2}, {"p": 2, "s": 5.0}):
        add_run(engine, spec("fedala", hyperparameters={**usual, **changed}), [0.9])
    add_run(engine, spec("fedavg"), [0.5])

    def rows(*where: str) -> list[str]:
        return [row.label for row in accuracy.build(engine, Filters(where=where)).rows]

    assert sorted(rows()) == ["FedALA", "FedALA (p=2)", "FedALA (p=2, s=5)", "FedAvg"]  # p=1, s=80: the paper's
    assert rows("fedala.p=2") == ["FedAvg", "FedALA (s=5)", "FedALA"]
    assert rows("fedala.s=80") == ["FedAvg", "FedALA", "FedALA (p=2)"]
    assert rows("fedala.s=5") == ["FedAvg", "FedALA"]


def test_rows_of_a_method_are_in_the_order_of_their_numbers(engine: Engine) -> None:
    for s in (100.0, 10.0, 5.0, 0.5):
        add_run(engine, spec("fedala", hyperparameters={"s": s}), [0.9])
    rows = [row.label for row in accuracy.build(engine).rows]
    assert rows == ["FedALA (s=0.5)", "FedALA (s=5)", "FedALA (s=10)", "FedALA (s=100)"]


def test_the_usual_values_have_the_method_s_own_look(engine: Engine) -> None:
    for s in (5.0, 80.0, 100.0):
        add_run(engine, spec("fedala", hyperparameters={"s": s}), [0.9])
    drawn = {row.label: row.look for row in arrange(runs.results(engine, ALL, RoundRule("best"))).rows}
    assert drawn["FedALA"] == looks.of("fedala")
    assert len(set(drawn.values())) == 3


def test_table_and_plot_take_the_same_filters(shell: Shell, tmp_path: Path) -> None:
    engine = db.connect(f"sqlite:///{tmp_path / 'pflbench.db'}")
    for rounds in (2, 3):
        for seed in range(2):
            add_run(engine, spec(seed=seed, rounds=rounds), [0.5] * (rounds + 1))
    asked = ("--rounds", "3", "--model", "cnn", "--clients", "20", "--run", "3", "--run", "4")
    table = shell("table", *asked)
    assert table.code == 0, table.err
    assert "Filtered: model cnn, clients 20, rounds 3, run 3 or 4." in table.out
    assert "rounds 3," in table.out
    plotted = shell("plot", "curves", *asked, "-o", "curves.svg")
    assert plotted.code == 0, plotted.err
    assert "runs 3, 4" in (tmp_path / "curves.caption.txt").read_text()
    assert "There are: 2, 3." in shell.refused("plot", "curves", "--rounds", "4")


def test_the_suffix_of_a_file_says_its_format(shell: Shell, tmp_path: Path) -> None:
    add_run(db.connect(f"sqlite:///{tmp_path / 'pflbench.db'}"), spec(rounds=2), [0.5, 0.5, 0.5])
    begins = {"x.txt": "\n", "x.md": "| Method", "x.tex": "%", "x.csv": "setting,", "x.json": "{", "x.CSV": "setting,"}
    for name, text in begins.items():
        assert shell("table", "-o", name).code == 0
        assert (tmp_path / name).read_text().startswith(text), name
    assert shell("table", "-o", "x.dat", "-f", "csv").code == 0
    assert "setting," in (tmp_path / "x.dat").read_text()
    for wrong, words in {
        ("-o", "y.xlsx"): "Let it end in .txt, .md, .tex, .csv, .json, or add --format.",
        ("-o", "y"): "does not say a format",
        ("-o", "y.tex", "-f", "csv"): "--format csv contradicts the name y.tex.",
        ("-o", "y.md", "--json"): "contradicts",
    }.items():
        assert words in shell.refused("table", *wrong)
    assert "Unknown figure format '.tex'" in shell.refused("plot", "curves", "-o", "y.tex")
    assert not list(tmp_path.glob("y*"))


def test_methods_with_one_title_are_told_apart_by_their_names(engine: Engine) -> None:
    """Files of one's own that were copied, title and all."""
    for name in ("fed-mix", "fed-mix-b", "fedavg"):
        run = write.create_run(
            engine, spec(name, hyperparameters={}), {"plugin": {"title": "FedMix"}} if name != "fedavg" else {}
        )
        write.update_run(engine, run, status="finished")
        write_round(engine, run, RoundRecord(round=1, accuracy=0.5))
    assert [row.label for row in Filters().select(engine).rows] == ["FedAvg", "FedMix, fed-mix", "FedMix, fed-mix-b"]


@pytest.mark.parametrize(
    "text",
    ["", "Best", "first", "mean-last", "mean-last:", "mean-last:0", "mean-last:-1", "mean-last:99999999999999999999", "last:3"],
)
def test_a_wrong_selection_names_the_valid_ones(text: str) -> None:
    with pytest.raises(UserError, match="best, val, last, mean-last:K"):
        selection.parse(text)
