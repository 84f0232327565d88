"""The round loop: rows, moments, resuming after any kind of end, and what is told of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from sqlalchemy import text

from pflbench import methods
from pflbench.errors import Diverged, UserError
from pflbench.execution import Execution, federation
from pflbench.methods import METHODS
from pflbench.run import execute
from pflbench.setting import load_setting
from pflbench.spec import DataSpec, Dirichlet, RunSpec, TrainSpec
from pflbench.store import db, write

COLUMNS = "round, accuracy, accuracy_mean, accuracy_std, test_loss, train_loss, participants, params_up, params_down, bytes_up"


def spec(method="fedala", *, seed=0, set=None, clients=5, **train) -> RunSpec:
    settings = {"rounds": 6, "lr": 0.1, "batch_size": 32, "dtype": "float64", **train}
    return RunSpec(
        data=DataSpec(name="digits"),
        partition=Dirichlet(clients=clients, beta=0.5),
        model="mlp",
        train=TrainSpec(**settings),
        method=methods.spec(method, set or {}),
        seed=seed,
    )


@pytest.fixture
def store(tmp_path):
    return db.connect(db.to_url(str(tmp_path / "results.db")))


def run(spec, store, **options):
    return list(execute(spec, store, Path("data"), Execution(engine=options.pop("engine", "loop"), workers=1), **options))


def rows(store, query):
    with store.connect() as connection:
        return [tuple(row) for row in connection.execute(text(query))]


def numbers(store, run_id):
    """All that must not depend on when, where and how often a run was interrupted."""
    return (
        rows(store, f"SELECT {COLUMNS} FROM round WHERE run_id = {run_id} ORDER BY round"),
        rows(store, f"SELECT round, client, correct, total, loss FROM client_round WHERE run_id = {run_id} ORDER BY 1, 2"),
        rows(store, f"SELECT name, round, accuracy, test_loss FROM series WHERE run_id = {run_id} ORDER BY 1, 2"),
        rows(store, f"SELECT round, name, dtype, shape, data FROM artifact WHERE run_id = {run_id} ORDER BY 1, 2"),
    )


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
    this = spec(name, rounds=1)
    run(this, store)
    fed = federation(this, load_setting(this, Path("data")), torch.device("cpu"), Execution(workers=1)).at(1)
    method = methods.make(this.method)
    received = method.receive(fed, method.init(fed), fed.cohort(1))
    expected = fed.evaluate(method.deployed(received), torch.arange(fed.size), method.slot)
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
    run(spec("fedala", join_ratio=0.5, evaluate=evaluate), store)
    per_round = rows(store, "SELECT round, COUNT(*) FROM client_round GROUP BY round")
    assert {n for _, n in per_round} == {expected}
    assert rows(store, "SELECT DISTINCT participants FROM round WHERE round > 0") == [(2,)]


def test_cohorts_do_not_depend_on_the_method(store):
    cohorts = []
    for name in ("fedavg", "fedala", "ditto"):
        run_id = run(spec(name, join_ratio=0.5), store)[-1].run_id
        cohorts.append(rows(store, f"SELECT round, client FROM client_round WHERE run_id = {run_id} ORDER BY 1, 2"))
    assert cohorts[0] == cohorts[1] == cohorts[2]
    assert len({c for _, c in cohorts[0]}) > 2


def test_both_executors_write_the_same_rows(store):
    for name in ("ditto", "fedala"):
        a = numbers(store, run(spec(name), store, engine="loop")[-1].run_id)
        b = numbers(store, run(spec(name), store, engine="batched", force=True)[-1].run_id)
        for first, second in zip(a[:3], b[:3], strict=True):
            assert first == [pytest.approx(row, abs=1e-10) if None not in row else row for row in second]
        assert a[3] == b[3]


def test_a_finished_run_is_not_run_again(store):
    first = run(spec(), store)
    again = run(spec(), store)
    assert [(s.kind, s.run_id) for s in again] == [("exists", first[-1].run_id)]


def test_force_keeps_the_old_run(store):
    first, second = run(spec(), store), run(spec(), store, force=True)
    assert rows(store, "SELECT id, attempt, status FROM run") == [
        (first[-1].run_id, 1, "finished"),
        (second[-1].run_id, 2, "finished"),
    ]
    assert numbers(store, first[-1].run_id) == numbers(store, second[-1].run_id), "the same command gives the same rows"


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("checkpoint_every", [0.0, 1e9])
def test_an_interrupted_run_goes_on_as_if_nothing_had_been(store, name, checkpoint_every, tmp_path):
    whole = run(spec(name, set={}), store)[-1].run_id
    steps = execute(spec(name), store, Path("data"), Execution(workers=1), force=True, checkpoint_every=checkpoint_every)
    for step in steps:
        if step.kind == "round" and step.round == 3:
            break
    steps.close()
    assert rows(store, "SELECT status FROM run WHERE attempt = 2") == [("interrupted",)]
    assert rows(store, "SELECT MAX(round) FROM round JOIN run ON run.id = run_id WHERE attempt = 2") == [(3,)]
    resumed = run(spec(name), store)
    assert resumed[0].kind == "resumed"
    assert resumed[0].round == 3
    assert numbers(store, resumed[-1].run_id) == numbers(store, whole)
    assert rows(store, "SELECT status FROM run") == [("finished",)] * 2
    assert list(tmp_path.glob("*.checkpoints/*.pt")) == []


def test_ctrl_c_in_the_middle_of_a_round(store, monkeypatch):
    from pflbench.methods.fedala import FedALA

    whole = run(spec(), store)[-1].run_id
    original, calls = FedALA.update, []

    def update(self, fed, s, S):
        done = original(self, fed, s, S)
        calls.append(fed.t)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(FedALA, "update", update)
    with pytest.raises(KeyboardInterrupt):
        run(spec(), store, force=True)
    assert rows(store, "SELECT status FROM run WHERE attempt = 2") == [("interrupted",)]
    resumed = run(spec(), store)
    assert (resumed[0].kind, resumed[0].round) == ("resumed", 2)
    assert numbers(store, resumed[-1].run_id) == numbers(store, whole)


KILLED = """
import sys
from pathlib import Path
from test_run import spec
from pflbench.execution import Execution, federation
from pflbench.run import execute
from pflbench.store import db
store = db.connect(sys.argv[1])
for step in execute(spec("ditto", rounds=60), store, Path("data"), Execution(workers=2), checkpoint_every=0.05):
    print(step.round, flush=True)
"""


def test_kill_9_and_resume(store, tmp_path):
    """Killed in the middle: what was committed is there; resumed, it ends with exactly the numbers of an uninterrupted run."""
    url = str(store.url)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])}
    child = subprocess.Popen([sys.executable, "-c", KILLED, url], stdout=subprocess.PIPE, text=True, env=environment)
    assert child.stdout is not None
    reached = 0
    for line in child.stdout:
        reached = int(line)
        if reached >= 12 and list(tmp_path.glob("*.checkpoints/*.pt")):
            break
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    status, last = rows(store, "SELECT status, (SELECT MAX(round) FROM round) FROM run")[0]
    assert status == "running"
    assert reached <= last < 60
    resumed = run(spec("ditto", rounds=60), store)
    assert resumed[0].kind == "resumed"
    assert 0 < resumed[0].round <= last
    whole = run(spec("ditto", rounds=60), store, force=True)
    assert numbers(store, resumed[-1].run_id) == numbers(store, whole[-1].run_id)


def test_a_damaged_checkpoint_costs_time_and_no_more(store, tmp_path):
    steps = execute(spec(), store, Path("data"), Execution(workers=1))
    next(steps), next(steps), next(steps)
    steps.close()
    (checkpoint,) = tmp_path.glob("*.checkpoints/*.pt")
    checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
    assert run(spec(), store)[0].kind == "started"
    assert rows(store, "SELECT MIN(round), MAX(round), COUNT(*) FROM round") == [(0, 6, 7)]


def test_a_checkpoint_is_never_taken_over_by_another_run(store, tmp_path):
    """Run numbers come back after `runs rm`; whoever has the number then must not go on from a stranger's model."""
    expected = numbers(store, run(spec(seed=1), store)[-1].run_id)
    steps = execute(spec(seed=0), store, Path("data"), Execution(workers=1))
    next(steps), next(steps), next(steps)
    steps.close()
    write.remove_run(store, 2)
    assert list(tmp_path.glob("*.checkpoints/2.pt"))
    again = run(spec(seed=1), store, force=True)
    assert (again[0].run_id, again[0].kind) == (2, "started")
    assert numbers(store, 2) == expected


def test_a_checkpoint_newer_than_the_database_is_not_used(store):
    """A power failure may take the last commits: the rounds between would be missing for ever."""
    whole = numbers(store, run(spec(), store)[-1].run_id)
    steps = execute(spec(), store, Path("data"), Execution(workers=1), force=True)
    for _ in range(4):
        next(steps)
    steps.close()
    write.rewind(store, 2, 1)
    assert run(spec(), store)[0].kind == "started"
    assert numbers(store, 2) == whole


def test_interrupted_twice_with_batch_norm(store, monkeypatch):
    """BatchNorm buffers change in place; the snapshot that an interrupt saves must be that of the last whole round."""
    import small

    from pflbench import execution
    from pflbench.methods.ditto import Ditto

    class Net(small.BatchNormNet):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.output = torch.nn.Linear(64, 6), torch.nn.Linear(6, 10)

        def features(self, x):
            return super().features(x.flatten(1))

    monkeypatch.setattr(execution, "build", lambda *_: Net())
    whole = numbers(store, run(spec("ditto"), store)[-1].run_id)
    original, stop_at = Ditto.update, [3, 3, 99]

    def update(self, fed, s, S):
        done = original(self, fed, s, S)
        if fed.t == stop_at[0]:
            stop_at.pop(0)
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(Ditto, "update", update)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(spec("ditto"), store, force=not rows(store, "SELECT 1 FROM run WHERE id = 2"))
    resumed = run(spec("ditto"), store)
    assert (resumed[0].kind, resumed[0].round) == ("resumed", 2)
    assert numbers(store, 2) == whole


def test_a_full_disk_under_the_checkpoint(store, monkeypatch):
    def full(*_):
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(UserError, match=r"checkpoint .* could not be written") as caught:
        run(spec(), store, checkpoint_every=0)
    assert "in the database" in caught.value.hint
    assert rows(store, "SELECT status, (SELECT COUNT(*) FROM round) FROM run") == [("failed", 1)]
    monkeypatch.undo()
    assert run(spec(), store)[-1].kind == "finished"


def test_two_starts_of_a_new_run_make_one(store):
    """The second process looks when the first has not finished, and finds its result when it is let in."""
    first = execute(spec(), store, Path("data"), Execution(workers=1))
    next(first)
    with pytest.raises(UserError, match="Another process"):
        next(execute(spec(), store, Path("data"), Execution(workers=1)))
    list(first)
    assert [s.kind for s in run(spec(), store)] == ["exists"]
    assert rows(store, "SELECT COUNT(*) FROM run") == [(1,)]


def test_nothing_to_train_on(store):
    with pytest.raises(UserError, match="No client has a single batch"):
        run(spec(batch_size=5000, drop_last="always"), store)


@pytest.mark.parametrize("rule", ["local", "average", "reset"])
def test_batch_norm_buffers(rule):
    from small import federation

    fed = federation("batchnorm", bn_buffers=rule, join_ratio=0.5)
    before = fed._buffers("model").clone()
    fed._buffers("model")[:] += 1.0
    now = fed.at(1)
    S = now.cohort(1)
    outside = [i for i in range(fed.size) if i not in S.tolist()]
    now.reset_buffers(S, ("model",))
    after_reset = fed._buffers("model").clone()
    now.sgd(fed.initial().expand(len(S), -1), S)
    trained = fed._buffers("model").clone()
    now.average_buffers(S, ("model",))
    after = fed._buffers("model")
    assert torch.equal(after_reset[S], before[S] if rule == "reset" else before[S] + 1)
    assert torch.equal(after_reset[outside], before[outside] + 1)
    if rule == "average":
        mean = (fed.n[S].unsqueeze(1) * trained[S]).sum(0) / fed.n[S].sum()
        torch.testing.assert_close(after, mean.expand_as(after))
        assert now.ledger.traffic.scalars_up.sum() == before.shape[1] * len(S)
    else:
        assert torch.equal(after, trained)
        assert now.ledger.traffic.scalars_up.sum() == 0


def test_two_processes_do_not_run_the_same_run(store):
    first = execute(spec(), store, Path("data"), Execution(workers=1))
    next(first)
    with pytest.raises(UserError, match="Another process is at this run"):
        run(spec(), store)
    assert list(first)[-1].kind == "finished"


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
        run(spec(), store)
    assert rows(store, "SELECT status, message FROM run") == [("failed", "ZeroDivisionError: division by zero")]
    monkeypatch.undo()
    assert run(spec(), store)[0].kind == "resumed"


def test_out_of_gpu_memory_says_what_helps(store, monkeypatch):
    from pflbench.methods.fedavg import FedAvg

    def update(*_):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr(FedAvg, "update", update)
    with pytest.raises(UserError, match="Out of GPU memory") as caught:
        run(spec("fedavg"), store, engine="batched")
    assert "--chunk" in caught.value.hint
    assert rows(store, "SELECT status, message FROM run") == [("failed", "out of GPU memory")]


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
