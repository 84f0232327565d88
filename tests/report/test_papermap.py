"""The papers' tables and figures by their names: what each of them needs, and where they are listed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import Engine
from support.command import ROOT, Shell
from support.report_database import add_run
from support.store_samples import write_round

from pflbench.errors import UserError
from pflbench.partition import make
from pflbench.report import papermap
from pflbench.report.declared import PLOTS, TABLES
from pflbench.reproduce.goal import Wanted, goals
from pflbench.store import database as db
from pflbench.store.write import RoundRecord


def wanted(name: str, scale: str = "full") -> list[Wanted]:
    return [one for goal in goals(name, scale) for one in goal.wanted(Path("data"))]


def count(name: str) -> int:
    return len({one.spec.key for one in wanted(name)})


@pytest.fixture
def engine(shell: Shell, new_database: Path) -> Engine:
    return db.connect(db.to_url(shutil.copy(new_database, "pflbench.db")))


def test_a_table_does_not_need_what_only_the_figure_needs() -> None:
    """14 methods x 5 seeds, in 3 settings of Table 4; the figure has two more, of Table 2."""
    assert count("table:heterogeneity") == 14 * 5 * 3
    assert count("plot:heterogeneity") == count("heterogeneity") == 14 * 5 * 5
    assert count("table:scalability") == 14 * 5 * 2
    assert count("plot:scalability") == count("scalability") == 14 * 5 * 4
    # 9 methods with ALA and as many without, and FedALA, on two datasets.
    assert count("table4") == 14 * 5 * 3 + 14 * 5 * 2 + 5 * 19 * 2
    assert [goal.figure for goal in goals("table4")] == [None] * 3


def test_a_number_is_that_part_of_the_paper() -> None:
    labels = {(one.spec.data.label, one.spec.partition.label) for one in wanted("table2")}
    assert ("mnist", "Pathological(2)") in labels
    assert ("mnist", "Dir(0.1)") not in labels, "that is Table 7"
    assert len(wanted("table2")) == 14 * 5 * 8
    seventh = {(one.spec.data.label, one.spec.partition.clients) for one in wanted("table7")}
    assert seventh == {("mnist", 20), ("cifar100", 100)}
    assert {one.spec.data.label for one in goals("figure9")[0].planned(Path("data"))} == {"cifar100"}
    for name in ("figure4", "fig4", "Fig. 4", "Figure 4", "FIG 4"):
        assert papermap.resolve(name) == papermap.resolve("plot:trajectory")
    for name in ("table1", "Table 1"):
        assert papermap.resolve(name) == (papermap.Part("table", "hyperparameters"),)


@pytest.mark.parametrize("name", ["table8", "figure2", "fig 10", "table:curves", "plot:ablation", "plot:", "tabel4"])
def test_what_no_paper_has_is_refused(name: str) -> None:
    with pytest.raises(UserError) as refused:
        papermap.resolve(name)
    assert refused.value.hint


def test_every_exhibit_is_one_of_ours_and_none_is_forgotten() -> None:
    for one in papermap.EXHIBITS:
        for part in one.parts:
            assert part.name in (TABLES if part.kind == "table" else PLOTS)
        assert papermap.resolve(one.command_name)
    numbers = [one.number for one in papermap.EXHIBITS if one.paper == papermap.FEDALA]
    assert numbers == [*(f"Table {k}" for k in range(1, 8)), *(f"Figure {k}" for k in range(3, 10))]


def test_the_docs_and_the_help_show_the_map(shell: Shell) -> None:
    page = (ROOT / "docs" / "tables-and-figures.md").read_text(encoding="utf-8")
    shown = page.partition("<!-- paper map -->\n")[2].partition("\n<!-- end of the paper map -->")[0]
    rows = [f"| {one.title} | {one.shows} | `{one.command}` |" for one in papermap.EXHIBITS]
    assert shown.splitlines() == ["| in the paper | shows | made by |", "| --- | --- | --- |", *rows]
    told = " ".join(shell("reproduce", "--help").out.split())
    for one in papermap.EXHIBITS:
        assert f"{one.title}: {one.shows}: {one.command_name}" in told


def test_the_list_tells_runs_time_and_state(engine: Engine, shell: Shell) -> None:
    """Of Figure 4 one of two runs is there: its seconds tell what FedALA's 20 rounds take, by the ratio of Table 3."""
    fedavg, _ = wanted("figure4", "quick")
    kept = {"artifacts": {"trajectory_4": np.zeros((2, 3), np.float32)}}
    run = add_run(engine, fedavg.spec, [0.1] * 14, seconds=3.0)
    for t in range(14, 21):
        write_round(engine, run, RoundRecord(round=t, accuracy=0.5, seconds_update=3.0, seconds_evaluate=5.0, **kept))
    (need,) = wanted("figure5", "quick")
    add_run(engine, need.spec, [0.1, 0.2], participants=20)
    listed = json.loads(shell("reproduce", "--scale", "quick", "--json").out)
    found = {(one["paper"], one["number"]): one for one in listed}
    assert len(listed) == len(papermap.EXHIBITS)
    fourth = found["FedALA", "Figure 4"]
    assert (fourth["there"], fourth["needed"], fourth["state"]) == (1, 2, "begun")
    assert fourth["unknown"] + (fourth["seconds"] > 0) == 1
    assert found["FedALA", "Figure 5"]["there"] == 0, "it did not keep what the figure shows"
    assert found["FedALA", "Figure 7"]["state"] == "needs no run"
    assert found["FedALA", "Table 4"]["needed"] == count("table4") // 5
    assert found["FedALA", "Table 4"]["command"] == "pflbench reproduce table4 --scale quick"


def test_several_tables_are_made_one_after_another(shell: Shell) -> None:
    done = shell("reproduce", "table7", "--scale", "smoke", "-m", "fedavg", "-q")
    assert done.code == 0, done
    assert done.out.count("Scale smoke") == 2
    assert done.out.count("join ratio 0.5") == 1
    assert "table7' is 2 tables: accuracy" in shell.refused("reproduce", "table7", "--json", "--scale", "smoke")
    dry = json.loads(shell("reproduce", "table7", "--scale", "smoke", "-m", "fedavg", "--dry-run", "--json").out)
    assert [one["name"] for one in dry] == ["accuracy", "participation"]


def test_where_one_of_several_cannot_be_made_the_others_are(engine: Engine, shell: Shell) -> None:
    for one in wanted("table:heterogeneity"):
        if one.spec.method.name == "fedavg":
            add_run(engine, one.spec, [0.1, 0.2])
    done = shell("reproduce", "table4", "-m", "fedavg", "-q")
    assert done.code == 2
    assert "20.00" in done.out
    assert "Nothing of 'scalability' can be run here" in done.err


def test_figures_of_data_need_no_run(shell: Shell) -> None:
    done = shell("reproduce", "figure8", "--scale", "smoke")
    assert (done.code, done.out) == (0, "figure8-smoke.png\n"), done
    assert Path("figure8-smoke.png").stat().st_size > 5000
    assert not Path("pflbench.db").exists(), "nothing was run"
    assert "pflbench data download tiny" in shell.refused("reproduce", "figure6", "-q")


def test_fedamps_comparison_needs_its_three_partitions() -> None:
    """Four datasets of the review, three partitions, six methods; at scale smoke the digits stand in for all four."""
    made = wanted("partitions")
    assert len(made) == 4 * 3 * 6 * 5
    assert {one.spec.partition.label for one in made} == {"IID", "Pathological(2)", "Groups(5)"}
    smoke = wanted("partitions", "smoke")
    places = {(one.spec.partition.label, one.spec.partition.clients) for one in smoke}
    assert places == {("IID", 5), ("Pathological(2)", 5), ("Groups(5)", 10)}
    for name in ("emnist", "EMNIST (byclass)", "emnist:byclass"):
        (goal,) = goals("partitions", datasets=[name])
        assert len(goal.wanted(Path("data"))) == 3 * 6 * 5


def test_the_poster_s_figure_is_around_a_cell_of_its_table() -> None:
    figure = wanted("plot:elastic")
    table = {one.spec.key for one in wanted("table:elastic") if one.spec.data.label == "mnist"}
    assert table < {one.spec.key for one in figure}
    settings = {(s.partition.classes_per_client, s.train.join_ratio, s.train.local_epochs) for s in (one.spec for one in figure)}  # type: ignore[union-attr]
    assert settings == {(2, 0.1, 1), (5, 0.1, 1), (10, 0.1, 1), (2, 0.01, 1), (2, 1.0, 1), (2, 0.1, 5), (2, 0.1, 10)}
    assert len(figure) == 7 * 2 * 5
    both = wanted("elastic")
    assert {one.spec.key for one in both if one.tabled} == {one.spec.key for one in wanted("table:elastic")}


def test_the_poster_s_balanced_row_is_run_balanced() -> None:
    """Its heads: "Balanced data across clients" above CIFAR-100 alone."""
    by_data = {one.spec.data.label: one for one in wanted("elastic")}
    assert {name for name, one in by_data.items() if getattr(one.spec.partition, "balanced", False)} == {"cifar100"}
    assert " --balanced " in by_data["cifar100"].command
    partition = by_data["cifar100"].spec.partition
    assert partition.scheme == "pathological"
    held = make(partition, np.repeat(np.arange(100), 500), 100)
    assert {len(a) + len(b) for a, b in zip(held.train, held.test, strict=True)} == {100}


def test_table_and_plot_take_the_paper_s_numbers(engine: Engine, shell: Shell) -> None:
    """table4 is three tables: of what is there, and exit code 2 for the rest, as `reproduce` does."""
    for one in wanted("table:heterogeneity"):
        if one.spec.method.name == "fedavg":
            add_run(engine, one.spec, [0.1, 0.2])
    done = shell("table", "table4")
    assert done.code == 2
    assert done.out == shell("table", "heterogeneity").out
    assert "reproduce table:scalability --scale smoke" in done.err
    assert "reproduce applicability --scale smoke" in done.err
    for one in wanted("table:scalability"):
        if one.spec.method.name == "fedavg":
            add_run(engine, one.spec, [0.1, 0.3])
    both = "\n".join(shell("table", name).out for name in ("heterogeneity", "scalability"))
    assert shell("table", "Table 4").out == both
    only = shell("table", "table4", "-d", "tiny")
    assert (only.code, only.out) == (2, shell("table", "heterogeneity", "-d", "tiny").out), "applicability has it, too"
    assert "'table4' is 3 tables: table:heterogeneity, table:scalability, applicability" in shell.refused(
        "table", "table4", "-o", "x.tex"
    )
    assert "3 tables" in shell.refused("table", "table4", "--json")
    assert shell("table", "table:heterogeneity").out == shell("table", "heterogeneity").out
    assert shell("table", "Table 2").out == shell("table", "table2").out


def test_a_number_shows_that_part_of_the_paper(engine: Engine, shell: Shell) -> None:
    for one in wanted("accuracy"):
        if one.spec.method.name == "fedavg" and one.spec.seed == 0:
            add_run(engine, one.spec, [0.1, 0.2])
    shown = shell("table", "table7")
    assert shown.code == 2, "half of the clients joined nowhere"
    assert "MNIST" in shown.out
    assert "Tiny" not in shown.out
    assert "Tiny" in shell("table", "table2").out


def test_plot_takes_the_paper_s_numbers(shell: Shell) -> None:
    for name in ("figure4", "fig4", "Fig. 4", "plot:trajectory"):
        assert "pflbench reproduce trajectory" in shell.refused("plot", name)
    assert "pflbench data download tiny" in shell.refused("plot", "figure6")
    assert "--method does not belong to Figure 6" in shell.refused("plot", "figure6", "-m", "fedavg")
    assert "--clients does not belong to Figure 6" in shell.refused("plot", "figure6", "--clients", "5")
    assert shell.refused("plot", "table4").endswith("'table4' is a table.\npflbench table table4\n")
    assert "pflbench plot figure4" in shell.refused("table", "figure4")
    assert "It has them in Figure 3, Figure 4" in shell.refused("plot", "figure2")
    assert "Unknown table 'trajectory'" in shell.refused("table", "trajectory")
    assert "Unknown plot 'figur4'" in shell.refused("plot", "figur4")
