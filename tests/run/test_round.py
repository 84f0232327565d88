"""A run, a measurement, the contract suite and the toy make the round that is written out here, on and with the same clients."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from sqlalchemy import Engine
from support.runs import BatchNormOnDigits, run, spec
from support.spies import on_call
from torch import Tensor

from pflbench.contract import small, toy
from pflbench.engine.federation import Federation
from pflbench.methods.ditto import Ditto
from pflbench.run.checkpoint import tensors
from pflbench.run.execution import Execution
from pflbench.run.federation_data import FederationData, load_federation_data
from pflbench.run.prepared import prepare
from pflbench.run.round import rounds

ROUNDS = 3
CPU = torch.device("cpu")


class Event(NamedTuple):
    """A phase that begins: its clients, and every bit of the state and of the buffers that it begins with."""

    phase: str
    t: int
    clients: list[int]
    bits: str


def bits(fed: Federation, state: Any) -> str:
    """A which whose buffers are the initial ones is as good as none."""
    initial = fed.flat.buffer_row(fed.dtype)
    moved = {which: rows for which, rows in fed.buffers.items() if not torch.equal(rows, initial.expand_as(rows))}
    found = hashlib.sha256()
    for name, value in sorted({**tensors(state), **moved}.items()):
        found.update(name.encode() + value.numpy().tobytes())
    return found.hexdigest()


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """Of Ditto, on a model with BatchNorm; those who are initialised for a test alone are left out."""
    seen: list[Event] = []

    def note(phase: str, _: Ditto, fed: Federation, s: Any, S: Tensor) -> None:
        if torch.equal(S, fed.cohort(fed.t)):
            seen.append(Event(phase, fed.t, S.tolist(), bits(fed, s)))

    for phase in ("receive", "update"):
        on_call(monkeypatch, Ditto, phase, partial(note, phase))
    monkeypatch.setattr(FederationData, "model", lambda *_: BatchNormOnDigits())
    return seen


@pytest.fixture
def tested(monkeypatch: pytest.MonkeyPatch) -> dict[int, set[int]]:
    """By round."""
    seen: dict[int, set[int]] = defaultdict(set)
    on_call(monkeypatch, Federation, "evaluate", lambda fed, models, S, *_: seen[fed.t].update(S.tolist()))
    return seen


def by_hand(fed: Federation, rule: str) -> None:
    method = Ditto()
    state = method.init(fed)
    for t in range(1, ROUNDS + 1):
        now = fed.at(t)
        S = now.cohort(t)
        state = method.receive(now, state, S)
        if rule == "reset":
            now.reset_buffers(S, ["model"])
        state = method.update(now, state, S)
        if rule == "average":
            now.average_buffers(S, ["model"])


@pytest.mark.parametrize("rule", ["local", "average", "reset"])
@pytest.mark.parametrize("evaluate", ["participants", "all"])
def test_there_is_one_round(rule: str, evaluate: str, store: Engine, events: list[Event], tested: dict[int, set[int]]) -> None:
    this = spec("ditto", rounds=ROUNDS, join_ratio=0.5, bn_buffers=rule, evaluate=evaluate)
    setting = load_federation_data(this, Path("data"))

    def made() -> Federation:
        return prepare(this, setting, CPU, Execution(workers=1)).federation()

    def taken() -> list[Event]:
        """Without the reception that follows the last round."""
        found = [event for event in events if event.t <= ROUNDS]
        events.clear()
        return found

    by_hand(made(), rule)
    expected = taken()
    assert [(event.phase, event.t) for event in expected] == [(p, t) for t in range(1, ROUNDS + 1) for p in ("receive", "update")]
    assert len({event.bits for event in expected if event.phase == "update"}) == ROUNDS, "every round moves something"

    small.train(Ditto(), made(), ROUNDS)
    assert taken() == expected
    toy.rounds(Ditto(), made(), ROUNDS)
    assert taken() == expected
    assert not tested

    cohorts = {event.t: set(event.clients) for event in expected}
    whom = cohorts if evaluate == "participants" else {t: set(range(this.partition.clients)) for t in cohorts}
    list(islice(rounds(Ditto(), made()), ROUNDS))
    assert taken() == expected
    assert tested == whom
    tested.clear()
    run(this, store)
    assert taken() == expected
    assert {t: clients for t, clients in tested.items() if t <= ROUNDS} == whom
