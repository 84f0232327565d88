"""After any kind of end a run goes on as if nothing had been."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.cases import rest_slow
from support.runs import BatchNormOnDigits, interrupted, numbers, rows, run, short

from pflbench.errors import Occupied, UserError
from pflbench.methods import METHODS
from pflbench.methods.ditto import Ditto
from pflbench.run.checkpoint import _digest
from pflbench.run.execution import Execution
from pflbench.run.federation_data import FederationData
from pflbench.run.places import Folder
from pflbench.run.training import execute
from pflbench.store import database as db
from pflbench.store import write
from pflbench.store.failures import sqlite_path


@pytest.mark.parametrize("name", rest_slow(METHODS, "fedavg", "fedala", "ditto", "apple", "fedphp", "per-fedavg"))
def test_an_interrupted_run_goes_on_as_if_nothing_had_been(store, name, tmp_path):
    """First from the checkpoint that the interrupt leaves, then from one of those that are made after each round."""
    wished = short(name)
    whole = run(wished, store)[-1].run_id
    for reached, every in ((1, 1e9), (2, 0.0)):
        begun, *_ = interrupted(wished, store, reached, Execution(workers=1, checkpoint_every=every), force=True)
        assert (begun.kind, begun.round) == (("started", 0) if reached == 1 else ("resumed", 1))
        assert rows(store, "SELECT status FROM run WHERE attempt = 2") == [("interrupted",)]
        assert rows(store, "SELECT MAX(round) FROM round JOIN run ON run.id = run_id WHERE attempt = 2") == [(reached,)]
    resumed = run(wished, store, force=True)
    assert resumed[0].kind == "resumed"
    assert resumed[0].round == 2
    assert numbers(store, resumed[-1].run_id) == numbers(store, whole)
    assert rows(store, "SELECT status FROM run") == [("finished",)] * 2
    assert list(tmp_path.glob("*.checkpoints/*.pt")) == []


KEPT = {"optimizer": "adamw", "lr": 0.01, "optimizer_state": "kept", "lr_schedule": "cosine", "join_ratio": 0.6}


@pytest.mark.parametrize("name", [pytest.param("ditto"), pytest.param("fedavg-c", marks=pytest.mark.slow)])
def test_what_an_optimizer_keeps_is_in_the_checkpoint(store, name):
    wished = short(name, **KEPT)
    whole = run(wished, store)[-1].run_id
    interrupted(wished, store, 2, Execution(workers=1, checkpoint_every=1e9), force=True)
    resumed = run(wished, store, force=True)
    assert (resumed[0].kind, resumed[0].round) == ("resumed", 2)
    assert numbers(store, resumed[-1].run_id) == numbers(store, whole)
    fresh = run(short(name, **KEPT | {"optimizer_state": "fresh"}), store)[-1].run_id
    sent = "SELECT bytes_up, bytes_down FROM round WHERE run_id = {} ORDER BY round"
    assert rows(store, sent.format(fresh)) == rows(store, sent.format(whole)), "what is kept does not travel"
    assert numbers(store, fresh) != numbers(store, whole)


@pytest.mark.parametrize("kept", [0.02, 0.5])
def test_a_damaged_checkpoint_costs_time_and_no_more(store, tmp_path, kept):
    """Of one that is cut off in the middle PyTorch reads from before its beginning, which is an OSError."""
    interrupted(short(), store, 1)
    (checkpoint,) = tmp_path.glob("*.checkpoints/*.pt")
    checkpoint.write_bytes(checkpoint.read_bytes()[: int(kept * checkpoint.stat().st_size)])
    told = run(short(), store)
    assert told[0].kind == "started"
    assert [text for step in told for text in step.news] == ["its checkpoint is damaged: the run starts over."]
    assert rows(store, "SELECT MIN(round), MAX(round), COUNT(*) FROM round") == [(0, 4, 5)]


FORGED = {
    "no hash": ({"sha256": None}, "is damaged"),
    "another round": ({"t": 1}, "is of round 1, which the database does not have"),
    "a round to come": ({"t": 3}, "is of round 3, which the database does not have"),
    "another run": ({"owner": "another"}, "is another run's"),
}


@pytest.mark.parametrize(("change", "said"), FORGED.values(), ids=FORGED)
def test_a_checkpoint_that_is_not_the_runs_own_is_said(store, tmp_path, change, said):
    """With a right hash: what it says is not true of this run. Believed, it makes wrong rounds."""
    whole = run(short(), store)[-1].run_id
    interrupted(short(), store, 2, force=True)
    (path,) = tmp_path.glob("*.checkpoints/*.pt")
    content = {**torch.load(path, weights_only=True), **change}
    content = {name: value for name, value in content.items() if value is not None}
    torch.save({**content, "sha256": _digest(content)} if "sha256" in content else content, path)
    told = run(short(), store, force=True)
    assert [text for step in told for text in step.news] == [f"its checkpoint {said}: the run starts over."]
    assert numbers(store, told[-1].run_id) == numbers(store, whole)


def test_a_checkpoint_that_cannot_be_read_now_costs_nothing(store, monkeypatch):
    """As a network that is away: to begin anew would take the rounds that are there."""
    interrupted(short(), store, 2)

    def away(self, name):
        raise OSError(5, "the network is away")

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "read", away)
        with pytest.raises(UserError, match=r"cannot be read from .*: the network is away"):
            run(short(), store)
    assert rows(store, "SELECT COUNT(*) FROM round") == [(3,)]
    resumed = run(short(), store)
    assert (resumed[0].kind, resumed[0].round) == ("resumed", 2)


def test_a_checkpoint_that_is_not_there_is_told(store, tmp_path):
    interrupted(short(), store, 2)
    (checkpoint,) = tmp_path.glob("*.checkpoints/*.pt")
    checkpoint.unlink()
    told = [text for step in run(short(), store) for text in step.news]
    assert told == [f"there is no checkpoint of it in {checkpoint.parent}: the run starts over."]


def test_a_database_by_two_names_is_one(store, tmp_path):
    """A symbolic link to it: the same lock, and the same checkpoint."""
    link = tmp_path / "link.db"
    link.symlink_to(sqlite_path(store.url))
    other = db.connect(db.to_url(str(link)))
    steps = execute(short(), store, Path("data"), Execution(workers=1))
    next(steps), next(steps), next(steps)
    with pytest.raises(Occupied):
        next(execute(short(), other, Path("data"), Execution(workers=1)))
    steps.close()
    assert [(step.kind, step.round) for step in run(short(), other)[:1]] == [("resumed", 1)]
    other.dispose()


def test_a_checkpoint_is_never_taken_over_by_another_run(store, tmp_path):
    """The checkpoint of a run that was removed lies under a number that a server, or another file's run, may have."""
    expected = numbers(store, run(short(seed=1), store)[-1].run_id)
    interrupted(short(seed=0), store, 1)
    write.remove_run(store, 2)
    (left,) = tmp_path.glob("*.checkpoints/2.pt")
    left.rename(left.with_name("3.pt"))
    again = run(short(seed=1), store, force=True)
    assert (again[0].run_id, again[0].kind) == (3, "started")
    assert numbers(store, 3) == expected


def test_interrupted_twice_with_batch_norm(store, monkeypatch):
    """BatchNorm buffers change in place; the snapshot that an interrupt saves must be that of the last whole round."""
    monkeypatch.setattr(FederationData, "model", lambda *_: BatchNormOnDigits())
    whole = numbers(store, run(short("ditto"), store)[-1].run_id)
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
            run(short("ditto"), store, force=True)
        assert rows(store, "SELECT status FROM run WHERE id = 2") == [("interrupted",)]
    resumed = run(short("ditto"), store, force=True)
    assert (resumed[0].kind, resumed[0].round) == ("resumed", 2)
    assert numbers(store, 2) == whole


def test_a_full_disk_under_the_checkpoint(store, monkeypatch):
    def full(*_):
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(UserError, match=r"checkpoint .* could not be written") as caught:
        run(short(), store, checkpoint_every=0)
    assert "in the database" in caught.value.hint
    assert rows(store, "SELECT status, (SELECT COUNT(*) FROM round) FROM run") == [("failed", 1)]
    monkeypatch.undo()
    assert run(short(), store)[-1].kind == "finished"
