"""A measurement's arms in a few numbers each."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from pflbench.store.measurements import Arm, Measurement

BASE = "fedavg"  # the method that others are held against


@dataclass(frozen=True)
class Summary:
    """Medians over the rounds; seconds a round. times_fedavg: against FedAvg's rounds in turn, on the same executor."""

    method: str
    engine: str
    median: float
    fastest: float
    slowest: float
    reception: float
    evaluation: float
    update: float
    times_fedavg: float
    times_floor: float
    peak_memory: int


def summaries(measurement: Measurement) -> list[Summary]:
    """In the order of the measurement."""
    base = {arm.engine: arm.rounds() for arm in measurement.arms if arm.method == BASE}
    return [_summary(arm, base[arm.engine]) for arm in measurement.arms]


def _summary(arm: Arm, base: list[float]) -> Summary:
    rounds = arm.rounds()
    floor = sum(phase["seconds"] for phase in arm.floor.values())
    return Summary(
        arm.method,
        arm.engine,
        median(rounds),
        min(rounds),
        max(rounds),
        **{phase: median(seconds) for phase, seconds in arm.seconds.items()},
        times_fedavg=median(own / beside for own, beside in zip(rounds, base, strict=True)),
        times_floor=median(rounds) / floor,
        peak_memory=arm.peak_memory,
    )
