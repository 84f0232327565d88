"""`table overhead`: costs by hand, beside FedAvg's and the paper's Table 3."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
from sqlalchemy import Engine
from support.command import Shell
from support.report_database import add_run, spec
from support.store_samples import write_round

from pflbench.errors import UserError
from pflbench.report.figures import overhead as figure
from pflbench.report.needed import METHODS
from pflbench.report.selection import Filters
from pflbench.report.tables import overhead as table3
from pflbench.report.tables.accuracy import Paper
from pflbench.report.tables.overhead import CostCell, OverheadTable, build
from pflbench.store import write
from pflbench.store.database import reading, writing
from pflbench.store.rounds import costs
from pflbench.store.write import RoundRecord


def add(engine: Engine, method: str, rounds: list[tuple[float, float, float]], seed: int = 0, stage: int | None = None) -> int:
    """A run of 4 participants and 1,000 parameters, its rounds as (accuracy, seconds_receive, seconds_update)."""
    run = write.create_run(engine, spec(method, seed=seed), {})
    write.update_run(engine, run, status="finished", parameters=1000)
    write_round(engine, run, RoundRecord(round=0, accuracy=0.1))
    for t, (accuracy, receive, update) in enumerate(rounds, start=1):
        artifacts = {"ala_init_epochs": np.arange(4)} if t == stage else {}
        write_round(
            engine, run,
            RoundRecord(
                round=t, accuracy=accuracy, seconds_receive=receive, seconds_update=update, seconds_evaluate=9.0, participants=4,
                params_up=4000, params_down=4000, scalars_up=40, scalars_down=0, bytes_up=16160, bytes_down=16000,
                peak_memory=10**6 * t, artifacts=artifacts,
            ),
        )  # fmt: skip
    return run


def cell(table: OverheadTable, label: str) -> CostCell:
    return table.cells[[row.label for row in table.found.rows].index(label), 0]


def test_the_initial_stage_is_of_the_runs_that_have_one(engine: Engine) -> None:
    add(engine, "fedavg", [(0.5, 1, 2), (0.6, 1, 2), (0.7, 1, 2)])
    add(engine, "fedala", [(0.5, 1, 2), (0.6, 8, 2), (0.7, 1, 2)], stage=1)
    add(engine, "fedrep", [(0.5, 1, 2), (0.6, 1, 2), (0.7, 4, 2)], stage=2)
    table = build(engine)
    assert [cell(table, label).values["seconds_initial"] for label in ("FedAvg", "FedALA", "FedRep")] == [0, 8, 4]


def test_a_run_that_is_twice_as_long_takes_twice_as_long_to_read(engine: Engine) -> None:
    """Steps of SQLite's machine, not seconds. Every round has an array, and the best one is the last."""
    steps = []
    for seed, length in enumerate((300, 600)):
        run, traffic = write.create_run(engine, spec("fedala", seed=seed), {}), {"traffic": np.zeros((1, 4))}
        with writing(engine) as connection:
            for t in range(length + 1):
                record = RoundRecord(round=t, accuracy=t / length, seconds_receive=1.0, participants=1, artifacts=traffic)
                write.insert_rows(connection, write.rows_of(run, record))
        with reading(engine) as connection:
            taken = count()
            connection.connection.driver_connection.set_progress_handler(lambda of=taken: next(of) < 0, 100)  # of the pool's one
        costs(engine, [run], 0.002)
        steps.append(next(taken))
    assert steps[0] > 50  # it was counted
    assert steps[1] < 2.5 * steps[0]


def test_a_client_that_does_not_join_sends_nothing(engine: Engine) -> None:
    """4 of 20 clients join each of two rounds until convergence, in which all of them together send 32,160 bytes."""
    add(engine, "fedavg", [(0.5, 1, 2), (0.7, 1, 2), (0.6, 1, 2)])
    (point,) = figure.points(engine, Filters().select(engine), 0)
    assert point.cost == (6, pytest.approx(2 * 32160 / 20 / 1e6))


def test_the_tolerance_decides_when_a_run_has_converged(engine: Engine) -> None:
    add(engine, "fedavg", [(0.3, 0, 2), (0.5, 0, 2), (0.505, 0, 2)])
    assert [cell(build(engine, tolerance=t), "FedAvg").values["converged"] for t in (0, 0.5, 25, 90)] == [3, 2, 1, 0]


@pytest.mark.parametrize("report", ["table", "plot"])
@pytest.mark.parametrize("impossible", ["-1", "nan"])
def test_a_tolerance_is_not_negative(report: str, impossible: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused = Shell(capsys).refused(report, "overhead", "--tolerance", impossible)
    assert f"--tolerance {impossible} is not possible: it must be at least 0" in refused


def test_runs_without_a_trained_round_are_no_cost(engine: Engine) -> None:
    add_run(engine, spec("fedavg"), [0.1])
    with pytest.raises(UserError, match="trained and evaluated"):
        build(engine)


NOTHING = {"scalars_up": 0, "scalars_down": 0, "bytes_up": 4, "bytes_down": 4}
# methods.md 2.2: total time over time per iteration.
IMPLIED = {
    "fedavg": 230, "fedprox": 163, "fedavg-c": 25, "fedprox-c": 25, "per-fedavg": 34, "fedrep": 115, "pfedme": 113,
    "ditto": 27, "fedamp": 60, "fedphp": 65, "fedfomo": 71, "apple": 45, "partialfed": 325, "fedala": 60,
}  # fmt: skip


def test_table_3_as_it_is_printed() -> None:
    found = table3.table_3()
    assert {method: round(one["paper_rounds"] or 0) for method, one in found.items()} == IMPLIED
    assert (found["fedala"]["paper_seconds_total"], found["fedala"]["paper_seconds_initial"]) == (60 * 123, 60 * 7)
    assert [found[name]["paper_multiple"] for name in ("fedavg", "apple", "fedfomo", "fedrep")] == [2, 21, 21, None]
    shown = {"fedala+ala": "2 Σ", "fedrep": "2 α_f Σ", "apple": "(1 + M) Σ", "elastic": "3 Σ", "local": "0", "mine": ""}
    assert {method: table3.formula(method) for method in shown} == shown
    assert all(table3.formula(method) for method in METHODS)


@pytest.mark.parametrize(("paper", "rounds", "shown"), [
    ("auto", 2000, "95.4"), ("auto", 20, None), ("always", 20, "95.4 †"), ("never", 2000, None),
])  # fmt: skip
def test_the_papers_times_stand_beside_its_setting_alone(engine: Engine, paper: Paper, rounds: int, shown: str | None) -> None:
    for model in ("resnet18", "cnn"):
        for dataset in ("tiny", "mnist"):
            of = spec(dataset=dataset, model=model, rounds=rounds)
            add_run(engine, of, [0.1, 0.2], seconds=1.0, participants=4, params_up=1, params_down=1, **NOTHING)
    grid = build(engine, paper=paper).grid()
    columns = [column for column in grid.columns if column.head[-2:] == ("paper", "s/round")]
    assert [column.entries[0].text for column in columns] == ([] if shown is None else [shown])
    minutes = {record["setting"]: record["paper_seconds_round"] for record in grid.records}
    assert [title for title, value in minutes.items() if value is not None] == [
        title for title in minutes if shown and "Tiny" in title and "ResNet" in title
    ]


def test_another_machine_or_load_is_marked_from_the_record(engine: Engine) -> None:
    command = "pflbench run -m fedavg"
    made = {
        "fedavg": ("AMD EPYC", {"cores": 2, "command": command}),
        "ditto": ("AMD EPYC", {"cores": 2, "command": f"{command} --json"}),
        "fedrep": ("Xeon", {"cores": 2, "command": command}),
        "fedprox": ("AMD EPYC", {"cores": 8, "command": command}),
        "fedala": ("AMD EPYC", {"cores": 2, "command": f"{command} -j 4"}),
        "local": ("AMD EPYC", {"cores": 2, "command": "pflbench sweep make study.yaml"}),
        "fedamp": ("AMD EPYC", {"cores": 2, "command": command, "pack": {"runs": 3}}),
        "apple": ("AMD EPYC", {"cores": 2, "command": command}),
        "fedfomo": ("AMD EPYC", {"cores": 2, "command": "pflbench tune --method fedfomo"}),
    }
    for method, (device, environment) in made.items():
        write.update_run(engine, add(engine, method, [(0.5, 1, 2)]), device=device, environment=environment)
    table = build(engine)
    elsewhere = {row.method: table.cells[i, 0].elsewhere for i, row in enumerate(table.found.rows)}
    assert {method: of[0] if of else "" for method, of in elsewhere.items()} == {
        "fedavg": "",
        "ditto": "",
        "apple": "",
        "fedrep": "Xeon, 2 cores, 1 run at a time",
        "fedprox": "AMD EPYC, 8 cores, 1 run at a time",
        "fedala": "AMD EPYC, 2 cores, 4 runs at a time",
        "local": "AMD EPYC, 2 cores, several runs at a time",
        "fedfomo": "AMD EPYC, 2 cores, several runs at a time",
        "fedamp": "AMD EPYC, 2 cores, 1 run at a time, 3 seeds together",
    }
    assert "Made on: AMD EPYC, 2 cores, 1 run at a time." in table.notes
    assert "§: another machine or load: Xeon, 2 cores, 1 run at a time (FedRep)." in table.notes
    (times,) = [column for column in table.grid().columns if column.head[-1] == "s/round"]
    marked = {row.method for row, text in zip(table.found.rows, times.entries, strict=True) if text.text.endswith(" §")}
    assert marked == {method for method, of in elsewhere.items() if of}
