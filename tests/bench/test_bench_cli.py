"""`pflbench bench` on the command line: measures, stores, lists, compares."""

from __future__ import annotations

import json
import sqlite3
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from support.command import Shell

from pflbench import methods
from pflbench.bench import ceilings
from pflbench.run.execution import Execution
from pflbench.run.prepared import prepare
from pflbench.run.round import PHASES, rounds
from pflbench.run.setting import load_setting
from pflbench.spec import RunSpec
from pflbench.store import database as db


@pytest.fixture
def shell(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setattr(ceilings, "TRIES", 1)
    monkeypatch.setattr(ceilings, "SECONDS", 0.0)
    return shell


def rows(folder: Path, query: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(folder / "pflbench.db") as connection:
        found = connection.execute(query).fetchall()
    connection.close()
    return found


def test_bench_measures_stores_lists_and_compares(shell: Shell, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    done = shell("bench", "-m", "ditto", "--clients", "3", "--share", "0.2", "--rounds", "5", "--name", "mine", "--json")
    assert done.code == 0, done
    assert torch.get_num_threads() == threads
    found = json.loads(done.out)
    assert [(a["method"], a["engine"]) for a in found["arms"]] == [
        ("fedavg", "loop"), ("fedavg", "batched"), ("ditto", "loop"), ("ditto", "batched"),
    ]  # fmt: skip
    query = "SELECT name, value FROM measurement, json_tree(arms) WHERE path LIKE '$[2].seconds.%' AND atom > 0"
    assert len(rows(tmp_path, query.replace("name, value", "value"))) == 15  # 5 rounds of 3 phases
    own, base = (np.sum([a["seconds"][phase] for phase in PHASES], axis=0) for a in (found["arms"][2], found["arms"][0]))
    summary = found["summaries"][2]
    assert summary["median"] == pytest.approx(np.median(own))
    assert summary["times_fedavg"] == pytest.approx(np.median(own / base))
    assert found["setting"]["train_samples"] < 300  # a fifth of 1,347
    # Ditto trains a personal model for two epochs beside FedAvg's one.
    update = [a["floor"]["update"]["flops"] for a in found["arms"]]
    assert update[2] == update[3] == 3 * update[0] > 0
    assert {"torch", "numpy"} <= found["environment"]["packages"].keys()
    listed = json.loads(shell("bench", "list", "--json").out)
    assert listed == [{k: v for k, v in found.items() if k != "summaries"}]
    assert shell("bench", "list").out.splitlines()[1].split()[:4] == ["1", "mine", "digits", "mlp"]
    compared = shell("bench", "compare", "mine", "1")
    assert [line.count("no difference within noise") for line in compared.out.splitlines()] == [0, 1, 1, 1, 1]
    assert compared.err == ""
    (first, *_) = json.loads(shell("bench", "compare", "1", "1", "--json").out)
    assert (first["speedup"], first["verdict"]) == (1, "no difference")


def test_measured_rounds_are_those_of_a_run(shell: Shell, tmp_path: Path) -> None:
    shell("run", "-m", "fedavg", "-d", "digits", "--clients", "3", "--rounds", "2", "-q")
    ((stored, accuracy),) = rows(tmp_path, "SELECT spec, accuracy FROM run JOIN round ON run.id = run_id WHERE round = 2")
    one = RunSpec.model_validate_json(str(stored))
    fed = prepare(one, load_setting(one, Path("data")), torch.device("cpu"), Execution(engine="batched")).federation()
    seconds, states = zip(*islice(rounds(methods.make(one.method), fed), 2), strict=True)
    assert fed.evaluate(states[-1].w, fed.cohort(3)).accuracy == accuracy
    assert all(list(found) == list(PHASES) and min(found.values()) > 0 for found in seconds)


def test_bench_prints_a_table(shell: Shell) -> None:
    done = shell("bench", "-m", "fedavg", "--engine", "batched", "--clients", "2", "--share", "0.01", "--rounds", "1")
    head, row = done.out.splitlines()
    assert head.split()[:3] == ["method", "executor", "s/round"]
    assert row.split()[:2] == ["fedavg", "batched"]
    assert row.split()[8] == "1.00"  # times FedAvg
    assert "GFLOP/s" in done.err
    assert "Stored as measurement 1" in done.err


def test_bench_packs_seeds_and_measures_ways_apart(shell: Shell) -> None:
    ways = ("batched", "packed", "batched:none")
    asked = [text for way in ways for text in ("--engine", way)]
    found = json.loads(shell("bench", "-m", "ditto", "--clients", "2", "--share", "0.05", "--rounds", "2", *asked, "--json").out)
    arms = {(arm["method"], arm["engine"]): arm for arm in found["arms"]}
    assert list(arms) == [(method, way) for method in ("fedavg", "ditto") for way in ways]
    for method in ("fedavg", "ditto"):
        alone, packed = (arms[method, way]["floor"] for way in ("batched", "packed"))
        assert {phase: packed[phase]["flops"] for phase in PHASES} == {phase: 5 * alone[phase]["flops"] for phase in PHASES}
        assert all(len(seconds) == 2 and min(seconds) >= 0 for seconds in arms[method, "packed"]["seconds"].values())
    assert found["environment"]["steps"]["ditto batched:none"]["capture"] == "none"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--engine", "gpu"), "Unknown engine 'gpu'"),
        (("--engine", "batched:fast"), "Unknown way of computing 'fast'"),
        (("--engine", "loop:none"), "the loop executor has no such choice"),
        (("--engine", "batched:compile"), "Valid: graph, groups, none, search, unfold"),
        (("--engine", "batched:unfold"), "on a CPU there is one way"),
        (("--dtype", "tf32"), "there is none on a CPU"),
        (("--share", "0"), "--share 0 leaves nothing"),
        (("--share", "1.5"), "--share 1.5 is not possible"),
        (("--name", "12"), "--name '12' is not possible"),
        (("--rounds", "0"), "--rounds"),
        (("-m", "fedvg"), "Did you mean 'fedavg'?"),
        (("-d", "mnist"), "The data of 'mnist' are missing"),
        (("-d", "digits", "list"), "Options of `bench` stand before `list`"),
        (("list",), "pflbench.db"),
    ],
)
def test_wrong_input_ends_before_anything_is_measured(
    shell: Shell, tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    assert told in shell.refused("bench", *arguments)
    assert not (tmp_path / "pflbench.db").exists()


def test_a_measurement_that_is_not_there(shell: Shell) -> None:
    db.connect(db.default_url()).dispose()
    assert "There is no measurement 7." in shell.refused("bench", "compare", "7", "mine")
    assert "There is no measurement mine." in shell.refused("bench", "compare", "mine", "7")
    assert shell("bench", "list").err == "There are no measurements yet: pflbench bench makes one.\n"
