"""Ctrl-C, SIGTERM and SIGHUP: what a command keeps, what it says, and how it ends."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from support.command import PROGRAM, Shell, environment, finish, rows, start, workers
from support.spies import on_call

from pflbench.engine.federation import Federation
from pflbench.engine.loop_executor import Worker
from pflbench.methods.fedavg import FedAvg
from pflbench.run.checkpoint import Checkpoints

RUN = ("run", "-m", "fedavg", "-d", "digits", "--clients", "4", "--rounds", "6")
LONG = (*RUN[:-1], "3000")


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Ignored, where the tests were started in the background."""
    held = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, held)


def interrupted_in(monkeypatch: pytest.MonkeyPatch, *rounds: int) -> None:
    """Ctrl-C comes when a command makes one of these rounds, in each of them once."""
    left = list(rounds)

    def update(_: FedAvg, fed: Federation, *__: Any) -> None:
        if fed.t in left:
            left.remove(fed.t)
            os.kill(os.getpid(), signal.SIGINT)

    on_call(monkeypatch, FedAvg, "update", update)


def test_a_second_ctrl_c_leaves_the_first_its_checkpoint(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Checkpoints.save

    def save(self: Checkpoints, snapshot: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        whole(self, snapshot)
        os.kill(os.getpid(), signal.SIGINT)

    interrupted_in(monkeypatch, 4)
    monkeypatch.setattr(Checkpoints, "save", save)
    done = shell(*RUN)
    assert (done.code, "The same command continues" in done.err) == (130, True)
    assert rows("SELECT status FROM run") == [("interrupted",)]
    monkeypatch.setattr(Checkpoints, "save", whole)
    assert "resumed after round 3" in shell(*RUN).err


def broken_off(monkeypatch: pytest.MonkeyPatch, name: str, method: str) -> None:
    """SIGTERM comes while PyTorch calls the file of a checkpoint: it would make a RuntimeError of KeyboardInterrupt."""
    whole, calls = getattr(torch, name), count(1)

    class File(io.FileIO):
        pass

    def asked(self: Any, *arguments: Any) -> Any:
        if next(calls) == 3:
            monkeypatch.setattr(torch, name, whole)
            os.kill(os.getpid(), signal.SIGTERM)
        return getattr(super(File, self), method)(*arguments)

    setattr(File, method, asked)
    at = 1 if name == "save" else 0

    def call(*arguments: Any, **options: Any) -> Any:
        with File(arguments[at].name, "rb" if name == "load" else "wb") as file:
            return whole(*arguments[:at], file, **options)

    monkeypatch.setattr(torch, name, call)


def test_a_signal_in_a_checkpoint_waits_for_its_end(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    often = (*RUN, "--checkpoint-every", "0")
    broken_off(monkeypatch, "save", "write")
    done = shell(*often)
    assert (done.code, "The same command continues" in done.err, "disk" in done.err) == (143, True, False)
    interrupted_in(monkeypatch, 4)
    shell(*often)
    broken_off(monkeypatch, "load", "readinto")
    done = shell(*often)
    assert (done.code, "The same command continues" in done.err) == (143, True)
    assert rows("SELECT status, message FROM run") == [("interrupted", None)]
    assert "resumed after round 3" in shell(*often).err


def test_what_a_library_makes_of_an_interruption_is_one(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def update(*_: Any) -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            raise RuntimeError("what the library was at") from None

    monkeypatch.setattr(FedAvg, "update", update)
    assert shell(*RUN).code == 130
    assert rows("SELECT status, message FROM run") == [("interrupted", None)]


def test_the_threads_of_clients_are_not_interrupted(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """KeyboardInterrupt between a lock's `acquire` and the block that releases it: the other threads would wait forever."""
    whole, submitted, trained = ThreadPoolExecutor.submit, list[int](), list[Worker]()

    def submit(self: ThreadPoolExecutor, *call: Any) -> Any:
        if not submitted:
            os.kill(os.getpid(), signal.SIGINT)
        submitted.append(call[-1])
        return whole(self, *call)

    def third(_: FedAvg, fed: Federation, *__: Any) -> None:
        if fed.t == 3:
            monkeypatch.setattr(ThreadPoolExecutor, "submit", submit)
            on_call(monkeypatch, Worker, "load", lambda worker, *_: trained.append(worker))

    on_call(monkeypatch, FedAvg, "update", third)
    done = shell(*RUN, "--workers", "2")
    assert (done.code, "The same command continues" in done.err) == (130, True)
    assert sorted(submitted) == [0, 1, 2, 3]
    assert not trained, "clients that have not begun when it comes"
    assert rows("SELECT status, MAX(round) FROM run JOIN round ON run_id = run.id") == [("interrupted", 2)]


def test_of_several_signals_the_first_interrupts() -> None:
    """Each of the others, raised on the way out, would leave it half done. Asked later, a command that hangs there is ended."""
    program = """
import os, signal, time
from pflbench import interrupts
interrupts.GRACE = 0.2
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which `nohup` has changed
told = []
with interrupts.caught(last=True):
    for _ in range(2):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            os.kill(os.getpid(), signal.SIGINT)
            with interrupts.held():
                os.kill(os.getpid(), signal.SIGHUP)
            told.append(interrupts.exit_code())
        time.sleep(0.3)
print(told)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[143, 143]\n"
    assert done.stderr.count("Stopping after this step") == 6, "each is answered at once"


def test_force_goes_on_with_the_attempt_that_it_began(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell(*RUN)
    interrupted_in(monkeypatch, 2, 3, 5)
    told = [shell(*RUN, "--force").err for _ in range(4)]
    assert [re.findall(r"resumed after round (\d)", one) for one in told] == [[], ["1"], ["2"], ["4"]]
    assert rows("SELECT attempt, status FROM run") == [(1, "finished"), (2, "finished")]
    first, second = (rows(f"SELECT round, accuracy, test_loss FROM round WHERE run_id = {run}") for run in (1, 2))
    assert first == second
    interrupted_in(monkeypatch, 2)
    shell(*RUN, "--force")
    assert "run 2 is finished already" in shell(*RUN).err, "an interrupted repetition changes no result"
    assert "as far as they got" not in shell("table", "accuracy", "--status", "any").out
    assert "started" in shell(*RUN, "--force", "--save-artifacts-every", "1").err, "it keeps arrays, which the other did not"
    assert rows("SELECT status FROM run") == [("finished",)] * 2 + [("interrupted",), ("finished",)]


def until(process: subprocess.Popen[str], said: str) -> None:
    assert process.stderr is not None
    while said not in process.stderr.readline():
        assert process.poll() is None, "it never said so"


@pytest.mark.slow
def test_nohup_holds(tmp_path: Path) -> None:
    ignoring = PROGRAM.replace("SIG_DFL", "SIG_IGN")
    process = start(*RUN, folder=tmp_path, program=ignoring)
    until(process, "round 0/")
    process.send_signal(signal.SIGHUP)
    assert finish(process).code == 0
    assert rows("SELECT status FROM run", tmp_path / "pflbench.db") == [("finished",)]


@pytest.mark.slow
def test_a_terminal_that_is_closed(tmp_path: Path) -> None:
    """The kernel sends SIGHUP; whatever is printed then fails."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n{PROGRAM}", *LONG]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment(TERM="xterm"), stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    seen, until = b"", time.monotonic() + 60
    while b" best " not in seen and time.monotonic() < until:
        if select.select([ours], [], [], 1)[0]:
            seen += os.read(ours, 4096)
    os.close(ours)
    try:
        assert process.wait(30) == 129
    finally:
        process.kill()
    assert rows("SELECT status FROM run", tmp_path / "pflbench.db") == [("interrupted",)]
    assert len(list(tmp_path.glob("*.checkpoints/*.pt"))) == 1


@pytest.mark.slow
def test_serve_ends(shell: Shell, tmp_path: Path) -> None:
    shell("db", "upgrade")
    process = start("serve", "--port", "8797", folder=tmp_path)
    assert process.stdout is not None
    assert "http" in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    done = finish(process)
    assert (done.code, "Traceback" in done.err) == (143, False)


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["the command", "all", "a worker"])
def test_workers_keep_their_checkpoints(shell: Shell, tmp_path: Path, whom: str) -> None:
    """Slurm sends SIGTERM to every process of a job; others to the command alone. A worker that alone gets it is replaced."""
    rounds = "200" if whom == "a worker" else "3000"
    command = (*RUN[:-1], rounds, "--seeds", "0-1", "--jobs", "2", "-q")
    shell("db", "upgrade")
    process = start(*command, folder=tmp_path)
    reached = "SELECT COUNT(DISTINCT run_id) FROM round WHERE round > 2"
    while rows(reached) != [(2,)]:
        assert process.poll() is None
        time.sleep(0.1)
    for pid in {"the command": [process.pid], "all": [process.pid, *workers(process)], "a worker": workers(process)[:1]}[whom]:
        os.kill(pid, signal.SIGTERM)
    done = finish(process)
    assert "Traceback" not in done.err
    assert done.err.count("Stopping after this step") == (whom != "a worker")
    assert done.code == (0 if whom == "a worker" else 143)
    assert rows("SELECT attempt, status FROM run") == [(1, "finished" if whom == "a worker" else "interrupted")] * 2
    kept = 0 if whom == "a worker" else 2
    assert len(list(tmp_path.glob("*.checkpoints/*.pt"))) == kept
    if kept:
        assert "Interrupted. The same command continues" in done.err


def test_a_deliberate_second_ctrl_c_ends_what_hangs() -> None:
    program = """
import os, signal, time
from pflbench import interrupts
interrupts.DELIBERATE = 0.1
with interrupts.caught(last=True), interrupts.held():
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)
    print("not by two at once", flush=True)
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)
    print("nor by a scheduler", flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    print("but now")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "not by two at once\nnor by a scheduler\n")
    assert "Stopped at once. The same command continues" in done.stderr


def test_what_comes_after_the_last_block_is_ignored() -> None:
    """Else Python, on its way out, would print a traceback or be killed."""
    program = """
import os, signal
from pflbench import interrupts
try:
    with interrupts.caught(last=True):
        os.kill(os.getpid(), signal.SIGTERM)
except KeyboardInterrupt:
    for number in interrupts.SIGNALS:
        os.kill(os.getpid(), number)
    print(interrupts.exit_code())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr.count("Stopping"), "Traceback" in done.stderr) == ("143\n", 1, False)
