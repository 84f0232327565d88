"""Reads rounds: curves, histories, second series, clients' results, costs. Accuracies are fractions in [0, 1]."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
from sqlalchemy import CTE, Double, Engine, Integer, cast, column, func, literal, select, values

from pflbench.errors import UserError
from pflbench.store import arrays, runs
from pflbench.store.arrays import Floats, Integers
from pflbench.store.database import reading
from pflbench.store.runs import Measure, Result, RoundRule, RunScope
from pflbench.store.schema import ClientRoundRow, NewClientRow, RoundRow, RunRow, SeriesRow

_OF_A_ROUND = (  # what the costs of a run are computed from
    *("round", "accuracy", "participants", "seconds_receive", "seconds_update", "seconds_evaluate", "flops", "peak_memory"),
    *("params_up", "params_down", "scalars_up", "scalars_down", "bytes_up", "bytes_down"),
)
_ALA_EPOCHS = "ala_init_epochs"
CENTRAL = "central"  # the second series of the global model on the central test set

_WHICH_ROUNDS = "`pflbench runs show RUN` shows which rounds it has."


@dataclass(frozen=True)
class Curve:
    """Accuracy at the evaluated rounds; `spent` is what the run had spent up to each, if it was requested; NaN: not measured."""

    round: Integers
    accuracy: Floats
    spent: Floats | None = None


@dataclass(frozen=True)
class History:
    """Every round of a run, ascending; all arrays have one length. NaN: not measured.

    accuracy and val_accuracy are fractions; receive, update and evaluate are the seconds that each phase of the round took.
    """

    round: Integers
    accuracy: Floats
    test_loss: Floats
    train_loss: Floats
    receive: Floats
    update: Floats
    evaluate: Floats
    val_accuracy: Floats


@dataclass(frozen=True)
class SecondSeries:
    """A second accuracy series of a run, e.g. of Ditto's global model, with its mean loss over the test samples."""

    name: str
    round: Integers
    accuracy: Floats
    test_loss: Floats


@dataclass(frozen=True)
class Clients:
    """Test results per evaluated client after `round` rounds. `loss` is summed over the client's test samples."""

    round: int
    client: Integers
    correct: Integers
    total: Integers
    loss: Floats


@dataclass(frozen=True)
class Adaptation:
    """Accuracy of a run's new clients, pooled, after 0, 1, ... epochs of adaptation of what they get after `round` rounds."""

    round: int
    accuracy: Floats


@dataclass(frozen=True)
class Cost:
    """Costs of one run. Seconds are of reception and update together, without evaluation.

    converged: the first evaluated round within the tolerance of the best. seconds_total: up to it. seconds_initial: of that, what
    the receptions with ALA's initial stage took. seconds_round, parameters, scalars, bytes, flops: medians over all trained
    rounds; parameters, scalars and bytes per participant, both ways together; flops of all clients together, None if a round has
    not counted them. seconds_evaluate: the median over those that were evaluated, None if none was. bytes_total: of all clients,
    both ways, up to convergence. multiple: parameters in units of the model's size.
    """

    best: float
    converged: int
    seconds_total: float
    seconds_initial: float
    seconds_round: float
    seconds_evaluate: float | None
    parameters: float
    scalars: float
    bytes: float
    bytes_total: int
    flops: float | None
    multiple: float | None
    peak_memory: int | None


@dataclass(frozen=True)
class Reached:
    """What a run has cost up to its first evaluated round with an accuracy.

    bytes: of all clients, both ways. seconds: of reception and update, without evaluation. seconds_simulated: None: no clock.
    """

    round: int
    bytes: int
    seconds: float
    seconds_simulated: float | None


@dataclass(frozen=True)
class Speed:
    """Seconds per round of one run: the medians of its evaluated and of its other rounds, each weighted by their number.

    clients: that join a round; epochs: local epochs of each of them.
    """

    method: str
    dataset: str
    model: str
    clients: int
    epochs: int
    seconds: float


def curves(
    engine: Engine, run_ids: Collection[int], *, points: int | None = None, spent: Measure | None = None
) -> dict[int, Curve]:
    """The curves of runs of *one* protocol by run; runs without an evaluated round are left out.

    With `points`, at most about that many evaluated rounds are read, evenly spaced, first and last included: then
    each is a seek instead of a scan of thousands of rounds. All curves have the same rounds, as far as they go.
    """
    at = _evaluated(engine, run_ids)
    if points is not None and len(at) > points:
        at = at[np.linspace(0, len(at) - 1, points).round().astype(int)]
    so_far = runs.spent(spent) if spent else literal(0.0)
    all_rounds = select(RoundRow.run_id, RoundRow.round, RoundRow.accuracy, so_far.label("spent"))
    r = all_rounds.where(RoundRow.run_id.in_(run_ids)).subquery().c
    query = select(r.run_id, r.round, r.accuracy, r.spent).where(r.round.in_(at.tolist()), r.accuracy.is_not(None))
    with reading(engine) as c:
        rows = floats(c.execute(query.order_by(r.run_id, r.round)).all(), 4)
    return {run: Curve(of[:, 0].astype(np.int64), of[:, 1], of[:, 2] if spent else None) for run, of in _by_run(rows)}


def history(engine: Engine, run_id: int) -> History:
    """All rounds of a run; empty arrays for a run without rounds."""
    columns = (RoundRow.accuracy, RoundRow.test_loss, RoundRow.train_loss)
    seconds = (RoundRow.seconds_receive, RoundRow.seconds_update, RoundRow.seconds_evaluate)
    query = select(RoundRow.round, *columns, *seconds, RoundRow.val_accuracy).where(RoundRow.run_id == run_id)
    with reading(engine) as c:
        rows = floats(c.execute(query.order_by(RoundRow.round)).all(), 8)
    return History(rows[:, 0].astype(np.int64), *rows[:, 1:].T)


def newest_rows(engine: Engine, run_id: int, last: int) -> tuple[dict[str, Any], ...]:
    """The last rows of a run in the table `round`, oldest first. last: how many."""
    query = select(RoundRow.__table__).where(RoundRow.run_id == run_id).order_by(RoundRow.round.desc()).limit(last)
    with reading(engine) as c:
        return tuple(dict(row) for row in reversed(c.execute(query).mappings().all()))


def second_series(engine: Engine, run_id: int) -> tuple[SecondSeries, ...]:
    """The second series of a run, by name."""
    query = select(SeriesRow.name, SeriesRow.round, SeriesRow.accuracy, SeriesRow.test_loss)
    query = query.where(SeriesRow.run_id == run_id).order_by(SeriesRow.name, SeriesRow.round)
    with reading(engine) as c:
        found = [(name, floats([row[1:] for row in rows], 3)) for name, rows in groupby(c.execute(query), key=lambda row: row[0])]
    return tuple(SecondSeries(name, of[:, 0].astype(np.int64), of[:, 1], of[:, 2]) for name, of in found)


def by_series(engine: Engine, results: Sequence[Result], name: str, selection: RoundRule) -> list[Result]:
    """The results by the named series instead of the headline, under the same rule.

    Runs without that series, or with none of it at the round that counts, are left out.
    """
    value, t, used = runs.counted(selection, SeriesRow, SeriesRow.name == name)
    best, _, _ = runs.counted(RoundRule(at=selection.at), SeriesRow, SeriesRow.name == name)
    query = select(RunRow.id, value.label("value"), t.label("round"), used.label("used"), best.label("best"))
    query = query.where(RunRow.id.in_([result.id for result in results]))
    with reading(engine) as c:
        found = {row["id"]: row for row in c.execute(query).mappings() if row["value"] is not None}
    return [replace(result, **found[result.id]) for result in results if result.id in found]


def clients(engine: Engine, run_id: int, round: int | None = None) -> Clients:
    """The clients' results after `round` rounds (default: the last evaluated). Raises UserError if none are stored."""
    if round is None:
        with reading(engine) as c:
            round = c.scalar(select(func.max(ClientRoundRow.round)).where(ClientRoundRow.run_id == run_id))
    if round is None:
        raise UserError(f"Run {run_id} has no client results.", _WHICH_ROUNDS)
    return clients_of(engine, {run_id: round})[run_id]


def clients_of(engine: Engine, run_ids: Mapping[int, int]) -> dict[int, Clients]:
    """As `clients`, for several runs: number of the run -> round."""
    columns = (ClientRoundRow.client, ClientRoundRow.correct, ClientRoundRow.total, ClientRoundRow.loss)
    wanted = _table_of(run_ids)
    mine = (ClientRoundRow.run_id == wanted.c.run) & (ClientRoundRow.round == wanted.c.round)
    query = select(wanted.c.run, *columns).join_from(wanted, ClientRoundRow, mine).order_by(wanted.c.run, ClientRoundRow.client)
    with reading(engine) as c:
        rows = floats(c.execute(query).all(), 5)
    found = {}
    for run, of in _by_run(rows):
        client, correct, total = of[:, :3].T.astype(np.int64)
        found[run] = Clients(run_ids[run], client, correct, total, of[:, 3])
    for run, round in run_ids.items():
        if run not in found:
            raise UserError(f"Run {run} has no client results after round {round}.", _WHICH_ROUNDS)
    return found


def by_client(engine: Engine, run_ids: Mapping[int, int], last: int = 1) -> dict[int, dict[int, float]]:
    """Each client's accuracy on its own test data in [0, 1]: the mean over the `last` evaluated rounds up to the given one.

    run_ids: number of the run -> round. Clients that were not tested in these rounds, or have no test data, are left out.
    """
    wanted = _table_of(run_ids)
    mine = (RoundRow.run_id == wanted.c.run, RoundRow.round <= wanted.c.round, RoundRow.accuracy.is_not(None))
    rounds = select(RoundRow.round).where(*mine).order_by(RoundRow.round.desc()).limit(last).correlate(wanted)
    share = cast(ClientRoundRow.correct, Double) / ClientRoundRow.total
    tested = (ClientRoundRow.run_id == wanted.c.run) & ClientRoundRow.round.in_(rounds) & (ClientRoundRow.total > 0)
    query = select(wanted.c.run, ClientRoundRow.client, func.avg(share)).join_from(wanted, ClientRoundRow, tested)
    found: dict[int, dict[int, float]] = {run: {} for run in run_ids}
    with reading(engine) as c:
        for run, client, mean in c.execute(query.group_by(wanted.c.run, ClientRoundRow.client).order_by(ClientRoundRow.client)):
            found[run][client] = float(mean)
    return found


def tested(engine: Engine, run_ids: Mapping[int, int]) -> dict[int, dict[int, int]]:
    """The number of test samples by run and client. run_ids: as of `by_client`; runs without any are left out."""
    wanted = _table_of(run_ids)
    mine = (ClientRoundRow.run_id == wanted.c.run) & (ClientRoundRow.round == wanted.c.round) & (ClientRoundRow.total > 0)
    query = select(wanted.c.run, ClientRoundRow.client, ClientRoundRow.total).join_from(wanted, ClientRoundRow, mine)
    found: dict[int, dict[int, int]] = defaultdict(dict)
    with reading(engine) as c:
        for run, client, total in c.execute(query):
            found[run][client] = int(total)
    return found


def adaptation(engine: Engine, run_ids: Collection[int]) -> dict[int, Adaptation]:
    """The new clients' results of each run, after the last round in which they were tested; runs without any are left out."""
    n, last = NewClientRow, select(NewClientRow.run_id, func.max(NewClientRow.round).label("round")).group_by(NewClientRow.run_id)
    newest = last.where(NewClientRow.run_id.in_(run_ids)).subquery()
    accuracy = cast(func.sum(n.correct), Double) / func.sum(n.total)
    query = select(n.run_id, n.round, accuracy).join(newest, (n.run_id == newest.c.run_id) & (n.round == newest.c.round))
    with reading(engine) as c:
        rows = floats(c.execute(query.group_by(n.run_id, n.round, n.epochs).order_by(n.run_id, n.epochs)).all(), 3)
    return {run: Adaptation(int(of[0, 0]), of[:, 1]) for run, of in _by_run(rows)}


def costs(engine: Engine, run_ids: Collection[int], tolerance: float) -> dict[int, Cost]:
    """The costs of each run; runs without a trained and evaluated round are left out. tolerance: of accuracy, a fraction."""
    columns = (RoundRow.run_id, *(getattr(RoundRow, name) for name in _OF_A_ROUND))
    query = select(*columns).where(RoundRow.run_id.in_(run_ids)).order_by(RoundRow.run_id, RoundRow.round)
    stages = arrays.rounds(engine, run_ids, [_ALA_EPOCHS])
    found = {}
    with reading(engine) as c:
        sizes = {row.id: row.parameters for row in c.execute(select(RunRow.id, RunRow.parameters).where(RunRow.id.in_(run_ids)))}
        for run, rows in groupby(c.execution_options(yield_per=10_000).execute(query), key=itemgetter(0)):
            of = dict(zip(_OF_A_ROUND, floats([row[1:] for row in rows], len(_OF_A_ROUND)).T, strict=True))
            if cost := _cost(of, sizes[run], tolerance, stages.get((run, _ALA_EPOCHS), [])):
                found[run] = cost
    return found


def _cost(of: dict[str, Floats], size: int | None, tolerance: float, stages: list[int]) -> Cost | None:
    """of: columns of all rounds of a run. stages: the rounds after which the reception begins with ALA's initial stage."""
    trained, accuracy = of["participants"] > 0, of["accuracy"]
    evaluated = trained & ~np.isnan(accuracy)
    if not trained.any() or np.isnan(accuracy).all():
        return None
    best = float(np.nanmax(accuracy))
    converged = int(of["round"][accuracy >= best - tolerance][0])
    within = (of["round"] > 0) & (of["round"] <= converged)
    receive, update, evaluate = (np.nan_to_num(of[f"seconds_{phase}"]) for phase in ("receive", "update", "evaluate"))

    def median(values: Floats) -> float:
        return float(np.median(values[trained]))

    def per_participant(what: str) -> float:
        sent = of[f"{what}_up"][trained] + of[f"{what}_down"][trained]
        return float(np.median(np.nan_to_num(sent / of["participants"][trained])))

    parameters, memory = per_participant("params"), of["peak_memory"][trained]
    return Cost(
        best=best,
        converged=converged,
        seconds_total=math.fsum((receive + update)[within]),
        # The array of row t is of the reception of round t + 1, whose cost is in row t + 1.
        seconds_initial=math.fsum(receive[within & np.isin(of["round"] - 1, stages)]),
        seconds_round=median(receive + update),
        seconds_evaluate=float(np.median(evaluate[evaluated])) if evaluated.any() else None,
        parameters=parameters,
        scalars=per_participant("scalars"),
        bytes=per_participant("bytes"),
        bytes_total=int(np.nansum((of["bytes_up"] + of["bytes_down"])[within])),
        flops=None if np.isnan(of["flops"][trained]).any() else median(of["flops"]),
        multiple=parameters / size if size else None,
        # Each row has the peak so far, which starts again when a run is resumed.
        peak_memory=None if np.isnan(memory).all() else int(np.nanmax(memory)),
    )


def reached(engine: Engine, run_ids: Collection[int], accuracy: float) -> dict[int, Reached]:
    """By run, if it has a round with at least this accuracy (a fraction; up to rounding)."""
    first = select(RoundRow.run_id, func.min(RoundRow.round).label("round")).group_by(RoundRow.run_id)
    at = first.where(RoundRow.run_id.in_(run_ids), RoundRow.accuracy >= accuracy - 1e-9).subquery().c
    bytes = func.coalesce(func.sum(RoundRow.bytes_up + RoundRow.bytes_down), 0)
    seconds = func.coalesce(RoundRow.seconds_receive, 0.0) + func.coalesce(RoundRow.seconds_update, 0.0)
    sums = (bytes, func.coalesce(func.sum(seconds), 0.0), func.sum(RoundRow.seconds_simulated))
    up_to = (RoundRow.run_id == at.run_id) & RoundRow.round.between(1, at.round)
    query = select(at.run_id, at.round, *sums).join(RoundRow, up_to, isouter=True).group_by(at.run_id, at.round)
    with reading(engine) as c:
        return {run: Reached(t, int(sent), spent, simulated) for run, t, sent, spent, simulated in c.execute(query)}


def speeds(engine: Engine, among: RunScope, methods: Collection[str]) -> list[Speed]:
    """One for each run of these methods that has a trained round, of any status."""
    found = runs.stored(engine, among, RunRow.method.in_(methods))
    phases = (RoundRow.seconds_receive, RoundRow.seconds_update, RoundRow.seconds_evaluate)
    receive, update, evaluate = (func.coalesce(phase, 0.0) for phase in phases)
    query = select(RoundRow.run_id, RoundRow.accuracy.is_not(None), receive + update + evaluate)
    query = query.where(RoundRow.run_id.in_([run.id for run in found]), RoundRow.participants > 0).order_by(RoundRow.run_id)
    with reading(engine) as c:
        spent = dict(_by_run(floats(c.execute(query).all(), 3)))
    speeds = []
    for run in found:
        if (rows := spent.get(run.id)) is not None:
            clients = int((run.clients - run.spec["train"].get("new_clients", 0)) * run.join_ratio)
            epochs = run.spec["train"]["local_epochs"]
            kinds = [rows[rows[:, 0] == evaluated, 1] for evaluated in (0, 1)]
            seconds = sum(float(np.median(kind)) * len(kind) for kind in kinds if len(kind)) / len(rows)
            speeds.append(Speed(run.method, run.dataset, run.model, clients, epochs, seconds))
    return speeds


def _table_of(run_ids: Mapping[int, int]) -> CTE:
    """Runs and rounds as a table to join with: for `IN`, SQLite would scan all rows of all runs."""
    return values(column("run", Integer), column("round", Integer), name="wanted").data(list(run_ids.items())).cte()


def floats(rows: Sequence[Any], width: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Rows of numbers as an array [rows, width]; NaN for null."""
    # NumPy is 50 times slower with SQLAlchemy's rows than with tuples.
    return np.array([tuple(row) for row in rows], dtype=np.float64).reshape(-1, width)


def _by_run(rows: np.ndarray[Any, np.dtype[np.float64]]) -> Iterator[tuple[int, np.ndarray[Any, np.dtype[np.float64]]]]:
    """Splits rows by their first column, the number of the run, by which they are sorted."""
    ids, starts = np.unique(rows[:, 0], return_index=True)
    for run, block in zip(ids, np.split(rows, starts[1:]), strict=False):  # of no rows, `split` makes one block
        yield int(run), block[:, 1:]


def _evaluated(engine: Engine, run_ids: Collection[int]) -> Integers:
    """The evaluated rounds of the run that got furthest."""
    last = select(func.max(RoundRow.round)).where(RoundRow.run_id == RunRow.id).scalar_subquery()
    furthest = select(RunRow.id).where(RunRow.id.in_(run_ids)).order_by(func.coalesce(last, -1).desc(), RunRow.id).limit(1)
    with reading(engine) as c:
        longest = c.scalar(furthest)
        query = select(RoundRow.round).where(RoundRow.run_id == longest, RoundRow.accuracy.is_not(None)).order_by(RoundRow.round)
        return np.array(c.scalars(query).all(), dtype=np.int64)
