"""What methods observe, and what each client sent and received, end up in the database and can be got out of it."""

from __future__ import annotations

import json

import numpy as np
from sqlalchemy import Engine
from support.command import Shell

from pflbench.engine.federation import COUNTERS
from pflbench.store import arrays, rounds
from pflbench.store import database as db

RUN = "run -m fedala -d digits --clients 5 --rounds 4 --lr 0.05 --batch-size 32 --join-ratio 0.6 --quiet"


def stored() -> Engine:
    return db.connect(db.to_url("pflbench.db"))


def succeeds(shell: Shell, command: str) -> str:
    done = shell(*command.split())
    assert done.code == 0, done
    return done.out


def held() -> dict[str, list[int]]:
    return {name: held for (_, name), held in arrays.rounds(stored(), [1]).items()}


def test_large_observations_are_kept_in_the_chosen_rounds_only(shell: Shell) -> None:
    succeeds(shell, f"{RUN} --save-artifacts-every 2")
    assert held()["ala_weights"] == [2, 4]
    assert held()["ala_losses"] == [2, 4]
    assert held()["traffic"] == [1, 2, 3, 4]
    losses = arrays.read_one(stored(), 1, "ala_losses", 4)
    assert losses.shape == (5, 2)
    took_part = ~np.isnan(losses[:, 0])
    assert 1 <= took_part.sum() <= 3
    assert (losses[took_part, 1] < losses[took_part, 0]).all(), "initialisation lowers the loss on what it learns from"


def test_observing_is_no_part_of_what_a_round_costs(shell: Shell) -> None:
    succeeds(shell, f"{RUN} --save-artifacts-every 1")
    succeeds(shell, f"{RUN} --db plain.db")
    engines = (stored(), db.connect(db.to_url("plain.db")))
    watched, plain = ([row["flops"] for row in rounds.newest_rows(engine, 1, 4)] for engine in engines)
    assert watched == plain


def test_measures_are_kept_in_the_chosen_ones_of_the_evaluated_rounds(shell: Shell) -> None:
    succeeds(shell, f"{RUN} --rounds 11 --eval-every 2 --metrics-every 3")
    assert held()["measures"] == [0, 6, 11], "evaluated in 0, 2, 4, 6, 8, 10 and 11"


def test_by_default_only_traffic_is_kept_which_adds_up_to_the_rounds_and_can_be_printed_and_saved(shell: Shell) -> None:
    succeeds(shell, RUN)
    assert set(held()) == {"traffic", "ala_init_epochs"}, "what costs nothing"

    engine = stored()
    for row in rounds.newest_rows(engine, 1, 4):
        traffic = arrays.read_one(engine, 1, "traffic", row["round"])
        assert traffic.shape == (5, 4)
        assert {name: row[name] for name in COUNTERS} == dict(zip(COUNTERS, traffic.sum(axis=0).tolist(), strict=True))
        assert (traffic[:, 0] > 0).sum() == (traffic[:, 1] > 0).sum() == 3, "three of five clients join"

    printed = json.loads(succeeds(shell, "runs artifact 1 traffic --round 2"))
    succeeds(shell, "runs artifact 1 traffic --round 2 -o traffic.npy")
    assert np.load("traffic.npy").tolist() == printed["values"]
    assert "traffic" in shell.refused(*["runs", "artifact", "1", "nonsense"])
    assert "Cannot write no/such/folder.npy" in shell.refused(*["runs", "artifact", "1", "traffic", "-o", "no/such/folder.npy"])
