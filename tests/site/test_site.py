"""The page as plain data and as HTML, beside numbers read by raw SQL; what `serve` answers to whom."""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import io
import json
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from html.parser import HTMLParser
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import Engine, event
from support.command import Shell
from support.raw_sql import sql
from support.report_database import HYPERPARAMETERS, add_run, spec
from support.site_database import MADE, RUNNING, SNEAKY, fill, serving
from support.store_samples import write_round
from support.swept import SENT

from pflbench.errors import UserError
from pflbench.report import papermap
from pflbench.report.declared import PLOTS
from pflbench.report.selection import Filters
from pflbench.report.tables.grid import CellText, Column, Grid
from pflbench.site import html, page, runs, serve
from pflbench.site.page import Page, build
from pflbench.site.tables import HeadGroup, leaders, sort_value, view
from pflbench.store import database as db
from pflbench.store import write
from pflbench.store.write import RoundRecord


@pytest.fixture
def url(tmp_path: Path) -> str:
    return db.to_url(str(tmp_path / "results.db"))


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = db.connect(url)
    fill(engine)
    yield engine
    engine.dispose()


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """The same, for tests that read alone."""
    engine = db.connect(db.to_url(str(tmp_path_factory.mktemp("site") / "results.db")))
    fill(engine)
    yield engine
    engine.dispose()


@pytest.fixture(scope="module")
def whole(stored: Engine) -> tuple[Page, str]:
    """All of it, as data and as HTML."""
    return made(stored)


class Elements(HTMLParser):
    """All start tags with their attributes, and the text of each cell of each table."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self._table, self._cell = "", False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "table":
            self._table = dict(attrs).get("id") or ""
            self.tables[self._table] = []
        elif tag == "tr":
            self.tables[self._table].append([])
        elif tag in ("td", "th"):
            self._cell = True
            self.tables[self._table][-1].append("")
        elif tag == "br" and self._cell:
            self.handle_data(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._cell = False

    def handle_data(self, data: str) -> None:
        if self._cell:
            self.tables[self._table][-1][-1] += data

    def attributes(self, name: str) -> list[str]:
        return [value or "" for _, attributes in self.tags for key, value in attributes.items() if key == name]


def made(engine: Engine, pages: str = "auto", **filters: tuple[str, ...]) -> tuple[Page, str]:
    built = build(engine, MADE, Filters(**filters), pages)
    return built, html.document(built, runs.pages(engine, built.runs, built.pages))


def test_the_numbers_of_the_tables_are_those_of_the_database(stored: Engine, whole: tuple[Page, str]) -> None:
    built, text = whole
    found = Elements(text)
    (head, *rows) = found.tables["data-accuracy"]
    assert [cell.split() for cell in head] == [["Method"], ["MNIST", "Dir(0.1)"], ["Cifar10", "Dir(0.1)"]]
    best = "SELECT max(accuracy) FROM round WHERE run_id = run.id"
    query = f"""SELECT method, avg(b), avg(b * b) - avg(b) * avg(b), group_concat(id, ', ')
        FROM (SELECT id, method, 100 * ({best}) AS b FROM run WHERE status = 'finished' AND dataset = 'mnist' ORDER BY id)
        GROUP BY method"""
    expected = {name: (f"{mean:.2f} ± {var**0.5:.2f} (2)", ids) for name, mean, var, ids in sql(stored, query)}
    *rows, floor = rows
    assert floor == ["Majority class", "83.33", ""]  # in support.report_database.add_partition
    assert {row[0].lower(): tuple(row[1].split("runs ")) for row in rows} == expected
    assert [[cell.best for cell in column.entries] for column in built.tables[0].grid.columns] == [
        [False, False, True, False],
        [False] * 4,
    ]
    listed = found.tables["data-runs"][1:]
    query = f"SELECT id, status, method, seed, ({best}) FROM run ORDER BY id DESC"
    assert [(int(r[0]), r[1], r[2].lower(), int(r[7]), r[9]) for r in listed] == [
        (id, status, method, seed, f"{100 * value:.2f}") for id, status, method, seed, value in sql(stored, query)
    ]


def test_every_table_and_figure_is_there_or_among_those_left_out(whole: tuple[Page, str]) -> None:
    from pflbench.report.declared import TABLES

    built, text = whole
    missing = {kind: {one.name for one in built.missing if one.kind == kind} for kind in ("table", "plot")}
    declared = {name for name, table in TABLES.items() if table.reproducible}  # a study is made by `tune` alone
    assert (
        {view.name for view in built.tables}
        == declared - missing["table"]
        == {"accuracy", "overhead", "time-to-accuracy", "table2"}
    )
    assert {group.name for group in built.figures} == set(PLOTS) - missing["plot"]
    assert {"curves", "distribution"} <= {group.name for group in built.figures}
    assert "fairness" in missing["plot"]  # it needs results of clients
    heterogeneity = next(one for one in built.missing if (one.kind, one.name) == ("table", "heterogeneity"))
    assert "<code>pflbench run -m fedavg -d tiny --model cnn --beta 0.01 --clients 20</code>" in text
    assert heterogeneity.hint.endswith("pflbench run -m fedavg -d tiny --model cnn --beta 0.01 --clients 20")


def test_the_rule_for_rounds_is_that_of_every_table_that_has_one(stored: Engine) -> None:
    built = build(stored, MADE, Filters(), round_rule="last")
    views = {view.name: view.grid for view in built.tables}
    assert [cell.text for cell in views["accuracy"].columns[0].entries] == [
        "8.00 ± 0.00 (2)", "83.50 ± 3.50 (2)", "98.00 ± 0.00 (2) *", "83.33",
    ]  # fmt: skip
    assert {name for name, grid in views.items() if "Result of a run: its last evaluated round." in " ".join(grid.notes)} == {
        "accuracy", "table2",
    }  # fmt: skip
    assert built.leaders[0].best[1][1].text.startswith("83.50")
    with pytest.raises(UserError, match="--round-rule worst is not possible"):
        build(stored, MADE, Filters(), round_rule="worst")


def test_a_table_as_csv_is_that_of_the_command(stored: Engine, whole: tuple[Page, str], shell: Shell) -> None:
    _, text = whole
    link = next(a["href"] for tag, a in Elements(text).tags if tag == "a" and a.get("download") == "accuracy.csv")
    data = base64.b64decode((link or "").removeprefix("data:text/csv;charset=utf-8;base64,")).decode()
    assert data == shell("table", "accuracy", "-f", "csv", "--db", str(stored.url.database)).out
    assert [row["method"] for row in csv.DictReader(io.StringIO(data))] == ["local", "fedavg", "fedavg", "ditto"]


def test_a_page_needs_nothing_from_elsewhere_and_what_runs_say_stays_text(whole: tuple[Page, str]) -> None:
    _, text = whole
    found = Elements(text)
    assert not [value for name in ("src", "href", "action", "data") for value in found.attributes(name) if "//" in value]
    assert not {tag for tag, _ in found.tags} & {"img", "iframe", "object"}
    assert found.attributes("http-equiv") == ["Content-Security-Policy"]
    assert "<img" not in text[text.index("<main") : text.index('id="plotly"')]
    status = next(a for tag, a in found.tags if a.get("class") == "status running")
    assert status["title"] == SNEAKY


def test_a_run_has_a_page_with_its_numbers(stored: Engine, whole: tuple[Page, str]) -> None:
    data = runs.page(stored, 1)
    facts = dict(data["facts"])
    assert facts["Rounds"] == "2 of 2, best 85.00 % after round 1"
    assert facts["Time per round"].startswith("2 s of training, 5 s of evaluation")
    assert (data["alike"], data["status"], facts["Commit"]) == ([3], "finished", "abc")
    ((written,),) = sql(stored, "SELECT spec FROM run WHERE id = 1")
    assert data["spec"] == json.loads(str(written))
    (accuracy,) = (trace for trace in data["figures"][0].spec["data"] if trace["name"] == "as deployed")
    assert list(accuracy["y"]) == [10, 85, 80]
    assert data["clients"] is None
    (written_page,) = re.findall(r'<template id="run-page-1">(.*?)</template>', whole[1], re.DOTALL)
    for shown in (
        "Run 1: FedAvg on MNIST",
        facts["Rounds"],
        '<a href="#run-3">run 3</a>',
        "train.lr</th><td>0.1<",
        '"y":[10,85,80]',
    ):
        assert shown in written_page


def test_clients_and_arrays_of_a_run(engine: Engine) -> None:
    counts = {
        "clients": np.array([0, 2]),
        "correct": np.array([3, 4]),
        "total": np.array([4, 4]),
        "loss": np.array([1.0, np.inf]),
    }
    run = add_run(engine, spec("fedavg", 7, rounds=1), [0.1])
    write_round(engine, run, RoundRecord(1, 0.875, **counts, artifacts={"traffic": np.zeros((3, 2))}))
    found = runs.page(engine, run)
    assert found["clients"] == {"round": 1, "rows": [[0, 4, 75.0], [2, 4, 100.0]]}
    assert found["artifacts"] == [{"name": "traffic", "count": 1, "first": 1, "last": 1}]
    assert runs.page(engine, RUNNING)["facts"][0] == ["Rounds", "2 of 9, best 70.00 % after round 1, now 65.00 %"]
    with pytest.raises(UserError, match="No run '99'"):
        runs.page(engine, 99)
    write.update_run(engine, run, environment={"scale": "smoke"})
    assert runs.page(engine, run)["id"] == run, "`serve --smoke` lists it"


def test_which_runs_get_a_page(stored: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build(stored, MADE, Filters(), "auto").pages == {1, 2, 3, 4, 5, 6, 7, 8}
    assert build(stored, MADE, Filters(), "none").pages == set()
    assert build(stored, MADE, Filters(), "shown").pages == {1, 2, 3, 4, 5, 7, 8}
    assert build(stored, MADE, Filters(), "3,6").pages == {3, 6}
    monkeypatch.setattr(page, "MOST", 5)
    built, text = made(stored)
    assert built.pages == set()
    assert "All 8 runs, newest first. <code>pflbench report --runs 3,17</code> makes a page for each run that it names" in text
    assert "8 runs, newest first; 2 of them have a page" in made(stored, "3,6")[1]
    assert made(stored, methods=("ditto", "local"))[0].pages == {2, 4, 7, 8}
    with pytest.raises(UserError, match="no run 99 among those"):
        build(stored, MADE, Filters(), "3,99")
    for wrong in ("some", "3,", "3,x", "", 6000 * "9"):
        with pytest.raises(UserError, match=r"is not possible.\nWrite all, shown, none, or numbers"):
            build(stored, MADE, Filters(), wrong)


def test_of_many_runs_some_settings_have_figures(stored: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those with the most runs: MNIST has three methods here, Cifar10 one."""
    whole = {group.name: group for group in build(stored, MADE, Filters()).figures}
    assert [figure.title for figure in whole["curves"].figures] == ["MNIST, Dir(0.1)", "Cifar10, Dir(0.1)"]
    monkeypatch.setattr(page, "MOST", 5)
    monkeypatch.setattr(page, "FIGURES", 1)
    built, text = made(stored)
    cut = {group.name: group for group in built.figures}
    assert cut.keys() == whole.keys()
    assert [figure.title for figure in cut["curves"].figures] == ["MNIST, Dir(0.1)"]
    assert {figure.title.partition(",")[0] for figure in cut["overhead"].figures} == {"MNIST"}
    assert "<code>pflbench plot curves</code> draw those" in text
    assert "draw those" not in html.document(build(stored, MADE, Filters(methods=("ditto",))))


def test_a_page_asks_for_tables_and_not_for_each_run(engine: Engine) -> None:
    """As many statements for three times the runs; and no table or figure reads the runs that another has read."""
    run = {"clients": np.arange(2), "correct": np.array([1, 2]), "total": np.array([9, 9]), "loss": np.zeros(2)}

    def grow(seeds: range) -> None:
        for method in ("fedavg", "ditto", "local"):
            for seed in seeds:
                add_run(engine, spec(method, seed, dataset="agnews", rounds=1), [0.1, 0.5], seconds=1.0, **SENT, **run)

    def statements() -> list[str]:
        asked: list[str] = []
        remember = lambda *about: asked.append(about[2])  # noqa: E731
        event.listen(engine, "before_cursor_execute", remember)
        assert "fairness" in {group.name for group in build(engine, MADE, Filters(datasets=("agnews",)), "none").figures}
        event.remove(engine, "before_cursor_execute", remember)
        return asked

    grow(range(2))
    few = statements()
    grow(range(2, 6))
    assert len(statements()) == len(few)
    whole = [text for text in few if "run.spec" in text]
    assert len(whole) < 6, len(whole)


def test_filters_hold_for_everything(stored: Engine) -> None:
    built, _ = made(stored, methods=("Ditto",))
    assert [line.info.id for line in built.runs] == [4, 2]
    assert built.shown == (2, 4)
    with pytest.raises(UserError, match="No runs with method 'apple'"):
        made(stored, methods=("apple",))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("85.77 ± 1.15 *", "85.77"),
        ("-0.30", "-0.30"),
        ("+1.2e-05", "+1.2e-05"),
        ("1,234 (2)", "1234"),
        ("< 0.001", "0.001"),
        ("-", ""),
        ("", ""),
        ("not run", "not run"),
    ],
)
def test_cells_are_sorted_by_the_number_they_begin_with(text: str, value: str) -> None:
    assert sort_value(text) == value


def test_columns_of_a_setting_stand_under_its_head() -> None:
    heads = (("MNIST", "best %"), ("", "total s"), ("Cifar10", "best %"), ("", "total s"))
    grid = Grid("T", ("a",), tuple(Column(head, (CellText("1"),)) for head in heads), (), ({"runs": (3, 1, 3)},))
    shown = view("t", "", grid)
    assert shown.groups == (HeadGroup(("MNIST",), 2), HeadGroup(("Cifar10",), 2))
    assert shown.heads == (("best %",), ("total s",), ("best %",), ("total s",))
    assert grid.runs == (1, 3)


def test_the_best_methods_of_a_setting_stand_on_top(whole: tuple[Page, str]) -> None:
    """Of MNIST Local, FedAvg and Ditto have runs, of Cifar10 only FedAvg: by the accuracy table, best first."""
    leaders = {one.setting: one for one in whole[0].leaders}
    (mnist,), (cifar,) = ([one for name, one in leaders.items() if title in name] for title in ("MNIST", "Cifar10"))
    values = [float(sort_value(cell.text)) for _, cell in mnist.best]
    assert len(values) == 3
    assert values == sorted(values, reverse=True)
    assert [label for label, _ in cifar.best] == ["FedAvg"]
    assert set(cifar.without) == {label for label, _ in mnist.best} - {"FedAvg"}
    assert 'id="leaders"' in whole[1]


def test_a_single_run_does_not_lead_methods_with_several() -> None:
    """It is not marked as the best in the table either."""
    cells = (CellText("99.00 (1)", runs=(1,)), CellText("90.00 ± 1.00 *", best=True, runs=(2, 3)), CellText("80.00", runs=(4,)))
    (setting,) = leaders(Grid("T", ("a", "b", "c"), (Column(("MNIST",), cells),), (), ()))
    assert [label for label, _ in setting.best] == ["b", "a", "c"]


def test_what_the_papers_tables_lack_is_named_with_its_command(whole: tuple[Page, str]) -> None:
    built, text = whole
    titles = {one.title for one in built.lacking}
    assert {"FedALA, Table 1", "FedALA, Table 4"} <= titles
    assert "FedALA, Table 3" not in titles, "the overhead of any runs"
    glance = text[text.index('id="leaders"') : text.index('id="tables"')]
    assert all(f"<code>{one.command}</code>" in glance for one in built.lacking)
    here, rest = glance.split("<details id=")
    assert (here.count("reproduce"), rest.count("reproduce")) == (3, len(built.lacking) - 3)


def test_the_list_of_runs_has_the_settings_in_which_runs_differ(engine: Engine) -> None:
    """A hyperparameter differs between runs of one method; another method without it is no difference."""
    assert build(engine, MADE, Filters()).settings == {}
    values = {**HYPERPARAMETERS["ditto"], "lam": 0.5}
    add_run(engine, spec("ditto", 9, hyperparameters=values, lr=0.005), [0.1, 0.2])
    built, text = made(engine)
    assert set(built.settings) == {"method.hyperparameters.lam", "train.lr"}
    assert [built.settings[name][0] for name in sorted(built.settings)] == [0.5, 0.005]
    head, newest, *_ = Elements(text).tables["data-runs"]
    assert head[-3:] == ["lam", "lr", "Created (UTC)"]
    assert newest[-3:-1] == ["0.5", "0.005"]


def test_ranges_and_json() -> None:
    assert html.ranges([7, 1, 2, 3, 3]) == "1-3, 7"
    assert html.to_json({"a": [1.5, float("nan"), None], 3: (float("inf"), "é")}) == '{"a":[1.5,null,null],"3":[null,"é"]}'


def test_report_command(engine: Engine, shell: Shell, tmp_path: Path) -> None:
    done = shell("report", "--db", "results.db")
    assert done.out == "reports/report.html\n", done.err
    text = (tmp_path / "reports" / "report.html").read_text()
    assert "<code>pflbench report --db results.db</code>" in text
    assert "Write all, shown, none, or numbers" in shell.refused("report", "--db", "results.db", "--runs", "some")
    assert "pages of 2 of 8 runs" in shell("report", "--db", "results.db", "--runs", "3,6").err
    assert "Cannot write no/such.html: No such file" in shell.refused("report", "--db", "results.db", "-o", "no/such.html")
    assert "Cannot write reports: Is a directory" in shell.refused("report", "--db", "results.db", "-o", "reports")
    assert "no database at" in shell.refused("report", "--db", "none.db")
    db.connect(db.to_url("empty.db")).dispose()
    assert "no runs in this database yet" in shell.refused("report", "--db", "empty.db")


@pytest.fixture
def server(engine: Engine, url: str) -> Iterator[serve.Server]:
    with serving(url) as server:
        yield server


def get(server: serve.Server, path: str) -> str:
    with urllib.request.urlopen(server.address + path) as answer:
        return str(answer.read().decode())


def test_serve_rests_between_two_makings(server: serve.Server, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "REST", 1e6)
    before = get(server, "version")
    write_round(engine, RUNNING, RoundRecord(3, 0.75))
    assert get(server, "version") == before
    assert "round 2 of 9" in get(server, "content")


def test_serve_answers_this_machine_alone_and_takes_nothing(server: serve.Server) -> None:
    def status(method: str, path: str, host: str) -> int:
        connection = HTTPConnection(*server.server_address[:2])
        connection.request(method, path, headers={"Host": host})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer.status

    assert server.server_address[0] == "127.0.0.1"
    port = server.server_address[1]
    allowed = ("127.0.0.1", "localhost", f"127.0.0.1:{port}", f"localhost:{port}")
    assert {status("GET", "/version", host) for host in allowed} == {200}
    assert {
        status("GET", "/version", host)
        for host in ("evil.example", f"evil.example:{port}", "", "localhost.evil", "[::2]", "localhost:80:80")
    } == {403}
    assert {status(method, "/", "localhost") for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS")} == {501}
    assert status("HEAD", "/", "localhost") == 200
    assert {status("GET", path, "localhost") for path in ("/run/99", "/run/x", "/../etc/passwd")} == {404}
    with pytest.raises(UserError, match=f"Port {port} is taken"):
        serve.Server(server.engine, lambda: None, port)  # type: ignore[arg-type,return-value]


def test_a_browser_runs_the_two_scripts_of_the_page_alone(server: serve.Server, whole: tuple[Page, str]) -> None:
    """What it compares is the SHA-256 of a script's text."""
    (own,) = re.findall(r"<script>(.*?)</script>", whole[1], re.DOTALL)
    packed = re.search(r'id="plotly">(.*?)</script>', whole[1])
    assert packed is not None
    scripts = (own.encode(), gzip.decompress(base64.b64decode(packed[1])))
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'" for script in scripts]
    with urllib.request.urlopen(server.address) as answer:
        sent = answer.headers["Content-Security-Policy"]
    written = re.search(r'Content-Security-Policy" content="([^"]*)"', whole[1])
    assert written is not None
    for policy, asked in ((sent, "'self'"), (written[1], "'none'")):
        said = dict(part.strip().split(" ", 1) for part in policy.split(";"))
        assert (said["default-src"], said["script-src"].split(), said["connect-src"]) == ("'none'", hashes, asked)
    assert "frame-ancestors 'none'" in sent


def test_what_serve_opens_cannot_be_written_to(server: serve.Server) -> None:
    with pytest.raises(UserError, match="read-only"):
        write.remove_run(server.engine, 1)


def test_serve_command_refuses_what_it_cannot_show(shell: Shell, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"--port {int(port) + 1}" in shell.refused("serve", "--db", "results.db", "--port", port)
    assert "No runs with method 'none'" in shell.refused("serve", "--db", "results.db", "-m", "none")
    assert "no database at" in shell.refused("serve", "--db", "none.db")
    assert "cannot be opened read-only" in shell.refused("serve", "--db", "sqlite://")
    old = db.head()
    monkeypatch.setattr(db, "revisions", lambda: (old, "9999"))
    assert "pflbench db upgrade" in shell.refused("serve", "--db", "results.db")


def test_the_contents_name_the_tables_and_figures_of_the_papers(whole: tuple[Page, str]) -> None:
    built, text = whole
    contents = re.sub(r"<[^>]+>", " ", text[text.index("<nav") : text.index("</nav>")])
    assert re.search(r"Accuracy\s+FedALA, Table 2; FedALA, Table 7\s", contents)
    assert re.search(r"Overhead\s+FedALA, Table 3\s", contents)
    assert re.search(r"Samples per client and class of each partition\s+FedALA, Figure 6; FedALA, Figure 7; ", contents)
    missing = {(one.kind, one.name): papermap.sources(one.kind, one.name) for one in built.missing}
    assert missing["table", "heterogeneity"] == "FedALA, Table 4"
    assert missing["plot", "trajectory"] == "FedALA, Figure 4"
    assert missing["plot", "heterogeneity"] == ""


def test_the_paper_map_says_what_is_here_and_what_makes_it(whole: tuple[Page, str]) -> None:
    """Every line of the README's, with links that lead to something, and none to what the page has not."""
    built, text = whole
    section = text[text.index('<section id="paper-map"') : text.index('<section id="runs"')].replace("&#39;", "'")
    assert '<li><a href="#paper-map">' in text[text.index("<nav") : text.index("</nav>")]
    rows = re.findall(
        r"<tr><th scope=\"row\">(.*?)</th><td>(.*?)</td>\s*<td>(.*?)</td>\s*<td><code>(.*?)</code></td></tr>", section
    )
    exhibits = [(one.title, one.shows, one.command) for one in papermap.EXHIBITS]
    assert [(title, shows, command) for title, shows, _, command in rows] == exhibits
    here = {title: cell for title, _, cell, _ in rows}
    assert here["FedALA, Table 2"] == here["FedALA, Table 7"].removesuffix(" (1 of 2)") == '<a href="#table-table2">table2</a>'
    assert here["FedALA, Table 3"] == '<a href="#table-overhead">overhead</a>'
    assert here["FedALA, Figure 8"] == '<a href="#figures-distribution">distribution</a>'
    assert here["FedALA, Table 4"] == here["FedALA, Figure 4"] == here["FedAMP"] == "no"
    for anchor in re.findall(r'href="#(.*?)"', section):
        assert text.count(f'id="{anchor}"') == 1
    assert "FedALA: its Figures 1 and 2 draw the method." in section
    for one in built.missing:
        assert papermap.resolve(one.command.removeprefix("pflbench reproduce "))
    assert "All of it: <code>pflbench reproduce table:heterogeneity</code>" in text


def test_an_empty_live_page_has_the_paper_map(tmp_path: Path) -> None:
    empty = db.connect(db.to_url(str(tmp_path / "empty.db")))
    text = html.content(build(empty, MADE, Filters(), live=True))
    assert text.count("<td>no</td>") == len(papermap.EXHIBITS)
    empty.dispose()
