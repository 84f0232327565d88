"""Which of the wanted runs there are, and which of them are only begun."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Engine

from pflbench.reproduce.goal import Keeps, Wanted
from pflbench.store import arrays
from pflbench.store.runs import Run, attempts

State = Literal["there", "interrupted", "missing", "diverged"]
STATES: tuple[State, ...] = ("there", "interrupted", "missing", "diverged")


@dataclass(frozen=True)
class Standing:
    """run: the attempt that counts or goes on. round: what it has reached. anew: one did not keep what is needed."""

    wanted: Wanted
    state: State
    run: int | None = None
    round: int = 0
    anew: bool = False

    @property
    def rounds_left(self) -> int:
        return self.wanted.spec.train.rounds - self.round if self.state in ("interrupted", "missing") else 0


def standings(engine: Engine, wanted: Sequence[Wanted]) -> list[Standing]:
    """How far each run is, in the same order."""
    found = attempts(engine, [one.spec.key for one in wanted])
    runs = [attempt.id for same in found.values() for attempt in same]
    names = {one.keeps.array for one in wanted if one.keeps.array is not None}
    kept = arrays.rounds(engine, runs, names) if names else {}
    return [_standing(one, found.get(one.spec.key, []), kept) for one in wanted]


def _standing(wanted: Wanted, found: Sequence[Run], kept: dict[tuple[int, str], list[int]]) -> Standing:
    def whole(attempt: Run) -> bool:
        return _kept(wanted.keeps, kept.get((attempt.id, wanted.keeps.array or ""), []), attempt.last_round or 0)

    for attempt in reversed(found):
        if attempt.status == "finished" and whole(attempt):
            return Standing(wanted, "there", attempt.id, attempt.last_round or 0)
    if not found:
        return Standing(wanted, "missing")
    newest = found[-1]
    if newest.status == "diverged":
        return Standing(wanted, "diverged", newest.id, newest.last_round or 0)
    if newest.status == "finished" or not whole(newest):
        return Standing(wanted, "missing", anew=True)
    if newest.last_round is None:
        return Standing(wanted, "missing")
    return Standing(wanted, "interrupted", newest.id, newest.last_round)


def _kept(keeps: Keeps, rounds: Sequence[int], reached: int) -> bool:
    """Whether a run kept its arrays in all rounds in which it has to, as far as it got."""
    return {t for t in keeps.rounds if t <= reached} <= set(rounds)
