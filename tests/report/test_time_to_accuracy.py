"""`table time-to-accuracy`: the first round with an accuracy, and what has been spent until then."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine
from support.command import Shell
from support.report_database import spec
from support.store_samples import write_round

from pflbench.report.tables.grid import render
from pflbench.report.tables.time_to_accuracy import TimeCell, build
from pflbench.store import write
from pflbench.store.write import RoundRecord

ACCURACIES = (0.4, 0.69, 0.7, 0.6, 0.75)


def add(engine: Engine, method: str, accuracies: tuple[float, ...], seed: int = 0, simulated: float | None = None) -> int:
    """Round t costs t MB up, 2 MB down, 1 + t seconds and `simulated` * t simulated seconds."""
    run = write.create_run(engine, spec(method, seed=seed), {})
    write.update_run(engine, run, status="finished", parameters=1000)
    write_round(engine, run, RoundRecord(round=0, accuracy=0.1))
    for t, accuracy in enumerate(accuracies, start=1):
        costs = {"bytes_up": t * 10**6, "bytes_down": 2 * 10**6, "seconds_receive": 1.0, "seconds_update": float(t)}
        more = {} if simulated is None else {"seconds_simulated": simulated * t}
        write_round(engine, run, RoundRecord(round=t, accuracy=accuracy, participants=4, seconds_evaluate=9.0, **costs, **more))
    return run


def cell(engine: Engine, method: str, target: float | None = None) -> TimeCell:
    table = build(engine, target=target)
    return table.cells[[row.method for row in table.found.rows].index(method), 0]


def test_sums_by_hand(engine: Engine) -> None:
    """0.7 is first there in round 3: 1 + 2 + 3 + 3 * 2 MB, 2 + 3 + 4 s, 0.5 * (1 + 2 + 3) simulated s."""
    add(engine, "fedavg", ACCURACIES, simulated=0.5)
    assert cell(engine, "fedavg", 70).values == {"round": 3, "bytes": 12e6, "seconds": 9, "seconds_simulated": 3}
    assert cell(engine, "fedavg", 10).values == {"round": 0, "bytes": 0, "seconds": 0, "seconds_simulated": None}
    assert cell(engine, "fedavg").values["round"] == 2, "0.675, nine tenths of the best"
    assert cell(engine, "fedavg", 76).reached == 0


def test_large_numbers_are_written_out() -> None:
    values = {"bytes": 82_920e6, "seconds_simulated": 9_999.4, "round": 12_000.0}
    shown = [TimeCell(values, 1, (1,)).text(name, ".4g", unit) for name, unit in zip(values, (1e-6, 1, 1), strict=True)]
    assert shown == ["82,920", "9999", "12,000"]


def test_means_are_over_the_runs_that_get_there(engine: Engine) -> None:
    for seed, accuracies in enumerate((ACCURACIES, (0.7,), (0.5, 0.5))):
        add(engine, "fedavg", accuracies, seed)
    add(engine, "ditto", (0.2,))
    found = cell(engine, "fedavg", 70)
    assert (found.reached, found.values) == (2, {"round": 2, "bytes": 7.5e6, "seconds": 5.5, "seconds_simulated": None})
    text = render(build(engine, target=70).grid(), width=200)
    assert "target 70 %" in text
    assert "2 (2/3)" in text
    assert text.count("never") == 3
    assert "simulated" not in text


@pytest.mark.parametrize("target", ["-1", "100.1", "nan"])
def test_a_target_is_an_accuracy(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"--target {target} is not possible" in Shell(capsys).refused("table", "time-to-accuracy", "--target", target)
