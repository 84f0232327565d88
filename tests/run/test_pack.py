"""Seeds that train together have the numbers that they have alone, their own rows and ends, and their part of the time."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sqlalchemy import Engine
from support import runs
from support.cases import rest_slow
from support.runs import hasty, interrupted, numbers, rows
from support.spies import on_call

from pflbench import methods
from pflbench.engine.batched.batched_executor import BatchedExecutor
from pflbench.engine.federation import Federation
from pflbench.engine.requests import Evaluate, Request, Sgd
from pflbench.errors import UserError
from pflbench.methods.fedavg import FedAvg
from pflbench.run import pack as packing
from pflbench.run.execution import Execution
from pflbench.run.pack import Told, execute_pack
from pflbench.run.prepared import Prepared
from pflbench.run.training import execute
from pflbench.spec import RunSpec
from pflbench.sweep.run_queue import RunQueue

# Methods that go different ways: plain, inner loops, features of the head, matrices of all clients, initial stages.
TOGETHER = ("fedavg", "fedala", "fedrep", "apple", "pfedme", "fedphp", "partialfed", "ditto+ala")
BATCHED = Execution(engine="batched", pack=10)
ASKED = Execution(engine="batched", pack=10, chunk=100)  # without a look at the memory, which takes longer than these runs


def spec(method: str = "fedavg", seed: int = 0, **more: Any) -> RunSpec:
    return runs.spec(method, seed=seed, **{"clients": 4, "rounds": 3, "batch_size": 150, **more})


def seeds(method: str = "fedavg", count: int = 3, **more: Any) -> list[RunSpec]:
    return [spec(method, seed, **more) for seed in range(count)]


def packed(specs: list[RunSpec], store: Engine, how: Execution = BATCHED) -> list[tuple[int, Told]]:
    return list(execute_pack(specs, store, Path("data"), how))


def alone(specs: list[RunSpec], store: Engine) -> None:
    """On the other executor, as further attempts of the same runs."""
    for one in specs:
        list(execute(one, store, Path("data"), Execution(engine="loop", workers=1), force=True))


def statuses(store: Engine) -> list[str]:
    return [status for (status,) in rows(store, "SELECT status FROM run ORDER BY attempt, seed")]


def records(store: Engine) -> list[dict[str, int]]:
    """What the runs say of their pack, by seed."""
    return [json.loads(found)["pack"] for (found,) in rows(store, "SELECT environment FROM run WHERE attempt = 1 ORDER BY seed")]


def assert_the_same(store: Engine, runs: int, first: int = 0) -> None:
    """Of each seed, the rows of both attempts."""
    for seed in range(first, first + runs):
        attempts = rows(store, f"SELECT id FROM run WHERE seed = {seed} ORDER BY attempt")
        for one, other in zip(*(numbers(store, run)[:3] for (run,) in attempts), strict=True):
            assert len(one) == len(other)
            for a, b in zip(one, other, strict=True):
                assert [x if x is None or isinstance(x, str) else pytest.approx(x, abs=1e-10) for x in b] == list(a)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the inner executor is asked, by kind of request, in the main thread. Not what is asked for an estimate."""
    made: Counter[str] = Counter()

    def counted(executor: BatchedExecutor, asked: Request[Any]) -> None:
        assert threading.current_thread() is threading.main_thread()
        made[type(asked).__name__] += executor.device.type != "meta"

    on_call(monkeypatch, BatchedExecutor, "do", counted)
    return made


# -- the numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", rest_slow(methods.names(with_ala=True), *TOGETHER))
def test_together_as_alone(name: str, store: Engine) -> None:
    specs = seeds(name, 2, set=hasty(name))
    packed(specs, store, ASKED if "+" in name else BATCHED)
    assert [record["runs"] for record in records(store)] == [2, 2]
    alone(specs, store)
    assert statuses(store) == ["finished"] * 4
    assert_the_same(store, 2)


@pytest.mark.parametrize(
    ("name", "evaluate"), [("partialfed", "participants"), ("per-fedavg", "participants"), ("fedphp", "all"), ("fedala", "all")]
)
def test_partial_participation(name: str, evaluate: str, store: Engine) -> None:
    """The cohorts differ, and so do their clients' numbers of steps."""
    specs = seeds(name, 2, join_ratio=0.5, batch_size=100, evaluate=evaluate, set=hasty(name))
    packed(specs, store, ASKED)
    alone(specs, store)
    cohorts = rows(
        store, "SELECT seed, round, client FROM client_round JOIN run ON id = run_id WHERE attempt = 1 ORDER BY 1, 2, 3"
    )
    differ = {(t, client) for seed, t, client in cohorts if seed == 0} ^ {(t, c) for seed, t, c in cohorts if seed == 1}
    assert len(differ) > 2 if evaluate == "participants" else not differ
    assert_the_same(store, 2)


def test_fedavg_of_three_is_as_many_calls_as_of_one(store: Engine, calls: Counter[str]) -> None:
    list(execute(spec(seed=7), store, Path("data"), Execution(engine="batched")))
    one = dict(calls)
    assert one == {"Sgd": 3, "Evaluate": 4}
    calls.clear()
    packed(seeds(), store)
    assert dict(calls) == one


def test_initial_stages_of_different_lengths(store: Engine, calls: Counter[str]) -> None:
    """FedALA's seeds make different numbers of epochs in round 2, and are together again for all that follows."""
    packed(seeds("fedala"), store)
    told = records(store)
    lengths = [record["calls"] for record in told]
    assert len(set(lengths)) > 1
    assert sum(calls.values()) == max(lengths), "nothing is made apart but the longest initial stage's last epochs"
    assert sum(record["apart"] for record in told) == sorted(lengths)[-1] - sorted(lengths)[-2]


def test_what_cannot_be_joined_is_counted(store: Engine) -> None:
    packed(seeds("apple"), store)
    for record in records(store)[:2]:
        assert record == {"runs": 3, "calls": 7, "apart": 3}, "three rounds' training, in which clients need all models of a run"


# -- the ends ------------------------------------------------------------------------------------------------------------


def test_one_diverges_and_the_others_go_on(store: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its numbers are not finite in the very tensors that the others' are in."""
    whole = Prepared.initial_model

    def huge(run: Prepared) -> Any:
        made = whole(run)
        if run.spec.seed == 1:
            for parameter in made.module.parameters():
                parameter.data *= 1e150
        return made

    monkeypatch.setattr(Prepared, "initial_model", huge)
    steps = packed(seeds(), store)
    assert statuses(store) == ["finished", "diverged", "finished"]
    assert [number for number, step in steps if isinstance(step, packing.Diverged)] == [1]
    alone([spec(seed=0), spec(seed=2)], store)
    for seed in (0, 2):
        assert_the_same(store, 1, seed)


def test_what_is_finished_takes_no_place(store: Engine) -> None:
    list(execute(spec(seed=1), store, Path("data"), BATCHED))
    two = Execution(engine="batched", pack=2)
    specs = [*seeds(count=4), spec("local")]
    queue = RunQueue(tuple(specs), store.url, Path("data"), two)
    found = [[(one.method.name, one.seed) for one in pack] for pack in queue.packs(specs, store)]
    assert found == [[("fedavg", 1)], [("fedavg", 0), ("fedavg", 2)], [("fedavg", 3)], [("local", 0)]]
    anew = replace(queue, repeated={one.key: 0 for one in specs}).packs(specs, store)
    assert [[one.seed for one in pack] for pack in anew] == [[0, 1], [2, 3], [0]]
    kinds = {number: step.kind for number, step in packed(seeds(), store) if not isinstance(step, packing.Diverged)}
    assert kinds == {0: "finished", 1: "exists", 2: "finished"}, "should another process have been faster"


def test_ctrl_c_in_the_middle_of_a_call(store: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def do(executor: BatchedExecutor, asked: Request[Any]) -> None:
        made.extend([1] * (isinstance(asked, Sgd) and executor.device.type != "meta"))
        if len(made) == 3:
            raise KeyboardInterrupt

    on_call(monkeypatch, BatchedExecutor, "do", do)
    with pytest.raises(KeyboardInterrupt):
        packed(seeds(), store)
    assert statuses(store) == ["interrupted"] * 3
    assert [record["calls"] for record in records(store)] == [5, 5, 5]
    monkeypatch.undo()
    packed(seeds(), store)
    alone(seeds(), store)
    assert_the_same(store, 3)


def test_who_is_behind_catches_up_first(store: Engine, calls: Counter[str]) -> None:
    """One run stands at round 2 and two at the beginning: from round 3 on all are made together."""
    interrupted(spec(rounds=5), store, 2, BATCHED)
    calls.clear()
    told = [(number, step.round) for number, step in packed(seeds(rounds=5), store) if getattr(step, "kind", "") == "round"]
    assert told[:6] == [(1, 0), (2, 0), (1, 1), (2, 1), (1, 2), (2, 2)]
    assert calls == {"Sgd": 5, "Evaluate": 6}
    alone(seeds(rounds=5), store)
    assert_the_same(store, 3)


def test_an_error_of_one_ends_all(store: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def update(_: FedAvg, fed: Federation, *__: Any) -> None:
        if (fed.seed, fed.t) == (1, 2):
            raise ZeroDivisionError

    on_call(monkeypatch, FedAvg, "update", update)
    with pytest.raises(ZeroDivisionError):
        packed(seeds(), store)
    assert statuses(store) == ["interrupted", "failed", "interrupted"]
    monkeypatch.undo()
    assert {step.kind for _, step in packed(seeds(), store) if not isinstance(step, packing.Diverged)} >= {"resumed", "finished"}


def test_out_of_memory_in_a_joined_call_is_that_of_all(store: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def do(_: BatchedExecutor, asked: Request[Any]) -> None:
        if isinstance(asked, Sgd):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    on_call(monkeypatch, BatchedExecutor, "do", do)
    with pytest.raises(UserError, match="Out of GPU memory"):
        packed(seeds(), store)
    assert rows(store, "SELECT status, message FROM run") == [("failed", "out of GPU memory")] * 3


def test_seconds_of_all_runs_are_those_on_the_wall(store: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that training (3 s) and evaluation (1.5 s) of all move, and in each round 7 s of one run by itself."""
    now, seconds = [100.0], {Sgd: 3, Evaluate: 1.5}
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def taking(executor: BatchedExecutor, asked: Request[Any]) -> None:
        now[0] += seconds[type(asked)] * (executor.device.type != "meta")

    def by_itself(_: FedAvg, fed: Federation, *__: Any) -> None:
        now[0] += 7 * (fed.seed == 1)

    on_call(monkeypatch, BatchedExecutor, "do", taking)
    on_call(monkeypatch, FedAvg, "update", by_itself)
    packed(seeds(), store)
    found = rows(store, "SELECT seconds_update, seconds_receive, seconds_evaluate FROM round ORDER BY round, run_id")
    assert found == [*[(None, None, 0.5)] * 3, *[(1.0, 0.0, 0.5), (8.0, 0.0, 0.5), (1.0, 0.0, 0.5)] * 3]
    assert now[0] == 100 + 3 * 3 + 4 * 1.5 + 3 * 7


# -- how many, and what is asked for --------------------------------------------------------------------------------------
