"""AUC, balanced accuracy and macro-F1 of stored runs: in tables, curves and exports."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from sqlalchemy import Engine
from support.command import Shell, parsed
from support.report_database import spec
from support.store_samples import write_round

from pflbench.errors import UserError
from pflbench.report.selection import Filters
from pflbench.report.tables.accuracy import build
from pflbench.store import write
from pflbench.store.write import RoundRecord

RUN = ("run", "-d", "digits", "--clients", "4", "--rounds", "3", "-q")


@pytest.fixture
def ran(shell: Shell) -> Shell:
    assert shell(*RUN, "-m", "fedavg", "-m", "local", "--metrics-every", "2").code == 0
    assert shell(*RUN, "-m", "fedper").code == 0
    return shell


def test_a_table_and_an_export_have_the_same_values(ran: Shell, tmp_path: Path) -> None:
    assert ran("export", "measures", "-o", "measures.csv").code == 0
    with (tmp_path / "measures.csv").open() as file:
        rows = list(csv.DictReader(file))
    whole = {(row["method"], row["round"]): row for row in rows if row["client"] == ""}
    assert {t for _, t in whole} == {"0", "2", "3"}, "every second round, and the last"
    assert {row["client"] for row in rows} == {"", "0", "1", "2", "3"}
    for metric in ("auc", "balanced-accuracy", "macro-f1"):
        document = parsed(ran("table", "accuracy", "--metric", metric, "--round-rule", "last", "--json"))
        found = {record["method"]: record["mean"] for record in document["cells"]}
        column = metric.replace("-", "_")
        assert found == {name: pytest.approx(100 * float(whole[name, "3"][column])) for name in ("fedavg", "local")}
    shown = ran("table", "accuracy", "--metric", "auc")
    assert "AUC in %, pooled" in shown.out
    assert "Not counted: 1 run without AUC" in shown.out


def test_a_budget_says_what_it_leaves_out(shell: Shell) -> None:
    assert shell(*RUN, "-m", "fedavg", "-m", "local", "--test-after-training").code == 0
    shown = shell("table", "accuracy", "--metric", "after-training", "--at", "bytes=1")
    assert "Not counted: 1 run without Accuracy after local training within 1 bytes (`--test-after-training`)." in shown.out
    assert "counted with the initial model" not in shown.out, "FedAvg, which is not counted"
    refused = shell("table", "accuracy", "--metric", "after-training", "--at", "flops=1", "--round-rule", "last")
    assert refused.code == 2
    assert "None of these runs has measured Accuracy after local training within 1 FLOPs." in refused.err
    assert "Give a larger --at, or measure it: Runs do with --test-after-training" in refused.err


def test_a_validated_round_without_the_series_is_said(engine: Engine) -> None:
    """FedAvg's validated round is round 0, in which nobody has trained."""
    for method, best in (("fedavg", 0), ("ditto", 1)):
        run = write.create_run(engine, spec(method, val_share=0.1), {})
        write.update_run(engine, run, status="finished")
        for t in (0, 1):
            series = {"after training": (0.6, 1.0)} if t else {}
            write_round(engine, run, RoundRecord(round=t, accuracy=0.5, val_accuracy=float(t == best), series=series))
    table = build(engine, round_rule="val", metric="after-training")
    assert [row.method for row in table.rows] == ["ditto"]
    assert [note for note in table.notes if note.startswith("Not counted")] == [
        "Not counted: 1 run without Accuracy after local training at the round that is best on validation data "
        "(`--test-after-training`)."
    ]
    with pytest.raises(UserError, match="at the round that is best on validation data") as refused:
        build(engine, Filters(methods=["fedavg"]), round_rule="val", metric="after-training")
    assert "Take another --round-rule." in str(refused.value.hint)


def test_the_best_round_is_the_most_accurate_of_those_measured(ran: Shell) -> None:
    ran("export", "rounds", "-o", "rounds.json")
    ran("export", "measures", "-o", "measures.json")
    folder = Path.cwd()
    accuracy = {(r["run"], r["round"]): r["accuracy"] for r in json.loads((folder / "rounds.json").read_text())}
    measured = {
        (r["run"], r["round"]): r["auc"] for r in json.loads((folder / "measures.json").read_text()) if r["client"] is None
    }
    best = {run: max((accuracy[run, t], -t) for r, t in measured if r == run) for run in (1, 2)}
    document = parsed(ran("table", "accuracy", "--metric", "auc", "--json"))
    found = {record["runs"][0]: record["mean"] for record in document["cells"]}
    assert found == {run: pytest.approx(100 * measured[run, -minus]) for run, (_, minus) in best.items()}
    assert {record["optimism"] for record in document["cells"]} == {None}, "which is of accuracy"


def test_curves_have_a_line_for_each_run_that_measured(ran: Shell, tmp_path: Path) -> None:
    drawn = ran("plot", "curves", "--metric", "balanced-accuracy", "-o", "b.svg")
    assert drawn.code == 0
    text = (tmp_path / "b.svg").read_text()
    assert "Test balanced accuracy" in drawn.err
    assert "FedPer" not in text


@pytest.mark.parametrize(
    "command",
    [("table", "heterogeneity", "--metric", "auc"), ("plot", "curves", "--metric", "auc", "--over", "seconds")],
)
def test_what_has_accuracy_alone_refuses_a_metric(ran: Shell, command: tuple[str, ...]) -> None:
    done = ran(*command)
    assert (done.code, "Traceback" in done.err) == (2, False)


def test_runs_without_measures_say_how_to_get_them(shell: Shell) -> None:
    shell(*RUN, "-m", "fedavg")
    for command in (("table", "accuracy"), ("plot", "curves")):
        done = shell(*command, "--metric", "auc")
        assert done.code == 2
        assert "--metrics-every 1" in done.err


def test_settings_with_other_rounds_stand_beside_each_other(shell: Shell) -> None:
    """Each run's accuracies are those of its own rounds."""
    short = ("run", "-m", "fedavg", "-d", "digits", "--clients", "4", "-q", "--metrics-every", "1")
    assert shell(*short, "--rounds", "6", "--eval-every", "3", "-p", "iid").code == 0
    assert shell(*short, "--rounds", "4").code == 0

    def found(*which: str) -> dict[int, float]:
        document = parsed(shell("table", "accuracy", "--metric", "auc", "--json", *which))
        return {record["runs"][0]: record["mean"] for record in document["cells"]}

    assert found() == {**found("-p", "IID"), **found("-p", "Dir(0.1)")}


def test_a_setting_without_the_measure_does_not_cost_the_others(ran: Shell) -> None:
    assert ran(*RUN, "-m", "fedavg", "-p", "iid").code == 0
    drawn = ran("plot", "curves", "--metric", "auc", "-o", "b.svg")
    assert drawn.code == 0
    assert "Not counted: 2 runs without AUC" in drawn.err


def test_what_is_about_accuracy_is_refused(ran: Shell) -> None:
    for option in (("--test", "wilcoxon-clients"), ("--paper", "always")):
        assert "about accuracy" in ran.refused("table", "accuracy", "--metric", "auc", *option)
