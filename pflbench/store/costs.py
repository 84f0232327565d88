"""What runs cost: time, communication and memory, per round and until convergence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import ColumnElement, Connection, Engine, func, select

from pflbench.store.read import floats, reading
from pflbench.store.schema import Artifact, Round, Run

# Enough for a median; reading every round of a thousand runs would take seconds.
ROUNDS_READ = 50

_SPENT: ColumnElement[float] = func.coalesce(Round.seconds_receive, 0.0) + func.coalesce(Round.seconds_update, 0.0)


@dataclass(frozen=True)
class Cost:
    """Costs of one run. Seconds are those of reception and update together, evaluation apart.

    converged: the first evaluated round within the tolerance of the best. seconds_total: up to it. seconds_initial: of that, what
    the receptions with ALA's initial stage took. seconds_round and seconds_evaluate: medians. parameters, scalars, bytes: per
    participant and round, both ways together; multiple: parameters in units of the model's size.
    """

    best: float
    converged: int
    seconds_total: float
    seconds_initial: float
    seconds_round: float
    seconds_evaluate: float
    parameters: float
    scalars: float
    bytes: float
    multiple: float | None
    peak_memory: int | None


def costs(engine: Engine, run_ids: Collection[int], tolerance: float) -> dict[int, Cost]:
    """By run; runs without a trained and evaluated round are left out. tolerance: of accuracy, a fraction."""
    found = {}
    with reading(engine) as c:
        totals = {row.id: row for row in c.execute(_totals(run_ids, tolerance))}
        for run, rounds in _sampled(c, {run: row.last for run, row in totals.items()}):
            row = totals[run]
            spent, evaluated, *sent = (float(value) for value in np.median(rounds[:, :-1], axis=0))
            peak = rounds[:, -1].max()
            found[run] = Cost(
                best=row.best,
                converged=row.converged,
                seconds_total=row.total or 0.0,
                seconds_initial=row.initial or 0.0,
                seconds_round=spent,
                seconds_evaluate=evaluated,
                parameters=sent[0],
                scalars=sent[1],
                bytes=sent[2],
                multiple=sent[0] / row.parameters if row.parameters else None,
                peak_memory=None if np.isnan(peak) else int(peak),
            )
    return found


def _totals(run_ids: Collection[int], tolerance: float) -> Any:
    """One row per run: what needs a look at all rounds, each a seek or a short scan along an index."""
    mine = Round.run_id == Run.id
    best = select(func.max(Round.accuracy)).where(mine).scalar_subquery()
    last = select(func.max(Round.round)).where(mine).scalar_subquery()
    base = (
        select(Run.id, Run.parameters, best.label("best"), last.label("last")).where(
            Run.id.in_(run_ids), best.is_not(None), last > 0
        )
    ).subquery()
    mine = Round.run_id == base.c.id
    converged = select(func.min(Round.round)).where(mine, Round.accuracy >= base.c.best - tolerance).scalar_subquery()
    reached = select(base, converged.label("converged")).subquery()
    mine = (Round.run_id == reached.c.id) & (Round.round > 0)
    within = mine & (Round.round <= reached.c.converged)
    # Row t shows the reception of round t + 1 and row t + 1 has its cost.
    stages = select(Artifact.round + 1).where(Artifact.run_id == reached.c.id, Artifact.name == "ala_init_epochs")
    stages = stages.correlate(reached)  # left to itself it would take the stages of all runs
    return select(
        reached,
        select(func.sum(_SPENT)).where(within).scalar_subquery().label("total"),
        select(func.sum(Round.seconds_receive)).where(within, Round.round.in_(stages)).scalar_subquery().label("initial"),
    )


def _sampled(c: Connection, last: dict[int, int]) -> Iterator[tuple[int, npt.NDArray[np.float64]]]:
    """By run, of rounds evenly spaced: seconds, seconds of evaluation; parameters, scalars, bytes per participant; memory."""
    columns = select(
        Round.run_id,
        _SPENT,
        func.coalesce(Round.seconds_evaluate, 0.0),
        (Round.params_up + Round.params_down) * 1.0 / Round.participants,
        (Round.scalars_up + Round.scalars_down) * 1.0 / Round.participants,
        (Round.bytes_up + Round.bytes_down) * 1.0 / Round.participants,
        # A maximum so far, which begins anew where a run is resumed.
        Round.peak_memory,
    )
    by_length: dict[int, list[int]] = defaultdict(list)
    for run, rounds in last.items():
        by_length[rounds].append(run)
    for rounds, runs in by_length.items():
        at = np.unique(np.linspace(1, rounds, min(rounds, ROUNDS_READ)).round().astype(int)).tolist()
        chosen = columns.where(Round.run_id.in_(runs), Round.round.in_(at), Round.participants > 0).order_by(Round.run_id)
        rows = floats(c.execute(chosen).all(), 7)
        if len(rows):  # of none, `split` makes one block
            ids, starts = np.unique(rows[:, 0], return_index=True)
            yield from ((int(run), block[:, 1:]) for run, block in zip(ids, np.split(rows, starts[1:]), strict=True))
