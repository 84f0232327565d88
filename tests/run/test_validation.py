"""Validation samples, the rule that chooses rounds by them, repeated readings, and tests right after local training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sqlalchemy import Engine
from support.cases import rest_slow
from support.runs import interrupted, numbers, rows, run, short, spec
from torch.nn import functional as F

from pflbench import data, methods
from pflbench.contract.small import federation
from pflbench.errors import UserError
from pflbench.partition.core import set_aside
from pflbench.report.tables import accuracy
from pflbench.run.execution import Execution
from pflbench.run.federation_data import load_federation_data
from pflbench.run.prepared import prepare
from pflbench.run.repeat import repeat
from pflbench.run.round import HEADLINE, VALIDATION, evaluate
from pflbench.run.training import execute
from pflbench.spec import IID, RunSpec, TrainSpec
from pflbench.store import database as db
from pflbench.store import rules, runs, write
from pflbench.store.runs import ALL, RoundRule
from pflbench.store.write import RoundRecord


def test_a_share_of_each_clients_training_samples_is_set_aside() -> None:
    train = [np.arange(n) * 7 % 1000 for n in (50, 9, 2, 1, 0)]
    kept, aside = set_aside(train, 0.2, seed=1)
    assert [len(of) for of in aside] == [10, 1, 1, 0, 0]
    for whole, mine, validation in zip(train, kept, aside, strict=True):
        assert sorted([*mine, *validation]) == sorted(whole)
        assert [x for x in whole if x in set(mine)] == mine.tolist(), "in the order it had"
    again, other = (set_aside(train, 0.2, seed)[1][0].tolist() for seed in (1, 2))
    assert again == aside[0].tolist() != other


def test_the_test_part_and_old_keys_stay() -> None:
    plain, cut = (load_federation_data(short(val_share=share), Path("data")) for share in (0.0, 0.25))
    for client, mine in enumerate(plain.partition.train):
        assert sorted([*cut.partition.train[client], *cut.validation[client]]) == sorted(mine)
        assert cut.partition.test[client].tolist() == plain.partition.test[client].tolist()
    assert cut.record.hash == plain.record.hash
    assert short(val_share=0.0, eval_repeats=1).key == short().key != short(val_share=0.25).key
    assert "val_share" not in short().canonical()["train"]


def test_what_is_stored_is_the_model_on_these_samples(store: Engine) -> None:
    """Client 1's validation rows of round 0, by the initial model and plain PyTorch."""
    run(short("fedavg", val_share=0.25), store)
    found = load_federation_data(short(val_share=0.25), Path("data"))
    prepared = prepare(short("fedavg", val_share=0.25), found, torch.device("cpu"), Execution())
    net, mine = prepared.initial_model().module.double(), found.validation[1]
    samples = prepared.federation().executor.inner.samples  # type: ignore[attr-defined]
    x, y = samples.batch(torch.from_numpy(mine))
    logits = net(x)
    expected = (int((logits.argmax(1) == y).sum()), len(mine), float(F.cross_entropy(logits, y, reduction="sum").detach()))
    (stored,) = rows(store, "SELECT val_correct, val_total, val_loss FROM client_round WHERE round = 0 AND client = 1")
    assert stored == pytest.approx(expected)
    with store.connect() as connection:
        assert not list(rules.problems(connection))
    sums = "sum(val_correct), sum(val_total) FROM round JOIN client_round USING (run_id, round) GROUP BY round"
    for value, right, total in rows(store, f"SELECT val_accuracy, {sums}"):
        assert value == pytest.approx(right / total)


def stored_run(store: Engine, test: list[float], validation: list[float | None]) -> int:
    number = write.create_run(store, spec("fedavg", rounds=len(test) - 1), {})
    with db.writing(store) as connection:
        for t, (accuracy_, val) in enumerate(zip(test, validation, strict=True)):
            write.insert_rows(connection, write.rows_of(number, RoundRecord(round=t, accuracy=accuracy_, val_accuracy=val)))
    write.update_run(store, number, status="finished")
    return number


def test_the_rule_takes_the_earliest_round_that_is_best_on_validation_data(store: Engine) -> None:
    stored_run(store, [0.1, 0.5, 0.4, 0.6], [0.2, 0.7, 0.7, 0.1])
    (found,) = runs.results(store, ALL, RoundRule("val"))
    assert (found.value, found.round, found.used, found.best) == (0.5, 1, 1, 0.6)
    table = accuracy.build(store, round_rule="val")
    (cell,) = table.columns[0].cells
    assert cell is not None
    assert (cell.mean, cell.optimism) == pytest.approx((50, 10))
    assert "optimism" in table.grid().columns[1].head[0]


def test_db_check_finds_validation_that_its_clients_do_not_add_up_to(store: Engine) -> None:
    run(short("fedavg", val_share=0.25), store)
    with db.writing(store) as connection:
        connection.exec_driver_sql("UPDATE round SET val_accuracy = 0.25 WHERE round = 3")
    with store.connect() as connection:
        (problem,) = rules.problems(connection)
    assert problem.startswith("run 1, round 3: val_accuracy is 0.25, and ")


def test_runs_without_validation_have_no_such_result(store: Engine) -> None:
    stored_run(store, [0.1, 0.5], [None, None])
    (found,) = runs.results(store, ALL, RoundRule("val"))
    assert (found.value, found.round) == (None, None)
    with pytest.raises(UserError, match="result by this rule"):
        accuracy.build(store, round_rule="val")


def test_with_shuffled_labels_only_the_test_chosen_round_seems_to_learn(store: Engine, tmp_path: Path) -> None:
    """Nothing can be learned: accuracy is 10 %. The best of t test readings rises with t."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "noise.npz", x=rng.normal(size=(800, 12)).astype(np.float32), y=rng.integers(10, size=800))
    source = data.parse(f"npz:{tmp_path / 'noise.npz'}", Path("data"))
    for seed in range(4):
        train = TrainSpec(rounds=40, lr=0.3, batch_size=20, val_share=0.34)
        made = RunSpec(
            data=source, partition=IID(clients=8), model="logreg", train=train, method=methods.spec("local", {}), seed=seed
        )
        list(execute(made, store, tmp_path, Execution(workers=1)))
    test, val = (
        np.array(rows(store, f"SELECT {name} FROM round ORDER BY run_id, round")).reshape(4, -1)
        for name in ("accuracy", "val_accuracy")
    )
    few, many = test[:, :4].max(1).mean(), test.max(1).mean()
    chosen = test[np.arange(4), val.argmax(1)].mean()
    assert many > few + 0.01, "the best of more readings is higher"
    assert many > chosen + 0.01
    assert abs(chosen - test.mean()) < 0.02


@pytest.mark.parametrize("name", rest_slow([*methods.METHODS, "fedas aligned"], "fedavg", "per-fedavg", "fedala", "fedcp"))
def test_a_method_says_whether_its_test_is_random(name: str) -> None:
    """A reading with other random numbers is another one exactly where the method says so."""
    name, _, tested = name.partition(" ")
    chosen = methods.make(methods.spec(name, {"evaluate": tested} if tested else {}))
    fed = federation("mlp", around=chosen.model, n=(33, 12, 21, 14), tests=(9, 8, 7, 9))
    state, S = chosen.init(fed.at(0)), fed.all_trainable()
    for t in (1, 2):
        state = chosen.update(fed.at(t), chosen.receive(fed.at(t, receiving=True), state, S), S)

    def loss(seed: int) -> Any:
        now = fed.at(3, receiving=True).scratch_copy()
        now.seed = seed
        return evaluate(chosen, now, state, chosen.receive(now, state, S), S)[HEADLINE].loss.tolist()

    assert (loss(5) != loss(6)) == chosen.random_test


def test_readings_are_summed_and_training_stays(store: Engine) -> None:
    once, thrice = short("per-fedavg", val_share=0.2), short("per-fedavg", val_share=0.2, eval_repeats=3)
    run(once, store)
    run(thrice, store)
    totals = rows(store, "SELECT total, val_total FROM client_round WHERE round = 2 ORDER BY run_id, client")
    half = len(totals) // 2
    assert totals[half:] == [(3 * a, 3 * b) for a, b in totals[:half]]
    losses = [rows(store, f"SELECT train_loss FROM round WHERE run_id = {i} ORDER BY round") for i in (1, 2)]
    assert losses[0] == losses[1]
    accuracies = [rows(store, f"SELECT accuracy FROM round WHERE run_id = {i} ORDER BY round") for i in (1, 2)]
    assert accuracies[0] != accuracies[1]


def test_only_cohorts_receive_for_further_readings(store: Engine) -> None:
    run(short("fedavg-ft", eval_repeats=2, join_ratio=0.6, evaluate="all", val_share=0.2), store)
    assert rows(store, "SELECT DISTINCT count(*) FROM client_round GROUP BY round") == [(5,)]


def trained_and_received(store: Engine, name: str, clients: int) -> tuple[list[float], list[float]]:
    run(short(name, clients=clients), store, test_after_training=True)
    after = rows(store, "SELECT accuracy FROM series WHERE name = 'after training' ORDER BY round")
    headline = rows(store, "SELECT accuracy FROM round WHERE round > 0 ORDER BY round")
    return [a for (a,) in after], [a for (a,) in headline]


@pytest.mark.parametrize(("name", "clients"), [("local", 5), ("ditto", 5), ("fedavg", 1)])
def test_where_nothing_is_received_both_moments_are_one(store: Engine, name: str, clients: int) -> None:
    """Personal models that stay, and the average of a single client."""
    after, headline = trained_and_received(store, name, clients)
    assert after == headline
    assert len(after) == 4


def test_fedavg_after_training_is_one_step_of_local_ahead(store: Engine) -> None:
    """In round 1 FedAvg's clients train what Local's train."""
    after, headline = trained_and_received(store, "fedavg", 5)
    run(short("local"), store)
    (local,) = rows(store, "SELECT accuracy FROM round WHERE run_id = 2 AND round = 1")
    assert after[0] == local[0] != headline[0]


def test_it_resumes_with_the_same_rows(store: Engine) -> None:
    how = {"test_after_training": True}
    made = short("fedala", val_share=0.2, eval_repeats=2)
    interrupted(made, store, 2, Execution(workers=1, checkpoint_every=0, **how))  # type: ignore[arg-type]
    run(made, store, **how)
    run(made, store, force=True, **how)
    assert numbers(store, 1) == numbers(store, 2)
    costs = [rows(store, f"SELECT flops, val_accuracy FROM round WHERE run_id = {i} ORDER BY round") for i in (1, 2)]
    assert costs[0] == costs[1]
    assert None not in [flops for flops, _ in costs[0][1:]]


def test_both_moments_are_made_again(store: Engine) -> None:
    made = short("fedavg", val_share=0.2, new_clients=2)
    run(made, store, test_after_training=True)
    found = repeat(store, runs.find(store, 1), made, Path("data"), Execution(workers=1))
    assert (found.difference, found.last) == (None, 4)
    with db.writing(store) as connection:
        connection.exec_driver_sql("UPDATE new_client SET correct = correct - 1 WHERE client = 4 AND epochs = 2")
    found = repeat(store, runs.find(store, 1), made, Path("data"), Execution(workers=1))
    assert str(found.difference).startswith("round 4, correct of client 4 after 2 epochs: ")


def test_validation_is_evaluated_with_the_headline() -> None:
    chosen = methods.make(methods.spec("fedavg", {}))
    fed = federation("mlp")
    fed.validation_indices = [of[:3] for of in fed.train_indices]
    state = chosen.init(fed.at(0))
    now, S = fed.at(1, receiving=True), fed.all_trainable()
    found = evaluate(chosen, now, state, chosen.receive(now, state, S), S)
    assert found[VALIDATION].total.tolist() == [3, 3, 3, 3]
