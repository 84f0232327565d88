"""Results at equal cost (methods.md 2.12): what a budget is in words, and which rows have runs that do not fit it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal

from pflbench.errors import UserError
from pflbench.report import labels
from pflbench.report.arrangement import Arranged
from pflbench.store.runs import Budget, Measure, Result

UNITS: dict[Measure, str] = {"flops": "FLOPs", "bytes": "bytes", "seconds": "seconds", "rounds": "rounds"}
# What may follow the number.
_FACTORS: dict[Measure, dict[str, int]] = {
    "flops": labels.PREFIXES,
    "bytes": labels.PREFIXES,
    "seconds": {"": 1, "s": 1, "min": 60, "h": 3600},
    "rounds": {"": 1},
}
_COUNTS: dict[Measure, str] = {
    "flops": "the rounds of each run up to {} of reception and update, all clients together,",
    "bytes": "the rounds of each run up to {}, sent and received by all clients together,",
    "seconds": "the rounds of each run up to {} of reception and update",
    "rounds": "the first {} of each run",
}


def parse(text: str) -> Budget:
    """'flops=5T', 'bytes=200M', 'seconds=10min' or 'rounds=50'. Raises UserError for anything else."""
    name, _, amount = text.partition("=")
    measure = next((one for one in UNITS if one == name), None)
    parts = re.fullmatch(r"(\d+\.?\d*(?:e\+?\d{1,2})?)([A-Za-z]*)", amount, re.ASCII)
    if measure and parts and parts[2] in _FACTORS[measure]:
        number = Decimal(parts[1]) * _FACTORS[measure][parts[2]]
        if number > 0 and (measure != "rounds" or number == int(number)):
            return Budget(measure, float(number))
    raise UserError(
        f"--at {text}: expected flops=X, bytes=X, seconds=X or rounds=N.",
        "X is above 0, of FLOPs and bytes with k, M, G, T or P, of seconds with s, min or h: flops=5T, seconds=10min, rounds=50.",
    )


def amount(of: Budget) -> str:
    """'5T FLOPs', '600 seconds', '50 rounds'."""
    if of.measure == "rounds":
        return labels.counted(int(of.amount), "round")
    name, factor = labels.prefix(of.amount) if of.measure in ("flops", "bytes") else ("", 1)
    return f"{of.amount / factor:.12g}{name} {UNITS[of.measure]}"


def sentence(at: Budget) -> str:
    """What counts, for a table's notes."""
    return f"Equal cost: only {_COUNTS[at.measure].format(amount(at))} count."


def notes(found: Arranged, at: Budget | None) -> list[str]:
    """Which rows have runs that spent less than the budget, or have no round within it."""
    if at is None or math.isinf(at.amount):
        return []
    less = _where(found, lambda run: run.ended and run.spent is not None and run.spent < at.amount)
    none = _where(found, lambda run: run.within is not None and run.within < _first_evaluated(run))
    return [
        *([f"Spent less than {amount(at)} in all, counted with what they have: {'; '.join(less)}."] if less else []),
        *([f"No evaluated round within {amount(at)}, counted with the initial model: {'; '.join(none)}."] if none else []),
    ]


def _first_evaluated(run: Result) -> int:
    """The first round after the initial model that is evaluated; the last round always is."""
    return int(min(run.spec["train"]["eval_every"], run.rounds))


def _where(found: Arranged, holds: Callable[[Result], bool]) -> list[str]:
    """The rows with such runs: 'FedAvg', or 'FedAvg (Digits, Dir(0.1))' if not in all of their settings."""
    said = []
    for i, row in enumerate(found.rows):
        held = {j: any(map(holds, runs)) for (k, j), runs in sorted(found.cells.items()) if k == i}
        here = [found.settings[j].title for j, such in held.items() if such]
        said += [row.label if all(held.values()) else f"{row.label} ({labels.some(here)})"] * any(here)
    return said
