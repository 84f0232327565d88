"""The round loop: rows, moments, errors, and what is told of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sqlalchemy import text
from support.runs import COLUMNS, numbers, rows, run, short, spec

from pflbench import methods
from pflbench.engine.federation import SCALARS_UP
from pflbench.errors import Diverged, UserError
from pflbench.methods import METHODS
from pflbench.run.execution import Execution
from pflbench.run.federation_data import load_federation_data
from pflbench.run.prepared import prepare
from pflbench.run.training import execute


def test_rows(store):
    steps = run(spec("fedavg"), store)
    assert [s.kind for s in steps] == ["started", *["round"] * 7, "finished"]
    found = rows(store, f"SELECT {COLUMNS} FROM round ORDER BY round")
    assert [r[0] for r in found] == list(range(7))
    sigma, participants = 64 * 65 + 65 * 10, 5
    assert found[0][5:] == (None, None, None, None, None), "the initial model has cost nothing"
    for row in found[1:]:
        assert row[6:] == (participants, participants * sigma, participants * sigma, 8 * participants * sigma)
    pooled = rows(store, "SELECT round, SUM(correct) * 1.0 / SUM(total) FROM client_round GROUP BY round")
    assert [r[1] for r in found] == pytest.approx([p[1] for p in pooled])
    assert found[-1][1] > 0.7 > 0.2 > found[0][1]
    assert rows(store, "SELECT DISTINCT total FROM client_round WHERE client = 0")[0][0] > 0


@pytest.mark.parametrize("name", METHODS)
def test_what_is_evaluated_is_what_was_received(store, name):
    """Row 0 is the initial model, as the reception of round 1 leaves it with each client (methods.md 0.2)."""
    this = short(name, rounds=1)
    run(this, store)
    prepared = prepare(this, load_federation_data(this, Path("data")), torch.device("cpu"), Execution(workers=1))
    fed = prepared.federation().at(1)
    method = methods.make(this.method)
    received = method.receive(fed, method.init(fed), fed.cohort(1))
    expected = fed.evaluate(method.deployed(received), torch.arange(fed.size), method.tested_model)
    assert rows(store, "SELECT accuracy, test_loss FROM round WHERE round = 0") == [(expected.accuracy, expected.mean_loss)]
    assert rows(store, "SELECT train_loss FROM round WHERE round = 1")[0][0] > 0
    fed.executor.close()


def test_evaluation_at_intervals(store):
    run(spec("fedavg", rounds=7, eval_every=3), store)
    evaluated = rows(store, "SELECT round FROM round WHERE accuracy IS NOT NULL")
    assert [r[0] for r in evaluated] == [0, 3, 6, 7], "the last round is always evaluated"
    assert rows(store, "SELECT COUNT(*) FROM round WHERE train_loss IS NOT NULL")[0][0] == 7


@pytest.mark.parametrize(("evaluate", "expected"), [("participants", 2), ("all", 5)])
def test_partial_participation(store, evaluate, expected):
    run(short("fedala", rounds=3, join_ratio=0.5, evaluate=evaluate), store)
    per_round = rows(store, "SELECT round, COUNT(*) FROM client_round GROUP BY round")
    assert {n for _, n in per_round} == {expected}
    assert rows(store, "SELECT DISTINCT participants FROM round WHERE round > 0") == [(2,)]


def test_cohorts_do_not_depend_on_the_method(store):
    cohorts = []
    for name in ("fedavg", "fedala", "ditto"):
        run_id = run(short(name, rounds=6, join_ratio=0.5), store)[-1].run_id
        cohorts.append(rows(store, f"SELECT round, client FROM client_round WHERE run_id = {run_id} ORDER BY 1, 2"))
    assert cohorts[0] == cohorts[1] == cohorts[2]
    assert len({c for _, c in cohorts[0]}) > 2


def test_both_executors_write_the_same_rows(store):
    for name in ("ditto", "fedala"):
        a = numbers(store, run(short(name), store, engine="loop")[-1].run_id)
        b = numbers(store, run(short(name), store, engine="batched", force=True)[-1].run_id)
        for first, second in zip(a[:3], b[:3], strict=True):
            assert first == [pytest.approx(row, abs=1e-10) if None not in row else row for row in second]
        assert a[3] == b[3]


def test_a_finished_run_is_not_run_again(store):
    first = run(short(), store)
    again = run(short(), store)
    assert [(s.kind, s.run_id) for s in again] == [("exists", first[-1].run_id)]


def test_force_keeps_the_old_run(store):
    first, second = run(short(), store), run(short(), store, force=True)
    assert rows(store, "SELECT id, attempt, status FROM run") == [
        (first[-1].run_id, 1, "finished"),
        (second[-1].run_id, 2, "finished"),
    ]
    assert numbers(store, first[-1].run_id) == numbers(store, second[-1].run_id), "the same command gives the same rows"


def test_two_starts_of_a_new_run_make_one(store):
    """The second process looks when the first has not finished, and finds its result when it is let in."""
    first = execute(short(), store, Path("data"), Execution(workers=1))
    next(first)
    with pytest.raises(UserError, match="Another process"):
        next(execute(short(), store, Path("data"), Execution(workers=1)))
    list(first)
    assert [s.kind for s in run(short(), store)] == ["exists"]
    assert rows(store, "SELECT COUNT(*) FROM run") == [(1,)]


def test_nothing_to_train_on(store):
    with pytest.raises(UserError, match="No client has a single batch"):
        run(spec(batch_size=5000, drop_last="always"), store)


@pytest.mark.parametrize("rule", ["local", "average", "reset"])
def test_batch_norm_buffers(rule):
    from pflbench.contract.small import federation

    fed = federation("batchnorm", bn_buffers=rule, join_ratio=0.5)
    before = fed.buffers_of("model").clone()
    fed.buffers_of("model")[:] += 1.0
    now = fed.at(1)
    S = now.cohort(1)
    outside = [i for i in range(fed.size) if i not in S.tolist()]
    now.reset_buffers(S, ("model",))
    after_reset = fed.buffers_of("model").clone()
    now.sgd(fed.initial().expand(len(S), -1), S)
    trained = fed.buffers_of("model").clone()
    now.average_buffers(S, ("model",))
    after = fed.buffers_of("model")
    assert torch.equal(after_reset[S], before[S] if rule == "reset" else before[S] + 1)
    assert torch.equal(after_reset[outside], before[outside] + 1)
    if rule == "average":
        mean = (fed.n[S].unsqueeze(1) * trained[S]).sum(0) / fed.n[S].sum()
        torch.testing.assert_close(after, mean.expand_as(after))
        assert now.ledger.traffic[:, SCALARS_UP].sum() == before.shape[1] * len(S)
    else:
        assert torch.equal(after, trained)
        assert now.ledger.traffic[:, SCALARS_UP].sum() == 0


def test_a_diverging_run_names_method_client_and_round(store):
    with pytest.raises(Diverged, match=r"fedprox, seed 3: client \d+ .* round \d+"):
        run(spec("fedprox", seed=3, lr=1e180), store)
    (status, message) = rows(store, "SELECT status, message FROM run")[0]
    assert status == "diverged"
    assert "client" in message
    assert rows(store, "SELECT COUNT(*) FROM round")[0][0] >= 1, "what was measured before is kept"
    with pytest.raises(Diverged, match="client"):
        run(spec("fedprox", seed=3, lr=1e180), store)


def test_an_error_inside_marks_the_run_failed_and_keeps_a_checkpoint(store, monkeypatch):
    from pflbench.methods.fedala import FedALA

    original = FedALA.update
    monkeypatch.setattr(FedALA, "update", lambda m, f, s, S: 1 / 0 if f.t == 3 else original(m, f, s, S))
    with pytest.raises(ZeroDivisionError):
        run(short(), store)
    assert rows(store, "SELECT status, message FROM run") == [("failed", "ZeroDivisionError: division by zero")]
    monkeypatch.undo()
    assert run(short(), store)[0].kind == "resumed"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there(store):
    with pytest.raises(UserError, match="sees no GPU here"):
        list(execute(spec(), store, Path("data"), Execution(device="cuda")))
    assert rows(store, "SELECT COUNT(*) FROM run") == [(0,)]


@pytest.mark.parametrize("device", ["tpu", "meta", "gpu:0"])
def test_an_unknown_device(store, device):
    with pytest.raises(UserError, match=r"device|Device"):
        list(execute(spec(), store, Path("data"), Execution(device=device)))


def test_the_run_record_says_how_it_was_made(store):
    run(spec("fedavg"), store, command="pflbench run -m fedavg")
    with store.connect() as connection:
        row = connection.execute(text("SELECT * FROM run")).mappings().one()
    assert row["engine"] == "loop"
    assert row["parameters"] == 4810
    assert row["started_at"] <= row["finished_at"]
    for needed in ("torch", "commit", "python", "pflbench run -m fedavg"):
        assert needed in row["environment"]


def test_partitions_are_stored_once_and_do_not_depend_on_method_or_seed(store):
    for name, seed in (("fedavg", 0), ("fedavg", 1), ("ditto", 0)):
        run(spec(name, seed=seed, rounds=1), store)
    assert rows(store, "SELECT COUNT(*), COUNT(DISTINCT partition_id) FROM run") == [(3, 1)]
    assert rows(store, "SELECT COUNT(*) FROM partition") == [(1,)]
