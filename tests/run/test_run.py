"""The round loop: rows, moments, errors, and what is told of it."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from sqlalchemy import text
from support.runs import COLUMNS, rows, run, short, spec
from support.spies import on_call

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


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_a_run_leaves_no_tensors_in_cycles(store, engine):
    """They would stay in memory, a model of every client for each round, until Python looks for cycles."""
    run(short("fedavg", rounds=1), store, engine=engine)  # what the first one loads and keeps
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for name in METHODS:
            run(short(name, rounds=2), store, engine=engine)
        gc.collect()
        assert not [tuple(left.shape) for left in gc.garbage if isinstance(left, torch.Tensor)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


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
    begin = fed.buffers_of("model").clone()
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
    assert torch.equal(after_reset[S], begin[S] if rule == "reset" else begin[S] + 1)
    assert torch.equal(after_reset[outside], begin[outside] + 1)
    if rule == "average":
        mean = (fed.n[S].unsqueeze(1) * trained[S]).sum(0) / fed.n[S].sum()
        torch.testing.assert_close(after, mean.expand_as(after))
        assert now.ledger.traffic[:, SCALARS_UP].sum() == begin.shape[1] * len(S)
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

    on_call(monkeypatch, FedALA, "update", lambda method, fed, *_: 1 / (fed.t - 3))
    with pytest.raises(ZeroDivisionError):
        run(short(), store)
    assert rows(store, "SELECT status, message FROM run") == [("failed", "ZeroDivisionError: division by zero")]
    monkeypatch.undo()
    assert run(short(), store)[0].kind == "resumed"


def test_the_run_record_says_how_it_was_made(store):
    run(spec("fedavg"), store, command="pflbench run -m fedavg")
    with store.connect() as connection:
        row = connection.execute(text("SELECT * FROM run")).mappings().one()
    assert row["engine"] == "loop"
    assert row["parameters"] == 4810
    assert row["started_at"] <= row["finished_at"]
    for needed in ("torch", "commit", "python", "pflbench run -m fedavg"):
        assert needed in row["environment"]
