"""`pflbench run`: results, progress, interruption, and every error a run can meet - exit code 2, two lines, nothing lost."""

from __future__ import annotations

import os
import re
import resource
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from support.command import Shell, finish, parsed, rows, start

DRY = ("--dry-run", "--json")
SHORT = ("-d", "digits", "--rounds", "2", "--clients", "5")


def test_results_on_stdout_messages_on_stderr_and_once_is_enough(shell: Shell) -> None:
    (planned,) = parsed(shell("run", "-m", "fedavg", *SHORT, "--dry-run", "--json"))
    first = shell("run", "-m", "fedavg", *SHORT)
    assert first.code == 0
    assert len(first.out.splitlines()) == 1
    (best,) = rows("SELECT MAX(accuracy) FROM round")[0]
    assert f"best {100 * best:.2f} %" in first.out
    assert [line.split(": ")[1].split("  ")[0] for line in first.err.splitlines()] == [
        "run 1 started, 2 rounds", "round 0/2", "round 2/2",
    ]  # fmt: skip
    assert rows("SELECT key FROM run") == [(planned["key"],)]
    again = shell("run", "-m", "fedavg", *SHORT, "--json")
    assert "run 1 is finished already; --force" in again.err
    assert [(row["run"], row["status"], row["best"]) for row in parsed(again)] == [(1, "finished", best)]
    forced = shell("run", "-m", "fedavg", *SHORT, "--force", "--quiet", "--json")
    assert (parsed(forced)[0]["run"], forced.err) == (2, "")
    assert rows("SELECT attempt, status FROM run") == [(1, "finished"), (2, "finished")]


@pytest.mark.parametrize("columns", [160, 80])
def test_progress_on_a_terminal_is_a_bar(shell: Shell, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """80 columns, which most terminals have, show all but the bar itself and the end of the seconds."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    shown: list[bytes] = []
    reader = threading.Thread(target=drain, args=(ours, shown))
    reader.start()
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        done = shell("run", "-m", "fedavg", *SHORT)
    reader.join()
    os.close(ours)
    assert (done.code, len(done.out.splitlines())) == (0, 1)
    (best,) = rows("SELECT MAX(accuracy) FROM round")[0]
    told = b"".join(shown).decode()
    assert f"best {100 * best:.2f} %" in told
    assert "fedavg digits Dir(0.1) seed 0 " in told
    assert ("━━━" in told) == (columns == 160)
    assert " 2/2 " in told
    assert "00:00" in told, "the time left"
    assert "s/round" in told or columns == 80
    assert " 0 s/round" not in told
    assert "100%" in told


def test_a_terminal_of_80_columns_shows_runs_without_key_and_time(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell("run", "-m", "fedavg", *SHORT)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    assert plain(shell("runs", "list").out).split("\n")[0].split()[:3] == ["run", "status", "method"]
    line = plain(shell("runs", "list").out).split("\n")[1]
    assert line.startswith("  1  finished  fedavg  digits   Dir(0.1)         5     0     2/2")
    monkeypatch.setenv("COLUMNS", "120")
    assert plain(shell("runs", "list").out).split()[:3] == ["run", "key", "status"]


def plain(shown: str) -> str:
    """Without the codes for bold print."""
    return re.sub(r"\x1b\[\d*m", "", shown)


def drain(terminal: int, shown: list[bytes]) -> None:
    """Reads until the other end is closed, or what is written there would wait."""
    with suppress(OSError):  # Linux says so then
        while block := os.read(terminal, 4096):
            shown.append(block)


@pytest.mark.slow
def test_a_diverged_run_is_reported_and_the_others_go_on(shell: Shell) -> None:
    command = ("run", "-m", "fedprox", "-m", "fedavg", *SHORT, "--set", "fedprox.mu=1e38", "--json")
    done = shell(*command)
    assert done.code == 2
    told = done.err.splitlines()
    at = next(i for i, line in enumerate(told) if line.startswith("Error: "))
    assert told[at].startswith("Error: fedprox, seed 0: client")
    assert "in round 1" in told[at]
    assert told[at + 2].startswith("fedavg"), "two lines, and the next run"
    assert [(row["method"], row["status"]) for row in parsed(done, 2)] == [("fedprox", "diverged"), ("fedavg", "finished")]
    reached = rows("SELECT method, MAX(round) FROM run JOIN round ON id = run_id GROUP BY id")
    assert reached == [("fedprox", 0), ("fedavg", 2)]
    again = shell(*command)
    assert (again.code, "--force" in again.err) == (2, True)
    assert [row["status"] for row in parsed(again, 2)] == ["diverged", "finished"]


WITHOUT = """
import sys
from pflbench.cli import main
code = main(sys.argv[1:])
sys.exit("the compiler was imported" if "torch._dynamo" in sys.modules else code)
"""


@pytest.mark.slow
def test_a_run_on_a_cpu_does_without_pytorch_s_compiler(tmp_path: Path) -> None:
    """To import it takes as long as PyTorch itself."""
    done = finish(start("run", "-m", "fedavg", *SHORT, "--quiet", folder=tmp_path, program=WITHOUT))
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--clients 2000", "2000 clients are too many for 1797 samples"),
        ("--beta 0", "--beta 0.0 is not possible: it must be above 0."),
        ("--lr fast", "--lr fast is not possible: it must be a number."),
        ("--join-ratio 2", "--join-ratio 2.0 is not possible: it must be at most 1."),
        ("--join-ratio 0.05", "selects nobody"),
        ("--lr 1e308", "--lr 1e+308 is larger than any number of float32."),
        ("--model cnn", "Models that fit this data: logreg, mlp"),
        ("--engine fast", "Valid: auto, batched, loop"),
        ("--device tpu", "Unknown device 'tpu'"),
        ("--device mps --dry-run", "Apple's GPUs (mps) have no float64"),
        ("--device gpu:0", "Unknown device 'gpu:0'"),
        ("--device meta", "Device 'meta' is not supported"),
        ("--device mps", "Apple's GPUs (mps) have no float64"),
        ("--db /no/such/folder/x.db", "No folder /no/such/folder"),
        ("--chunk 0", "'0' is neither auto nor a number"),
        ("--pack 0", "--pack"),
        ("--pack 4 --engine loop --dry-run", "--pack 4 needs --engine batched"),
        ("--engine batched --convolution unfold", "--convolution unfold needs a GPU"),
        ("--checkpoints /proc/nowhere", "Checkpoints cannot be stored in /proc/nowhere"),
        ("-m ditto+alaa", "Did you mean 'ditto+ala'?"),
        ("--set fedavg.mu=1", "fedavg"),
        ("-m fedala --set fedala.p=x", "fedala.p = 'x' is not possible: it must be a whole number."),
        ("-m fedala --set fedala.eta=nan", "fedala.eta = 'nan' is not possible: it must be a finite number."),
        ("-m fedfomo --set fedfomo.M=some", "fedfomo.M = 'some' is not possible: it must be a whole number or 'all'."),
        ("-m per-fedavg --set per-fedavg.alpha=-1", "per-fedavg.alpha = '-1' is not possible: it must be at least 0 or 'lr'."),
        ("-m fedamp --join-ratio 0.5", "--set fedamp.partial=true"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_stored(shell: Shell, tmp_path: Path, options: str, words: str) -> None:
    assert words in shell.refused("run", "-m", "fedavg", *options.split())
    assert not (tmp_path / "pflbench.db").exists() or rows("SELECT * FROM run") == []


def test_what_the_second_dataset_lacks_shows_before_the_first_is_run(shell: Shell, tmp_path: Path) -> None:
    assert "The data of 'mnist' are missing" in shell.refused("run", "-m", "fedavg", *SHORT, "-d", "mnist")
    assert not (tmp_path / "pflbench.db").exists()


def test_a_gpu_that_is_not_there(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert "PyTorch sees no GPU here" in shell.refused("run", "-m", "fedavg", *SHORT, "--device", "cuda")
    assert not Path("pflbench.db").exists()


def test_a_disk_that_fills_up_loses_nothing_committed(shell: Shell) -> None:
    """As if it did: no file may become longer."""
    command = ("run", "-m", "local", "-d", "digits", "--rounds", "40", "--clients", "5", "--batch-size", "500")
    most, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (470_000, hard))
    try:
        assert "committed before is kept" in shell.refused(*command)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    query = "SELECT round, accuracy FROM round ORDER BY round"
    committed = rows(query)
    assert len(committed) > 6
    assert [row[0] for row in committed] == list(range(len(committed)))
    assert shell(*command, "--quiet").code == 0
    assert rows(query)[: len(committed)] == committed
    assert parsed(shell("db", "check", "--json")) == {"ok": True, "problems": []}


def test_names_in_any_case_are_one_run(shell: Shell) -> None:
    asked = ("run", "-m", "FedALA", "--set", "FedALA.p=2", "-d", "DIGITS", "--model", "MLP", *DRY)
    (one,), (other,) = parsed(shell(*asked)), parsed(shell(*map(str.lower, asked)))
    assert one["key"] == other["key"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--clients 1", "has one client, so that nothing is federated"),
        ("--batch-size 100000", "no client has so many samples"),
        ("--preset fedala2022", "--preset fedala2022 changes nothing of fedavg."),
        ("--clients 40 --beta 0.05", "No draw gave every client the usual 22 (--min-samples)."),
    ],
)
def test_what_a_user_may_not_expect_is_said(options: str, words: str, shell: Shell) -> None:
    done = shell("run", "-m", "fedavg", "-d", "digits", "-r", "1", *options.split())
    assert (done.code, words in done.err) == (0, True), done


def test_a_dry_run_is_a_table(shell: Shell) -> None:
    """A line for each run with its key, then what they take; no database is made."""
    asked = ("run", "-m", "fedavg", "-m", "fedala", "--set", "fedala.p=1,2", *SHORT)
    shown, keys = shell(*asked, "--dry-run").out.splitlines(), [one["key"] for one in parsed(shell(*asked, *DRY))]
    assert [line.split()[-1] for line in shown[1:4]] == [key[:16] for key in keys]
    assert shown[4] == "To run: 3, 1 at a time: a few minutes at most."
    assert not list(Path().iterdir())


def test_an_unknown_name_is_answered_before_torch_is_imported(tmp_path: Path) -> None:
    wrong = ("-m fedavx", "-m fedavg -d digit", "-m fedavg --model cnnx", "-m fedfomo+ala")
    program = (
        "import sys; from pflbench.cli import main\n"
        f"print([main(['run', *one.split()]) for one in {wrong}], 'torch' in sys.modules)"
    )
    done = finish(start(folder=tmp_path, program=program))
    assert done.out == "[2, 2, 2, 2] False\n", done.err
