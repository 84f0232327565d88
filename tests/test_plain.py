"""Text without control codes, and without what tells of the user's machine."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import make_url
from support.command import Shell

from pflbench import plain
from pflbench.cli import console
from pflbench.store import paths

EVIL = "a\x1b]52;c;cm0gLXJmCg==\x07\x1b[31mred\x1b[0m\x9b2J\x08\rb\x7f"
CODES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one\ttwo\nthree", "one\ttwo\nthree"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]8;;http://x\x07link", "]8;;http://xlink"),
        ("100 %\r\x1b[2K0 %", "100 %[2K0 %"),
        ("\x9b31m é ü 漢", "31m é ü 漢"),
        # Passwords of URLs.
        ("cannot reach postgresql://me:s3cret@host/pfl.", "cannot reach postgresql://me:***@host/pfl."),
        ("There is no file postgresql:/me:s3cret@host/pfl.", "There is no file postgresql:/me:***@host/pfl."),
        ("redis://:s/e@c:r?et@host:1/0", "redis://:***@host:1/0"),
        ("a://b?x=1&sslPassword=s3cret&y=2", "a://b?x=1&sslPassword=***&y=2"),
        ('{"at": "s3://key:s3cret@bucket", "mail": "a@b"}', '{"at": "s3://key:***@bucket", "mail": "a@b"}'),
        ("me@host, http://127.0.0.1:8765/ and C:/x: 3 @ 5", "me@host, http://127.0.0.1:8765/ and C:/x: 3 @ 5"),
    ],
)
def test_printable(text: str, expected: str) -> None:
    assert plain.printable(text) == expected


def test_json_says_the_same_without_codes() -> None:
    value = {"name": EVIL}
    told = plain.in_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(told) == value
    assert not CODES.search(told)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("OSError: No space: '/home/ann/big/x.pt'", "OSError: No space: '.../x.pt'"),
        ("finished 90/221, and/or docs/x.md, 3 GB/s", "finished 90/221, and/or docs/x.md, 3 GB/s"),
        ("see https://pytorch.org/docs/x", "see https://pytorch.org/docs/x"),
        ("postgresql+psycopg://ann:secret@host.lan:5432/pfl?sslmode=on", "postgresql+psycopg://.../pfl"),
        ("sqlite:////home/ann/a.db", "sqlite:///.../a.db"),
        ("file:///home/ann/a.db", "file:///.../a.db"),
        ("folder:~ann/photos/x", "folder:.../x"),
        (r"at C:\Users\ann\x.db now", "at .../x.db now"),
    ],
)
def test_private(text: str, expected: str) -> None:
    assert plain.private(text) == expected


@pytest.mark.parametrize("part", ["a", "a.", "a+", ":/a", "://a:", "/a ", "token=", "-", "\x1b[1;"])
def test_a_long_name_takes_no_longer_than_its_length(part: str) -> None:
    """What passes twice over each sign took 10 seconds for such a name, and hours for one of a megabyte."""
    text = part * (30_000 // len(part))
    begun = time.process_time()
    plain.printable(text)
    plain.private_command([text])
    assert time.process_time() - begun < 1


@pytest.mark.parametrize("text", ["=1", "+x", "-x", "@x", "\tx", "\rx", "\nx"])
def test_a_formula_is_quoted_and_a_number_is_none(text: str) -> None:
    assert plain.in_csv(text) == f"'{text}"
    assert [plain.in_csv(value) for value in ("-1e-3", "+.5", -3, -0.5, None, "", "a=1")] == [
        *("-1e-3", "+.5", -3, -0.5, None, "", "a=1")
    ]


def test_a_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["pflbench", "run", "-dnpz:/home/ann/my data/x.npz", "--data-dir=/home/ann/data", "--db", f"{tmp_path}/a/b.db"]
    words += ["-r", "3"]
    assert plain.private_command(words) == "pflbench run -dnpz:.../x.npz --data-dir=.../data --db a/b.db -r 3"
    console.remember(["run", "--db=postgresql://me:my own s3cret@host/pfl"])
    assert console.command_line(whole=True) == "pflbench run '--db=postgresql://me:***@host/pfl'"


def test_paths_are_kept_from_the_database_or_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    url, server = make_url(f"sqlite:///{tmp_path}/r.db"), make_url("postgresql://host/pfl")
    for path, kept, named in (
        (f"{tmp_path}/data/x", "./data/x", "./data/x"),
        ("/home/ann/d/x", "~/d/x", "~/d/x"),
        ("/scratch/ann/x", "/scratch/ann/x", "x"),
    ):
        assert paths.kept(path, url) == kept
        assert paths.kept_or_named(path, url) == named
        assert paths.found(kept, url) == path
    assert paths.found(paths.kept("/home/ann/d", server), server) == "/home/ann/d"
    itself = paths.kept(str(tmp_path), url)
    assert (itself, Path(paths.found(itself, url)).resolve()) == (f"./../{tmp_path.name}", tmp_path), "tables show the last part"


@pytest.mark.slow
def test_nothing_of_the_machine_is_kept(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the database's bytes, exports, tables, figures, reports: the folder above it is anybody's home."""
    monkeypatch.setattr("platform.node", lambda: "ann-laptop")
    monkeypatch.setenv("HOME", str(tmp_path))
    own = tmp_path / "mine.npz"
    rng = np.random.default_rng(0)
    np.savez(own, x=rng.random((120, 1, 4, 4), dtype=np.float32), y=np.arange(120) % 3)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    command = ("run", "-m", "fedavg", "-d", f"npz:{own}", "--clients", "3", "-r", "1", "--min-samples", "5", "--model", "mlp")
    done = shell(*command, "--db", str(work / "r.db"), "--data-dir", str(tmp_path / "data"), "-q")
    assert done.code == 0, done.err
    wrote = [shell("export", "runs", "--db", "r.db", "-o", f"runs.{suffix}") for suffix in ("csv", "json")]
    wrote.append(shell("table", "accuracy", "--db", str(work / "r.db"), "-o", str(work / "t.md")))
    for suffix in ("png", "pdf", "svg"):
        wrote.append(shell("plot", "curves", "--db", str(work / "r.db"), "-o", str(work / f"c.{suffix}")))
    wrote.append(shell("report", "--db", "r.db", "-o", "r.html"))
    assert [one.code for one in wrote] == [0] * len(wrote), wrote
    for file in work.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert str(tmp_path).encode() not in content, file
            assert b"ann-laptop" not in content, file
    assert "npz:mine.npz" in (work / "runs.csv").read_text()
    assert shell("table", "accuracy", "--db", "r.db", "-d", "mine.npz").code == 0
    asked = shell(*command, "--db", "r.db", "--force", "--record-host", "-q")
    assert asked.code == 0, asked.err
    kept = json.loads(shell("runs", "show", "2", "--db", "r.db", "--json").out)["environment"]
    assert (kept["host"], str(own) in kept["command"]) == ("ann-laptop", True)


@pytest.mark.filterwarnings("error:Glyph")  # a font has none for control codes
def test_codes_in_a_foreign_database_reach_no_terminal(shell: Shell, tmp_path: Path) -> None:
    assert shell("run", "-m", "fedavg", "-d", "digits", "-r", "1", "-q").code == 0
    with sqlite3.connect("pflbench.db") as connection:
        connection.execute("UPDATE run SET dataset = ?, message = ?, partition_label = ?", (EVIL, EVIL, EVIL))
        connection.execute("UPDATE run SET spec = json_set(spec, '$.data.name', ?), method = ?", (EVIL, EVIL))
    connection.close()
    commands = ["runs list", "runs show 1", "runs list --json", "table accuracy", "report -o r.html"]
    commands += [f"table accuracy -f {one}" for one in ("markdown", "csv", "latex", "json")]
    commands += [f"plot curves -o c.{one}" for one in ("png", "svg")]
    foreign = ("runs list -m", "plot", "", "runs show", "data verify")
    for command in [*(one.split() for one in commands), *([*one.split(), EVIL] for one in foreign)]:
        done = shell(*command)
        assert not CODES.search(done.out + done.err), command
    for file in ("r.html", "c.svg", "c.caption.txt"):
        assert not CODES.search(Path(file).read_text()), file
