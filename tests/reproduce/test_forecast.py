"""Before a long run: its time, memory and disk; before a short one nothing, and never another number in the results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.command import Shell, rows
from support.report_database import add_run, spec

from pflbench.cli.console import duration
from pflbench.reproduce import forecast
from pflbench.run.federation_data import load_federation_data
from pflbench.run.options import RunOptions
from pflbench.run.plan import plan
from pflbench.run.round import rounds
from pflbench.spec import RunSpec
from pflbench.store import database as db
from pflbench.store.rounds import Speed

RUN = ("run", "-m", "fedala", "-d", "digits", "--batch-size", "40", "--set", "fedala.max_init_epochs=2", "--rounds", "2")


def test_a_measurement_changes_no_number(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(forecast, "_measure", None)
        plain = shell(*RUN, "--workers", "1", "--db", "plain.db")
    assert (plain.code, "Note" in plain.err) == (0, False), "it is short"
    monkeypatch.setattr(forecast, "SMALL_WORK", 0)
    monkeypatch.setattr(forecast, "LONG", 0)
    told = shell(*RUN, "--workers", "1", "--db", "told.db")
    assert "Note: 1 run ahead, about" in told.err
    assert "measured on a few batches" in told.err
    assert "Quick:" not in told.err, "the digits are the quick alternative"
    assert told.out == plain.out
    losses = "SELECT round, accuracy, test_loss, train_loss FROM round ORDER BY round"
    assert rows(losses, "told.db") == rows(losses, "plain.db")
    assert "Note" not in shell(*RUN[:-1], "1", "--workers", "1", "--db", "quiet.db", "--quiet").err


def test_the_digits_are_offered_instead_of_other_data(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "SMALL_WORK", 0)
    monkeypatch.setattr(forecast, "LONG", 0)
    np.savez("own.npz", x=np.zeros((400, 4), np.float32), y=np.arange(400) % 2)
    told = shell("run", "-m", "fedavg", "-d", "npz:own.npz", "--clients", "4", "-p", "iid", "--rounds", "1")
    assert "pflbench run -m fedavg -d digits --rounds 20" in told.err


def test_what_the_database_knows_is_not_measured_again(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven seconds a round, 200 rounds, two seeds; FedALA by Table 3."""
    engine = db.connect(db.to_url("pflbench.db"))
    dir_10 = {"scheme": "dirichlet", "beta": 0.1, "clients": 10}
    known = spec("fedavg", 9, dataset="digits", model="mlp", rounds=3, partition=dir_10)
    add_run(engine, known, [0.1, 0.2], seconds=2.0, participants=10)
    monkeypatch.setattr(forecast, "SMALL_WORK", 0)
    monkeypatch.setattr(forecast, "_measure", None)
    specs = plan(RunOptions(methods=("fedavg", "fedala"), datasets=("digits",), rounds=200, seeds="0-1"))
    found = forecast.forecast(specs, engine, Path("data"), forecast.Execution(), print)
    assert found is not None
    assert found.seconds == pytest.approx(2 * 200 * 7 * (1 + 1.93 / 1.59))
    assert (found.runs, found.measured, duration(found.seconds or 0)) == (4, False, "1 h 43 min")


def test_a_dry_run_of_reproduce_measures_what_no_round_tells(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seconds a round of FedAvg: FedALA's are 1.93 / 1.59 of it by Table 3, without a measurement of its own."""
    asked: list[str] = []

    def two_seconds(spec: RunSpec, *_: Any) -> Speed:
        asked.append(spec.method.name)
        return Speed(spec.method.name, spec.data.label, spec.model, spec.partition.clients, 1, 2.0)

    what = ("table:accuracy", "--scale", "smoke", "-d", "mnist", "-m", "fedavg", "-m", "fedala")
    command = ("reproduce", *what, "--dry-run", "--json")
    assert json.loads(shell(*command).out)["unknown"] > 0, "so short that nothing is measured"
    monkeypatch.setattr(forecast, "SMALL_WORK", 0)
    monkeypatch.setattr(forecast, "_measure", two_seconds)
    shown = json.loads(shell(*command).out)
    rounds = {name: sum(run["rounds"] for run in shown["runs"] if run["method"] == name) for name in ("fedavg", "fedala")}
    assert shown["seconds"] == pytest.approx(2 * (rounds["fedavg"] + rounds["fedala"] * 1.93 / 1.59))
    assert (set(asked), shown["unknown"], list(Path().iterdir())) == ({"fedavg"}, 0, [])


@pytest.mark.parametrize("every", [1, 10])
def test_a_measurement_weighs_tested_and_untested_rounds(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten rounds nine spare the test, and FedBABU its fine-tuning: one second a test is 0.1 s a round."""

    def one_second_a_test(*a: Any, **k: Any) -> Iterator[Any]:
        for this, scores, state in rounds(*a, **k):
            assert this.reception.test_follows == bool(scores)
            this.seconds = {"evaluation": float(bool(scores))}
            yield this, scores, state

    monkeypatch.setattr(forecast, "rounds", one_second_a_test)
    (spec,) = plan(RunOptions(methods=("fedbabu",), datasets=("digits",), eval_every=every))
    _, seconds = forecast._timed(spec, load_federation_data(spec, Path("data")), forecast.Execution(), 1)
    assert seconds == pytest.approx(1 / every)
