"""The commands that read: what they print, as text and as JSON, and what they say when they cannot."""

from __future__ import annotations

import csv
import io
import re
import shutil
from pathlib import Path

import pytest
import typer
import typer.main
from support.command import Shell, finish, parsed, start

from pflbench import __version__
from pflbench.cli import app, main
from pflbench.cli.options import run_options
from pflbench.cli.run import run
from pflbench.methods import METHODS, load
from pflbench.run.options import RunOptions


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with two seeds of two methods."""
    path = tmp_path_factory.mktemp("results") / "pflbench.db"
    assert main(["run", "-m", "fedavg", "-m", "ditto", "-d", "digits", "-r", "3", "--seeds", "0-1", "-q", "--db", str(path)]) == 0
    return path


@pytest.fixture
def shell(shell: Shell, made: Path, tmp_path: Path) -> Shell:
    shutil.copy(made, tmp_path / "pflbench.db")
    return shell


def test_version_and_help(shell: Shell) -> None:
    assert shell("--version").out == f"pflbench {__version__}\n"
    assert "Usage: pflbench runs list" in shell("runs", "list", "-h").out
    without = shell()
    assert (without.code, "Commands" in without.out) == (2, True)


def test_every_request_can_be_made_on_the_command_line() -> None:
    given = dict.fromkeys(run.__annotations__)
    assert run_options({**given, "methods": ["a"]}) == RunOptions(
        **{name: given[name] for name in RunOptions.__annotations__} | {"methods": ("a",)}
    )


def test_methods(shell: Shell) -> None:
    listed = parsed(shell("methods", "list", "--json"))
    assert [row["name"] for row in listed] == list(METHODS)
    for row in listed:
        cls = load(row["name"])
        assert row == {"name": row["name"], "title": cls.title, "venue": cls.venue, "category": cls.category, "from": "pflbench"}
    shown = parsed(shell("methods", "show", "ditto", "--json"))
    defaults = {row["name"]: row["default"] for row in shown["hyperparameters"]}
    assert (defaults["lam"], defaults["personal_epochs"]) == (0.1, 2)  # methods.md 1.8
    assert "0.0001, 0.001, 0.01, 0.1, 1, 10" in shell("methods", "show", "ditto").out
    assert "Did you mean 'ditto'?" in shell.refused("methods", "show", "dito")


def test_data(shell: Shell) -> None:
    listed = parsed(shell("data", "list", "--json"))
    assert {row["name"]: row["samples"] for row in listed["datasets"]}["mnist"] == 70_000
    assert "npz:PATH" in shell("data", "list").out
    found = parsed(shell("data", "verify", "--json"))
    assert [(row["dataset"], row["state"]) for row in found] == [("digits", "ok"), ("digits", "official")]
    missing = shell("data", "verify", "mnist", "--data-dir", "elsewhere")
    assert missing.code == 2
    assert "pflbench data download mnist --data-dir elsewhere" in missing.err
    assert "Unknown dataset 'mnits'" in shell.refused("data", "download", "mnits")


def test_partition(shell: Shell) -> None:
    """The stored partition is the one that is shown before a run, and holds all 1,797 digits once."""
    (shown,) = parsed(shell("partition", "show", "-d", "digits", "--json"))
    assert sum(map(sum, shown["train"])) + sum(map(sum, shown["test"])) == 1797
    assert len(shown["train"]) == 10
    (stored,) = parsed(shell("partition", "show", "--run", "1", "--json"))
    assert stored == shown
    assert parsed(shell("partition", "show", "--hash", shown["hash"][:12], "--json")) == [shown]
    table = shell("partition", "show", "-p", "pathological", "--clients", "5", "--classes-per-client", "2").out.splitlines()
    assert table[0].split() == ["client", *"0123456789", "train", "test", "total"]
    for line in table[1:]:
        _, *counts, train, test, total = map(int, line.split())
        assert sum(n > 0 for n in counts) == 2
        assert sum(counts) == train + test == total
    assert "stand alone" in shell.refused("partition", "show", "--run", "1", "--beta", "1")
    assert "more than the 10 classes" in shell.refused("partition", "show", "-p", "pathological", "--classes-per-client", "11")


def test_a_partition_of_many_classes_is_listed_by_what_each_client_holds(shell: Shell, tmp_path: Path) -> None:
    rows = "\n".join(f"class{i % 30},text {i}" for i in range(600))
    (tmp_path / "own.csv").write_text(f"label,text\n{rows}\n")
    table = shell(
        "partition", "show", "-d", "csv:own.csv", "-p", "pathological", "--clients", "10", "--classes-per-client", "3"
    ).out
    assert table.splitlines()[0].split() == ["client", "class:samples", "train", "test", "total"]
    assert len(table.splitlines()) == 11
    assert table.splitlines()[1].count(":") == 3


def test_runs(shell: Shell) -> None:
    listed = parsed(shell("runs", "list", "--json"))
    assert [(row["id"], row["method"], row["seed"]) for row in listed] == [
        (4, "ditto", 1), (3, "fedavg", 1), (2, "ditto", 0), (1, "fedavg", 0),
    ]  # fmt: skip
    assert [row["id"] for row in parsed(shell("runs", "list", "-m", "ditto", "--limit", "1", "--json"))] == [4]
    text = shell("runs", "list", "--limit", "3")
    assert len(text.out.splitlines()) == 4
    assert "--limit 6" in text.err
    shown = parsed(shell("runs", "show", listed[0]["key"][:8], "--json"))
    assert shown["spec"]["method"]["hyperparameters"]["lam"] == 0.1
    assert [row["round"] for row in shown["last_rounds"]] == [0, 1, 2, 3]
    assert shell("runs", "show", "1", "--last", "2").out.splitlines()[-1].split()[0] == "3"
    assert "No run '99'" in shell.refused("runs", "show", "99")
    assert [row["id"] for row in parsed(shell("runs", "list", "--key", listed[0]["key"][:9], "--json"))] == [4]
    assert "Valid: " in shell.refused("runs", "list", "--status", "done")
    assert "There are: ditto, fedavg." in shell.refused("runs", "list", "-m", "fedala")


@pytest.mark.parametrize("command", ["table accuracy -o x.md", "plot curves", "report", "export runs -o x.csv", "runs list"])
def test_what_shows_runs_takes_the_same_filters(command: str, shell: Shell, tmp_path: Path) -> None:
    asked = "-m ditto -d digits -p dir(0.1) --clients 10 --rounds 3 --run 2 --where ditto.lam=0.1 --status finished"
    done = shell(*command.split(), *asked.split())
    assert done.code == 0, done
    assert "There are: 3." in shell.refused(*command.split(), "--rounds", "4")
    assert "No run fits these filters together" in shell.refused(*command.split(), "-m", "ditto", "--run", "1")


def test_removing_runs(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--yes" in shell.refused("runs", "rm", "1")
    assert "No run '99'" in shell.refused("runs", "rm", "2", "99", "--yes")
    assert len(parsed(shell("runs", "list", "--json"))) == 4, "nothing is removed when one of them is unknown"
    assert shell("runs", "rm", "2", "3", "2", "--yes").code == 0
    assert [row["id"] for row in parsed(shell("runs", "list", "--json"))] == [4, 1]


def test_table(shell: Shell, tmp_path: Path) -> None:
    cells = parsed(shell("table", "accuracy", "--json"))["cells"]
    best = {(row["method"], row["seed"]): 100 * row["best"] for row in parsed(shell("runs", "list", "--json"))}
    for cell in cells:
        values = [best[cell["method"], seed] for seed in (0, 1)]
        assert cell["mean"] == pytest.approx(sum(values) / 2)
        assert cell["std"] == pytest.approx(abs(values[0] - values[1]) / 2)
        assert f"{cell['mean']:.2f}" in shell("table").out
    assert "| Ditto |" in shell("table", "accuracy", "--format", "markdown").out
    wrote = shell("table", "-f", "csv", "-o", "out.csv")
    assert (wrote.out, "out.csv" in wrote.err) == ("", True)
    assert [row["method"] for row in csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text()))] == ["fedavg", "ditto"]
    assert shell("table", "-f", "markdown", "-o", "out.md").code == 0
    (made,) = (line for line in (tmp_path / "out.md").read_text().splitlines() if "Made by" in line)
    assert "Made by `pflbench table -f markdown -o out.md` (pflbench " in made
    assert made.endswith("from runs 1, 2, 3, 4.")
    assert "Did you mean 'accuracy'?" in shell.refused("table", "acuracy")
    assert "mean-last:K" in shell.refused("table", "--round-rule", "middle")
    assert "Unknown --format 'pdf'" in shell.refused("table", "-f", "pdf")
    assert "No runs with" in shell.refused("table", "-d", "mnist")
    assert "Cannot write no/such/out.md: No such file or directory" in shell.refused("table", "-o", "no/such/out.md")


def test_plot(shell: Shell, tmp_path: Path) -> None:
    assert shell("plot", "curves").out == "curves.png\n"
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert b"Made by `pflbench plot curves` (pflbench " in (tmp_path / "curves.png").read_bytes()
    assert shell("plot", "distribution", "-o", "who.svg").code == 0
    assert "<svg" in (tmp_path / "who.svg").read_text()
    assert "Valid: ala-convergence, " in shell.refused("plot", "bars")
    assert "--over does not belong to `pflbench plot distribution`" in shell.refused("plot", "distribution", "--over", "rounds")
    assert "--method does not belong" in shell.refused("plot", "distribution", "-m", "ditto")
    assert ".png" in shell.refused("plot", "curves", "-o", "curves.bmp")


def test_db(shell: Shell, tmp_path: Path) -> None:
    info = parsed(shell("db", "info", "--json"))
    assert info["runs"] == {"finished": 4}
    assert info["rounds"] == 16
    assert shell("db", "check").out == "No problems found.\n"
    assert "Schema before: " in shell("db", "upgrade").out
    assert parsed(shell("db", "upgrade", "--db", "new.db", "--json"))["from"] is None
    assert (tmp_path / "new.db").exists()
    assert "no database at" in shell.refused("runs", "list", "--db", "missing.db")
    assert not (tmp_path / "missing.db").exists()


def test_doctor(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data" / "mnist").mkdir(parents=True)
    found = parsed(shell("doctor", "--json"))
    assert found["versions"]["pflbench"] == __version__
    assert found["data"]["found"] == ["mnist"]
    assert found["database"]["runs"] == {"finished": 4}
    assert found["problems"] == []
    assert "none yet" in shell("doctor", "--db", "missing.db").out
    (tmp_path / "foreign.db").write_text("no database" * 100)
    assert shell("doctor", "--db", "foreign.db").code == 2
    with monkeypatch.context() as home:
        home.setenv("HOME", str(tmp_path))
        assert "not a SQLite database" in shell("doctor", "--db", "~/foreign.db").out
    assert "no-such-folder" in shell("doctor", "--db", "no-such-folder/x.db").out


def test_the_package_runs_as_a_module(tmp_path: Path) -> None:
    program = "import runpy, sys; sys.argv[0] = 'pflbench'; runpy.run_module('pflbench', run_name='__main__')"
    done = finish(start("tabel", folder=tmp_path, program=program))
    assert (done.code, "Did you mean 'table'" in done.err) == (2, True)


def test_wrong_use_is_told_in_two_lines(shell: Shell) -> None:
    assert "Did you mean 'table'" in shell.refused("tabel")
    assert "'status'" in shell.refused("sweep", "statsu", "tiny")
    assert "missing.yaml" in shell.refused("sweep", "missing.yaml")
    assert "--rounds" in shell.refused("run", "--roundz", "3")
    assert "'--method'" in shell.refused("run")
    assert "a whole number" in shell.refused("run", "-m", "fedavg", "--rounds", "x")
    assert "--workers 0" in shell.refused("run", "-m", "fedavg", "--workers", "0")


def test_a_bug_is_told_in_two_lines_and_shown_on_request(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    from pflbench.store import inspection

    def broken(url: str) -> None:
        raise LookupError("of all things")

    monkeypatch.setattr(inspection, "info", broken)
    done = shell("db", "info")
    assert (done.code, len(done.err.splitlines())) == (1, 2)
    assert "LookupError: of all things" in done.err
    monkeypatch.setenv("PFLBENCH_DEBUG", "1")
    with pytest.raises(LookupError):
        main(["db", "info"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("pflbench run -m fedph", {"fedphp", "fedphp+ala"}),
        ("pflbench run -d mn", {"mnist"}),
        ("pflbench run --model c", {"charlstm", "cnn", "cnn2"}),
        ("pflbench run -p d", {"dirichlet"}),
        ("pflbench table a", {"ablation", "accuracy", "applicability"}),
        ("pflbench plot d", {"distribution"}),
        ("pflbench methods show di", {"ditto", "ditto+ala"}),
        ("pflbench run --set fedr", {"fedrep.", "fedrep+ala.", "fedrod."}),
        ("pflbench run -m fedavg -m ditto --set d", {"ditto.lam=", "ditto.personal_epochs=", "ditto.aggregation="}),
        ("pflbench run --set ditto.a", {"ditto.aggregation="}),
    ],
)
def test_completion(
    words: str, expected: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # How Bash asks.
    for name, value in {"_PFLBENCH_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        main([])
    assert set(capsys.readouterr().out.split()) == expected


LIGHT = "--help; run --help; methods list; data list; runs list; runs show 1; table; plot curves; plot distribution; db info"


def test_quick_commands_do_not_import_torch(made: Path, tmp_path: Path) -> None:
    """One process for all: each import would be seen after any of them."""
    program = (
        "import sys\nfrom pflbench.cli import main\n"
        f"codes = [main(command.split()) for command in {LIGHT.split('; ')!r}]\n"
        "heavy = {'torch', 'torchvision', 'torchtext', 'sklearn'} & set(sys.modules)\n"
        "sys.exit(f'codes {codes}, imported {heavy}' if heavy or any(codes) else 0)"
    )
    done = finish(start(folder=tmp_path, program=program, PFLBENCH_DB=str(made)))
    assert done.code == 0, done.err


@pytest.mark.parametrize("command", [("run",), ("sweep", "run"), ("reproduce",)])
def test_help_has_what_most_people_use_and_help_all_has_all(
    command: tuple[str, ...], shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pflbench.cli.help import COMMON, RARE

    monkeypatch.setenv("COLUMNS", "200")
    at = typer.main.get_command(app)
    for name in command:
        at = at.commands[name]
    flags = {option.name: option.opts[0] for option in at.params}
    brief, whole = (set(re.findall(r"--[a-z][\w-]*", shell(*command, flag).out)) for flag in ("--help", "--help-all"))
    for name in flags.keys() & (COMMON | RARE):
        assert (flags[name] in brief) == (name not in RARE), name
        assert flags[name] in whole
    assert "--help-all" in brief


def test_runs_list_says_in_what_runs_differ(shell: Shell) -> None:
    short = ("run", "-d", "digits", "-r", "1", "--clients", "3", "-q")
    assert shell(*short, "-m", "fedala", "--set", "fedala.p=1,2").code == 0
    assert shell(*short, "-m", "fedavg").code == 0
    first, *lines = shell("runs", "list").out.splitlines()
    assert [line[first.index("differs in") :].strip() for line in lines[:3]] == ["", "p=2", "p=1"]
