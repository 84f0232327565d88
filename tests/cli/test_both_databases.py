"""Commands that read, on an SQLite file and on a PostgreSQL database with the same rows: they say the same."""

from __future__ import annotations

import json
import re
import sqlite3
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from golden.raw import unpack
from sqlalchemy import Engine
from support.command import Shell
from support.postgres import PASSWORD, Server
from support.site_database import RUNNING, fill, serving
from support.store_samples import make_spec, write_round

from pflbench.cli import main
from pflbench.report.declared import PLOTS, TABLES
from pflbench.site import serve
from pflbench.spec import RunSpec
from pflbench.store import database as db
from pflbench.store import runs, sweeps
from pflbench.store.write import RoundRecord

# The runs of one setting, and one with arrays.
SOME = "dataset LIKE 'fashionmnist%' AND partition_label = 'IID' OR id = 27"
READS = [
    ("runs", "list"),
    ("runs", "show", "113"),
    ("runs", "artifact", "27", "ala_weights"),
    ("partition", "show", "--run", "113"),
    *(("export", kind) for kind in ("runs", "rounds", "clients")),
    ("db", "check"),
    ("sweep", "list"),
    ("sweep", "status", "two"),
    *(("table", "accuracy", *options) for options in ((), ("--round-rule", "last"), ("--round-rule", "mean-last:3", "--json"))),
    ("table", "overhead", "--json"),
    ("plot", "ala-weights", "-o", "figure.svg"),
]


def copied(path: Path, server: Server) -> str:
    """The URL of a database with the same rows."""
    assert main(["db", "upgrade", "--db", str(path)]) == 0
    url = server.new(filled=False)
    assert main(["db", "copy", str(path), url, "--quiet"]) == 0
    return url


@pytest.fixture(scope="module")
def both(server: Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    path = unpack(tmp_path_factory.mktemp("both") / "results.db")
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute(f"DELETE FROM run WHERE NOT ({SOME})")
    connection.close()
    engine = db.connect(db.to_url(str(path)))
    sweeps.save(engine, "two", [RunSpec.model_validate(runs.find(engine, 113).spec), make_spec()], {"command": "pflbench sweep"})
    engine.dispose()
    return str(path), copied(path, server)


@pytest.mark.parametrize("command", READS, ids=" ".join)
def test_a_command_that_reads_says_the_same(both: tuple[str, str], shell: Shell, command: tuple[str, ...]) -> None:
    here, there = (shell(*command, "--db", url) for url in both)
    assert there == here
    assert here.code == 0, here.err
    assert here.out or command == ("db", "check")


def test_what_a_database_holds(both: tuple[str, str], shell: Shell) -> None:
    here, there = (json.loads(shell("db", "info", "--json", "--db", url).out) for url in both)
    assert (here.pop("kind"), there.pop("kind")) == ("sqlite", "postgresql")
    assert here.pop("bytes") > 0 < there.pop("bytes")
    assert PASSWORD not in here.pop("database") + there.pop("database")
    assert there == here


@pytest.fixture
def served(store: Engine) -> Iterator[serve.Server]:
    fill(store)
    with serving(store.url.render_as_string(hide_password=False)) as server:
        yield server


def get(server: serve.Server, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(server.address + path) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.servers("fast")
def test_the_page_is_made_anew_when_a_round_is_committed(
    served: serve.Server, store: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "REST", 0)
    before = get(served, "version")
    assert before[0] == 200
    assert "round 2 of 9, accuracy 65.00 %, best 70.00 %" in get(served, "content")[1]
    assert get(served, "version") == before
    write_round(store, RUNNING, RoundRecord(round=3, accuracy=0.75))
    assert get(served, "version") != before
    assert "round 3 of 9, accuracy 75.00 %, best 75.00 %" in get(served, "content")[1]
    assert "3 of 9, best 75.00 %" in get(served, f"run/{RUNNING}")[1]


@pytest.mark.parametrize("store", ["postgresql"], indirect=True)
def test_a_server_that_is_away_for_a_while(served: serve.Server, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "REST", 0)
    before = get(served, "version")
    server.stop()
    code, text = get(served, "version")
    server.start()
    assert (before[0], code) == (200, 503), text
    assert PASSWORD not in text
    assert get(served, "version")[0] == get(served, "content")[0] == 200


@pytest.mark.slow
def test_everything_says_the_same_on_postgresql(shell: Shell, server: Server, tmp_path: Path) -> None:
    """The page has all tables and figures."""
    path = unpack(tmp_path / "golden.db")
    url = copied(path, server)
    here, there = (shell("reproduce", "--db", each) for each in (str(path), url))
    assert there == here
    pages = []
    for each in (str(path), url):
        assert shell("report", "--db", each, "-o", "page.html").code == 0
        text = Path("page.html").read_text(encoding="utf-8")
        pages.append(re.sub(r"golden\.db|&#39;|(postgresql://\S*?)?test\d+|\d{4}-\d\d-\d\dT[\d:]+Z|2026-[-\d: ]+UTC", "", text))
        assert PASSWORD not in text
    assert pages[0] == pages[1]
    assert all(f'download="{name}.csv"' in pages[0] for name, table in TABLES.items() if table.reproducible)
    assert all(f'id="figures-{name}' in pages[0] for name in PLOTS)
