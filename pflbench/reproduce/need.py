"""What a table or figure of which there is nothing yet would take: for whoever asked for it too early."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Engine

from pflbench.report import labels
from pflbench.report.papermap import Kind, Part
from pflbench.reproduce.estimate import Clock
from pflbench.reproduce.goal import Wanted, goals
from pflbench.reproduce.scales import SCALES
from pflbench.reproduce.standing import Standing, standings
from pflbench.store.rounds import speeds
from pflbench.store.runs import ALL


def seconds_left(engine: Engine | None, wanted: tuple[Wanted, ...]) -> float | None:
    """What the missing ones of these runs will take by what rounds took in this database; None where that cannot be told."""
    if engine is None:
        return None
    standing: list[Standing] = standings(engine, wanted)
    clock = Clock(speeds(engine, ALL, {"fedavg", *(one.spec.method.name for one in wanted)}))
    times = [clock.left(one).seconds for one in standing]
    return None if None in times else sum(time for time in times if time is not None)


def need(kind: Kind, name: str, engine: Engine | None, data_dir: Path) -> tuple[str, dict[str, float | None]]:
    """Which table or figure of the papers it is with the runs that it needs, in words, and by scale the seconds left."""
    command_name = Part(kind, name).command_name
    left: dict[str, float | None] = {}
    words = ""
    for scale in ("full", "quick"):
        (goal,) = goals(command_name, scale)
        wanted = goal.wanted(data_dir)
        left[scale] = seconds_left(engine, wanted)
        if scale == "full":
            methods = list(dict.fromkeys(labels.method_title(one.spec.method.name) for one in wanted))
            some = " and ".join(methods) if len(methods) < 3 else f"{len(methods)} methods"
            datasets = labels.some(list(dict.fromkeys(labels.label_title(one.spec.data.label) for one in wanted)))
            words = f"{goal.source}: {len(wanted)} run{'s' * (len(wanted) > 1)} of {some} on {datasets}"
    return words, left


def command(kind: Kind, name: str) -> str:
    return f"pflbench reproduce {Part(kind, name).command_name} --scale {'|'.join(reversed(SCALES))}"
