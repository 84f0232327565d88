"""Rounds of a method on the stand-in, and the same rounds by the loop executor on the CPU: do they give the same numbers?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from support.gpu.dispatch import NAME, OnGpu
from support.gpu.world import World

from pflbench.contract.as_run import method as make
from pflbench.contract.small import federation, tensors, unequal
from pflbench.engine.federation import Federation
from pflbench.engine.requests import Evaluated, Executor, Scanned, Trained
from pflbench.methods.base import Method
from pflbench.run.arithmetic import exact_arithmetic
from pflbench.run.round import CommunicationRound

Numbers = dict[str, np.ndarray]
# Samples of seven clients: 7, 6 and 1 of them make a first, second and third step. There is no program for 6, and that for 7 must
# leave out the client that has finished.
CLIENTS = (6, 10, 11, 12, 13, 14, 16)
TWENTY = unequal(5)
MODELS: dict[str, dict[str, Any]] = {
    "cnn in colours": {"model": "cnn", "shape": (3, 16, 16)},
}


@dataclass(frozen=True)
class Found:
    """What rounds of a method on the stand-in were like. Counted are those of the last one, when all is captured."""

    off: float  # the largest difference from the loop executor's numbers
    where: str  # that is
    waits: Counter[tuple[str, str]]
    replays: int
    programs: int
    apart: dict[str, int]  # steps of all rounds without a capture, by the reason

    @property
    def waited(self) -> int:
        """How often the host waited for numbers."""
        return sum(count for (what, _), count in self.waits.items() if what != "synchronize")


def small(model: str, engine: str, device: str, **settings: Any) -> Federation:
    """As contract.small makes it, of a model with its name there or one of MODELS. Each round has a learning rate of its own."""
    how = {"n": CLIENTS, "lr_schedule": "cosine", **MODELS.get(model, {"model": model}), **settings}
    return federation(how.pop("model"), engine, device=device, **how)


def compare(
    world: World,
    name: str,
    model: str = "mlp",
    *,
    engine: str = "captured",
    rounds: int = 2,
    observing: bool = False,
    **settings: Any,
) -> Found:
    """observing: whether the method keeps its large arrays. The rest: as contract.small takes it."""
    expected = on_the_cpu(name, model, rounds, observing, tuple(settings.items()))
    fed = small(model, engine, f"{NAME}:0", around=make(name).model, **settings)
    numbers: Numbers = {}
    counts = [_counted(world)]
    with closing(fed.executor), exact_arithmetic(fed.device):
        for found in played(make(name), fed, rounds, observing):
            numbers |= found
            counts.append(_counted(world))
        steps = fed.executor.record()["steps"]
    off, where = farthest(expected, numbers)
    (waits, replays), (waits_before, replays_before) = counts[-1], counts[-2]
    return Found(off, where, waits - waits_before, replays - replays_before, steps["programs"], steps["apart"])


def _counted(world: World) -> tuple[Counter[tuple[str, str]], int]:
    return world.seen.waits.copy(), world.seen.replays


@lru_cache(maxsize=256)
def on_the_cpu(name: str, model: str, rounds: int, observing: bool, settings: tuple[tuple[str, Any], ...]) -> Numbers:
    """By the loop executor."""
    fed = small(model, "loop", "cpu", around=make(name).model, **dict(settings))
    with closing(fed.executor):
        return {what: values for found in played(make(name), fed, rounds, observing) for what, values in found.items()}


def played(method: Method, fed: Federation, rounds: int, observing: bool = False) -> Iterator[Numbers]:
    """All that each round gives: state, scores, losses, arrays, traffic, buffers, and the executor's answers."""
    answers = _heard(fed.executor)
    state = method.init(fed.at(0))
    for t in range(1, rounds + 1):
        now = CommunicationRound(method, fed, t)
        now.reception.observing = now.training.observing = observing
        received = now.receive(state)
        scores, _ = now.evaluate(state, received)
        state = now.update(received)
        found: dict[str, Any] = {f"state.{k}": v for k, v in tensors(state).items()}
        found |= {f"scores.{which}.{k}": v for which, of in scores.items() for k, v in vars(of).items()}
        for ledger in (now.reception.ledger, now.training.ledger):
            found |= {f"loss.{which}": v for which, v in ledger.train_loss.items()} | ledger.artifacts
        found |= {f"{'moments' if '/' in which else 'buffers'}.{which}": v for which, v in fed.buffers.items()}
        found["traffic"] = now.traffic
        found |= {f"answer {i}.{k}": v for i, answer in enumerate(answers) for k, v in answer.items()}
        answers.clear()
        numbers = {k: _host(v) for k, v in found.items() if isinstance(v, (torch.Tensor, np.ndarray, float))}
        yield {f"round {t}: {k}": v[..., ~_counters(fed)] if "buffers" in k else v for k, v in numbers.items()}


def _counters(fed: Federation) -> np.ndarray:
    """Which of BatchNorm's buffers only count batches: averaged, one executor has fractions there and another whole numbers."""
    counters = np.zeros(fed.flat.buffer_size, dtype=bool)
    for entry in fed.flat.buffers:
        counters[entry.start : entry.stop] = entry.name.endswith("num_batches_tracked")
    return counters


def _heard(executor: Executor) -> list[Numbers]:
    """What an executor answers from now on."""
    answers: list[Numbers] = []
    do = executor.do

    def heard(request: Any) -> Any:
        answer = do(request)
        if isinstance(answer, (Trained, Scanned, Evaluated)):
            values = {f.name: getattr(answer, f.name) for f in fields(answer)}
            values |= values.pop("carry", {}) | values.pop("moments", {})
            answers.append({k: _host(v) for k, v in values.items()})
        return answer

    executor.do = heard  # type: ignore[method-assign]
    return answers


def _host(value: Any) -> np.ndarray:
    """Looked at from outside: nothing waits, and nothing is kept."""
    raw = value.raw if isinstance(value, OnGpu) else value
    return np.array(raw.detach().numpy() if isinstance(raw, torch.Tensor) else raw, copy=True)


def farthest(expected: Numbers, found: Numbers) -> tuple[float, str]:
    """The largest difference, and of what; infinite where one has what the other has not, or is no number where the other is."""
    if expected.keys() != found.keys():
        return float("inf"), f"only one has {sorted(expected.keys() ^ found.keys())[:3]}"
    worst, where = 0.0, ""
    for name, value in expected.items():
        off = _off(value, found[name])
        if off > worst:
            worst, where = off, name
    return worst, where


def _off(a: np.ndarray, b: np.ndarray) -> float:
    if a.shape != b.shape or a.dtype.kind != b.dtype.kind:
        return float("inf")
    if a.dtype.kind != "f":
        return 0.0 if np.array_equal(a, b) else float("inf")
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        off = np.where(same, 0.0, np.abs(a - b))
    return float(np.nan_to_num(off, nan=np.inf).max(initial=0.0))
