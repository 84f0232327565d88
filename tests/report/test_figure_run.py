"""Interactive figures of one run: what is drawn are its rows, and a run without any has no figures."""

from __future__ import annotations

import json
import sqlite3

import numpy as np
import plotly.graph_objects as go
import pytest
from sqlalchemy import Engine
from support.pages import of_run
from support.raw_sql import sql
from support.report_database import add_partition, add_run, spec
from support.store_samples import write_round

from pflbench.store import write
from pflbench.store.write import RoundRecord


def test_a_runs_own_figures_are_its_rows(engine: Engine) -> None:
    partition = add_partition(engine)  # 6 and 6 training samples, 3 and 3 to test on
    run = write.create_run(engine, spec("ditto"), {})
    write.update_run(engine, run, status="running", partition_id=partition)
    tested = {"clients": np.arange(2), "total": np.array([3, 3]), "loss": np.array([0.6, 1.5])}
    for t, correct in enumerate(([0, 1], [3, 2], [3, 1])):
        spent = {"seconds_receive": 0.5, "seconds_update": 2.0 * t} if t else {}
        write_round(
            engine,
            run,
            RoundRecord(
                round=t, accuracy=sum(correct) / 6, test_loss=2.1 / 6, train_loss=1 / t if t else None, seconds_evaluate=0.25,
                correct=np.array(correct), series={"global": (0.25 * t, 0.5)}, **tested, **spent,
            ),
        )  # fmt: skip
    curve, loss, bars, phases = of_run(engine, run)
    for one in (curve, bars, loss, phases):
        go.Figure(one.spec)
        assert json.loads(json.dumps(one.spec, allow_nan=False)) == one.spec
        assert one.runs == (run,)
        assert one.id.startswith(f"run-{run}-")
    deployed, second, best = curve.spec["data"]
    rows = sql(engine, "select round, 100 * accuracy, test_loss from round order by round")
    np.testing.assert_allclose(np.column_stack([deployed["x"], deployed["y"], deployed["customdata"]]), rows, rtol=1e-5)
    assert (second["name"], second["y"], second["customdata"]) == ("global", [0, 25, 50], [[0.5]] * 3)
    assert (best["x"], best["y"]) == ([1], [pytest.approx(500 / 6, rel=1e-5)])
    (bar,) = bars.spec["data"]
    assert (bar["x"], bar["y"]) == ([0, 1], [100, pytest.approx(200 / 3, rel=1e-5)])
    assert bar["customdata"] == [
        [3, 3, 0.2, "<br>9 samples with those to train on"],
        [2, 3, 0.5, "<br>9 samples with those to train on"],
    ]
    assert loss.spec["data"][0]["y"] == [1, 0.5]
    assert [area["y"] for area in phases.spec["data"]] == [[0, 0.5, 0.5], [0, 2, 4], [0.25] * 3]
    assert {area["stackgroup"] for area in phases.spec["data"]} == {"seconds"}


def test_many_rounds_are_averaged_and_lose_no_second(engine: Engine) -> None:
    run = add_run(engine, spec("fedavg"), [0.5])
    with sqlite3.connect(str(engine.url.database)) as connection:
        rows = [(run, t, 90.0 if t == 333 else 1.0) for t in range(1, 1000)]
        connection.executemany("insert into round (run_id, round, seconds_update) values (?, ?, ?)", rows)
    one = of_run(engine, run)[-1]
    training = one.spec["data"][1]
    assert len(training["y"]) == 200
    assert 5 * sum(training["y"]) == pytest.approx(998 + 90)
    assert training["customdata"][-1] == "995 to 999"
    assert "mean over up to 5 rounds" in one.caption


def test_a_run_without_anything_has_no_figures(engine: Engine) -> None:
    run = write.create_run(engine, spec("fedavg"), {})
    assert of_run(engine, run) == ()
    add_run(engine, spec("fedavg", 1), [0.1])
    assert "Accuracy by client" not in {one.title for one in of_run(engine, 2)}
