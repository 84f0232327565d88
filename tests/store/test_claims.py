"""One of many makes a run: claims in the database, which end with their process, and who is at a run on either database."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine
from support.command import Shell
from support.store_samples import make_record, make_spec, write_round

from pflbench.errors import Occupied
from pflbench.store import claims, locks, runs, write
from pflbench.store import database as db
from pflbench.store.claims import Claim

KEY = make_spec().key
DIE = f"UPDATE claim SET beat_at = now() - interval '{claims.EXPIRY + 1} seconds'"


@pytest.fixture
def shared(server: Any) -> Any:
    engine = db.connect(url := server.new())
    yield engine
    engine.dispose()
    server.drop(url)


def sql(engine: Engine, statement: str) -> list[tuple[Any, ...]]:
    with engine.begin() as connection:
        found = connection.execute(sa.text(statement))
        return [tuple(row) for row in found] if found.returns_rows else []


def taken(claim: Claim) -> bool:
    try:
        claim.take()
    except Occupied:
        return False
    return True


def test_one_of_many_gets_a_run_also_when_its_holder_is_dead(shared: Engine) -> None:
    for round in range(3):
        candidates = [Claim(shared, KEY) for _ in range(8)]
        with ThreadPoolExecutor(8) as pool:
            got = [claim for claim, took in zip(candidates, pool.map(taken, candidates), strict=True) if took]
        assert len(got) == 1, round
        assert sql(shared, "SELECT owner FROM claim") == [(got[0].owner,)]
        with shared.begin() as connection:
            got[0].require(connection)
        assert taken(got[0]), "one that did not hear that it has it"
        sql(shared, DIE)
    last = candidates.pop()
    assert taken(last)
    with shared.begin() as connection, pytest.raises(Occupied, match="taken this run over"):
        got[0].require(connection)
    got[0].beat()
    got[0].release()
    assert sql(shared, "SELECT owner FROM claim") == [(last.owner,)]


def test_nobody_takes_over_between_a_look_and_a_commit(shared: Engine) -> None:
    holder, other = Claim(shared, KEY), Claim(shared, KEY)
    holder.take()
    sql(shared, DIE)
    with shared.begin() as connection:
        holder.require(connection)
        assert not taken(other)
    assert taken(other)


def test_a_heart_beats_until_the_run_is_over(shared: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "BEAT", 0.02)
    with locks.locked(shared, KEY):
        sql(shared, DIE)
        deadline = time.monotonic() + 10
        while not claims.held(shared):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with pytest.raises(Occupied, match=r"process [0-9]+"), locks.locked(shared, KEY):
            pass
    assert sql(shared, "SELECT * FROM claim") == []


@pytest.mark.servers("fast")
def test_a_run_under_way_is_running_where_a_process_is_at_it_and_not_removed(store: Engine, shell: Shell) -> None:
    run = write.create_run(store, make_spec(), {})
    write.update_run(store, run, status="running")
    write_round(store, run, make_record(0))
    url = store.url.render_as_string(hide_password=False)
    with locks.locked(store, KEY):
        assert runs.find(store, run).status == "running"
        assert "is under way" in shell.refused("runs", "rm", str(run), "--yes", "--db", url)
    assert runs.find(store, run).status == "interrupted"
    assert [one.status for one in runs.listed(store, runs.ALL, status="interrupted")] == ["interrupted"]
    assert shell("runs", "rm", str(run), "--yes", "--db", url).code == 0
    assert runs.listed(store, runs.ALL) == []
