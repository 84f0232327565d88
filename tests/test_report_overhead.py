"""`table overhead`: costs by hand, beside FedAvg's and the paper's Table 3."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from report_database import add_run, spec
from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report.overhead import Cell, Table, build
from pflbench.report.render import FORMATS, render
from pflbench.store import db, write
from pflbench.store.records import RoundRecord


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return db.connect(f"sqlite:///{tmp_path / 'results.db'}")


def add(engine: Engine, method: str, rounds: list[tuple[float, float, float]], seed: int = 0, stage: int | None = None) -> int:
    """A run of 4 participants and 1,000 parameters, its rounds as (accuracy, seconds_receive, seconds_update)."""
    run = write.create_run(engine, spec(method, seed=seed), {})
    write.update_run(engine, run, status="finished", parameters=1000)
    write.write_round(engine, run, RoundRecord(round=0, accuracy=0.1))
    for t, (accuracy, receive, update) in enumerate(rounds, start=1):
        artifacts = {"ala_init_epochs": np.arange(4)} if t == stage else {}
        write.write_round(
            engine, run,
            RoundRecord(
                round=t, accuracy=accuracy, seconds_receive=receive, seconds_update=update, seconds_evaluate=9.0, participants=4,
                params_up=4000, params_down=4000, scalars_up=40, scalars_down=0, bytes_up=16160, bytes_down=16000,
                peak_memory=10**6 * t, artifacts=artifacts,
            ),
        )  # fmt: skip
    return run


def cell(table: Table, label: str) -> Cell:
    (found,) = [cells[0] for row, cells in zip(table.rows, table.cells, strict=True) if row.label == label]
    assert found is not None
    return found


def test_costs_by_hand(engine: Engine) -> None:
    # FedALA's initial stage shows in row 1 (what reception 2 gives) and is paid for in row 2.
    runs = [add(engine, "fedavg", [(0.3, 0, 2), (0.5, 0, 2), (0.505, 0, 2)], seed) for seed in (0, 1)]
    add(engine, "fedala", [(0.6, 0, 2), (0.7, 8, 2), (0.8, 1, 3), (0.799, 1, 3)], stage=1)
    table = build(engine, tolerance=0.5)
    plain, ala = cell(table, "FedAvg"), cell(table, "FedALA")
    assert plain.runs == tuple(runs)
    assert plain.cost == {
        "best": 0.505, "converged": 2, "seconds_total": 4, "seconds_initial": 0, "seconds_round": 2, "seconds_evaluate": 9,
        "parameters": 2000, "scalars": 10, "bytes": 8040, "multiple": 2, "peak_memory": 3_000_000,
    }  # fmt: skip
    assert (plain.relative, plain.paper) == (1, 1)
    assert (ala.cost["converged"], ala.cost["seconds_total"], ala.cost["seconds_initial"]) == (3, 16, 8)
    assert ala.cost["seconds_round"] == 4, "the median of 2, 10, 4, 4"
    assert ala.relative == 2
    assert ala.paper == pytest.approx(1.93 / 1.59), "Table 3: minutes per iteration"


def test_the_initial_stage_is_of_the_runs_that_have_one(engine: Engine) -> None:
    add(engine, "fedavg", [(0.5, 1, 2), (0.6, 1, 2), (0.7, 1, 2)])
    add(engine, "fedala", [(0.5, 1, 2), (0.6, 8, 2), (0.7, 1, 2)], stage=1)
    add(engine, "fedrep", [(0.5, 1, 2), (0.6, 1, 2), (0.7, 4, 2)], stage=2)
    table = build(engine)
    assert [cell(table, label).cost["seconds_initial"] for label in ("FedAvg", "FedALA", "FedRep")] == [0, 8, 4]


def test_the_tolerance_decides_when_a_run_has_converged(engine: Engine) -> None:
    add(engine, "fedavg", [(0.3, 0, 2), (0.5, 0, 2), (0.505, 0, 2)])
    assert [cell(build(engine, tolerance=t), "FedAvg").cost["converged"] for t in (0, 0.5, 25, 90)] == [3, 2, 1, 0]
    for impossible in (-1, float("nan")):
        with pytest.raises(UserError, match="--tolerance"):
            build(engine, tolerance=impossible)


def test_without_fedavg_there_is_nothing_to_compare_with(engine: Engine) -> None:
    add(engine, "ditto", [(0.3, 0, 2)])
    assert cell(build(engine), "Ditto").relative is None


def test_runs_without_a_trained_round_are_no_cost(engine: Engine) -> None:
    add_run(engine, spec("fedavg"), [0.1])
    with pytest.raises(UserError, match="trained and evaluated"):
        build(engine)


def test_every_format_shows_it(engine: Engine) -> None:
    add(engine, "fedavg", [(0.3, 0, 2), (0.5, 0, 2)])
    add(engine, "ditto", [(0.3, 0, 2), (0.5, 0, 6)])
    grid = build(engine).grid()
    assert "x FedAvg" in render(grid, "text")
    for format in FORMATS:
        assert "Ditto" in render(grid, format)
    first, second = json.loads(render(grid, "json"))["cells"]
    assert (first["method"], second["method"], second["relative_to_fedavg"]) == ("fedavg", "ditto", 2)
    assert second["paper_relative_to_fedavg"] == pytest.approx(11.78 / 1.59)
