"""Notes: what a method tells of a round is said once and kept with the run."""

from __future__ import annotations

import json
from pathlib import Path

from support.command import Shell
from support.runs import environments, interrupted, run, spec

from pflbench.run.execution import Execution

UPHILL = {"rho": 0.9}
SAID = "rho x steps = "


def told(steps):
    return [(step.round, text) for step in steps for text in step.news]


def kept(store, run_id):
    return environments(store)[run_id - 1].get("notes", {})


def test_said_once_and_kept(store):
    steps = run(spec("feddeper", set=UPHILL), store)
    ((round, text),) = told(steps)
    assert round == 1
    assert text.startswith(SAID)
    assert kept(store, steps[-1].run_id) == {"uphill": text}
    quiet = run(spec("feddeper", set={"rho": 0}), store)
    assert told(quiet) == []
    assert kept(store, quiet[-1].run_id) == {}


def test_what_reception_notes_is_kept_with_the_row_it_is_seen_in(store):
    ((round, text),) = told(run(spec("fedamp"), store))
    assert round == 1, "the clouds of round 2 are made before its E1, which is row 1"
    assert text.startswith("from round 2 on")


def test_a_resumed_run_does_not_say_it_again(store):
    this = spec("feddeper", set=UPHILL)
    before = told(interrupted(this, store, 3, Execution(workers=1, checkpoint_every=0.0)))
    resumed = run(this, store)
    assert resumed[0].kind == "resumed"
    assert len(before) == 1
    assert told(resumed) == []
    assert list(kept(store, resumed[-1].run_id).values()) == [text for _, text in before]


def test_the_user_reads_it(shell: Shell, tmp_path: Path) -> None:
    short = ("-d", "digits", "--rounds", "3", "--clients", "4", "--seed", "0")
    done = shell("run", "-m", "feddeper", "--set", "feddeper.rho=0.9", *short)
    (line,) = [line for line in done.err.splitlines() if SAID in line]
    assert line.startswith("feddeper digits Dir(0.1) seed 0: rho x steps = ")
    assert SAID in shell("runs", "show", "1").out
    (note,) = json.loads(shell("runs", "show", "1", "--json").out)["environment"]["notes"].values()
    assert note.startswith(SAID)
