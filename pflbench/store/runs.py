"""Finds runs and computes their results. Accuracies are fractions in [0, 1], as stored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, TypeVar

from sqlalchemy import CTE, ColumnElement, Double, Engine, case, cast, func, literal, null, or_, select, true
from sqlalchemy.orm import InstrumentedAttribute

from pflbench.errors import UserError
from pflbench.spec import from_stored
from pflbench.store.database import reading
from pflbench.store.failures import DAMAGED
from pflbench.store.locks import UNDER_WAY, presence
from pflbench.store.schema import PartitionRow, RoundRow, RunRow, SeriesRow, is_environment

SMOKE = "smoke"  # the scale of runs that only show that everything works


@dataclass(frozen=True)
class RunScope:
    """The runs that a query is about: those with these numbers, or (None) all. smoke: all includes `reproduce --scale smoke`.

    Every query for several runs takes a scope, unless it takes their numbers or keys.
    """

    runs: frozenset[int] | None = None
    smoke: bool = False

    @property
    def condition(self) -> ColumnElement[bool]:
        """The condition on the table `run`."""
        if self.runs is not None:
            return RunRow.id.in_(self.runs)
        return true() if self.smoke else ~_IS_SMOKE


ALL = RunScope(smoke=True)
SHORTEST_KEY = 8  # characters of a key's beginning that has digits alone
_IS_SMOKE = func.coalesce(RunRow.environment["scale"].as_string(), "") == SMOKE


Measure = Literal["flops", "bytes", "seconds", "rounds"]

# The columns that add up to what a round cost all clients together: it is not measured where all of them are null.
_PARTS: dict[Measure, tuple[Any, ...]] = {
    "flops": (RoundRow.flops,),
    "bytes": (RoundRow.bytes_up, RoundRow.bytes_down),
    "seconds": (RoundRow.seconds_receive, RoundRow.seconds_update),
    "rounds": (literal(1),),
}


def spent(measure: Measure) -> ColumnElement[float]:
    """What a run had spent after a round since round 1 (methods.md 2.12), as a column of a query for all rounds of runs.

    Null after a round in which it was not measured. Seconds and FLOPs are of reception and update, without evaluation.
    """
    parts = _PARTS[measure]
    cost = sum((func.coalesce(cast(part, Double), 0.0) for part in parts), literal(0.0))
    measured = case((RoundRow.round == 0, literal(0.0)), (or_(*(part.is_not(None) for part in parts)), cost))
    so_far: dict[str, Any] = {"partition_by": RoundRow.run_id, "order_by": RoundRow.round, "rows": (None, 0)}
    known = func.count(measured).over(**so_far) == func.count().over(**so_far)
    return case((known, func.sum(measured).over(**so_far)))


@dataclass(frozen=True)
class Budget:
    """What a run may have spent. amount: FLOPs, bytes, seconds or rounds, of all clients together."""

    measure: Measure
    amount: float

    def __str__(self) -> str:
        return f"{self.measure}={self.amount:.12g}"


@cache
def _of_budget(budget: Budget) -> CTE:
    """By run what it spent in all, and its last round within the budget; both null if not all of its rounds were measured."""
    each = select(RoundRow.run_id, RoundRow.round, spent(budget.measure).label("spent")).subquery().c
    last, known = func.max(case((each.spent <= budget.amount, each.round))), func.count(each.spent) == func.count()
    columns = (case((known, last)).label("within"), case((known, func.max(each.spent))).label("spent"))
    # Two columns of each run are looked up in it, which must not compute it anew.
    return select(each.run_id, *columns).group_by(each.run_id).cte("budget").prefix_with("MATERIALIZED")


@dataclass(frozen=True)
class RoundRule:
    """A run's result (methods.md 2.1, 2.10): its best evaluated round by the test data or (val) by the validation data, its last,
    or the mean of its `last` last ones. at: only of the rounds up to which the run had spent no more (methods.md 2.12).
    """

    rule: Literal["best", "val", "last", "mean-last"] = "best"
    last: int = 1
    at: Budget | None = None

    def __str__(self) -> str:
        rule = f"mean-last:{self.last}" if self.rule == "mean-last" else self.rule
        return f"{rule} at {self.at}" if self.at else rule

    def of_budget(self, column: Literal["within", "spent"]) -> ColumnElement[Any]:
        """A column of a query for runs, null without a budget: the last round within it, or what the run spent in all."""
        if self.at is None:
            return null()
        found = _of_budget(self.at).c
        return select(found[column]).where(found.run_id == RunRow.id).correlate(RunRow).scalar_subquery()


@dataclass(frozen=True)
class RunHead:
    """One attempt at a run: columns of the table `run`, and how far it got.

    partition: its hash. last_round, best: the newest stored round and the highest accuracy of any, None before there is one.
    """

    id: int
    key: str
    attempt: int
    protocol: str
    status: str
    message: str | None
    method: str
    dataset: str
    model: str
    partition_label: str  # "Dir(0.1)"
    partition: str | None
    clients: int
    join_ratio: float
    rounds: int
    seed: int
    parameters: int | None  # of one model
    engine: str | None
    device: str | None
    created_at: str
    started_at: str | None
    finished_at: str | None
    last_round: int | None
    best: float | None

    @property
    def ended(self) -> bool:
        """Whether it is over and cannot be resumed."""
        return self.status in ("finished", "diverged")


@dataclass(frozen=True)
class Run(RunHead):
    """A run with its specification and environment. Raises UserError if one of them is damaged."""

    spec: dict[str, Any]
    environment: dict[str, Any]

    def __post_init__(self) -> None:
        for what, sound in (("specification", from_stored(self.spec)), ("environment", is_environment(self.environment))):
            if not sound:
                raise UserError(f"Run {self.id} is damaged: its {what} is invalid.", DAMAGED)

    @property
    def title(self) -> str | None:
        """The title of a plug-in's method; None for a built-in one."""
        title: str | None = self.environment.get("plugin", {}).get("title")
        return title


@dataclass(frozen=True)
class Result(Run):
    """A run's result: the mean accuracy of `used` rounds up to `round`; None without an evaluated round.

    within: its last round within the rule's budget; spent: what it spent in all, in the budget's unit. None without a budget, and
    with `value` where the run has not measured it in every round. best: within the budget, if there is one and it was measured.
    """

    value: float | None
    round: int | None
    used: int
    within: int | None = None
    spent: float | None = None


def counted(
    selection: RoundRule, table: type[RoundRow] | type[SeriesRow] = RoundRow, *where: ColumnElement[bool]
) -> tuple[ColumnElement[Any], ColumnElement[Any], ColumnElement[Any]]:
    """A run's result (methods.md 2.1), as columns of a query for runs: value, round, rounds used. Null without a round.

    Of equally good rounds the earliest counts. table, where: which accuracies. Each column is a seek in an index, not a scan of
    all rounds.
    """

    def of_run(rounds: type[RoundRow] | type[SeriesRow]) -> tuple[ColumnElement[bool], ...]:
        here = rounds.run_id == RunRow.id
        return (here,) if selection.at is None else (here, rounds.round <= selection.of_budget("within"))

    mine = (*of_run(table), table.accuracy.is_not(None), *where)
    if selection.rule == "val":
        validated = (*of_run(RoundRow), RoundRow.val_accuracy.is_not(None))
        most = select(func.max(RoundRow.val_accuracy)).where(*validated).correlate(RunRow).scalar_subquery()
        earliest = select(func.min(RoundRow.round)).where(*validated, RoundRow.val_accuracy == most).correlate(RunRow)
        chosen = earliest.scalar_subquery()
        return select(table.accuracy).where(*mine, table.round == chosen).correlate(RunRow).scalar_subquery(), chosen, literal(1)
    if selection.rule == "best":
        best = select(func.max(table.accuracy)).where(*mine).correlate(RunRow).scalar_subquery()
        earliest = select(func.min(table.round)).where(*mine, table.accuracy == best).correlate(RunRow)
        return best, earliest.scalar_subquery(), literal(1)
    # LIMIT must apply before AVG: hence a subquery in the subquery.
    tail = select(table.accuracy, table.round).where(*mine).order_by(table.round.desc()).limit(selection.last)
    t = tail.correlate(RunRow).subquery().c
    value, at, used = (select(of).scalar_subquery() for of in (func.avg(t.accuracy), func.max(t.round), func.count(t.round)))
    return value, at, used


R = TypeVar("R", bound=RunHead)

_LAST = select(func.max(RoundRow.round)).where(RoundRow.run_id == RunRow.id).scalar_subquery()
_COMPUTED: dict[str, Any] = {"partition": PartitionRow.hash, "last_round": _LAST, "best": counted(RoundRule())[0]}


def stored(engine: Engine, among: RunScope, *where: ColumnElement[bool]) -> list[Run]:
    """Runs with their stored status, by number. where: conditions on the table `run`."""
    return _stored(engine, Run, among.condition, *where)


def attempts(engine: Engine, keys: Collection[str]) -> dict[str, list[Run]]:
    """The attempts of each key, oldest first; keys without a run are left out."""
    found: dict[str, list[Run]] = defaultdict(list)
    for run in sorted(stored(engine, ALL, RunRow.key.in_(keys)), key=lambda run: run.attempt):
        found[run.key].append(run)
    return dict(found)


def newest(engine: Engine, key: str) -> Run | None:
    """The newest attempt of a key, with its stored status; None if there is none."""
    return attempts(engine, [key]).get(key, [None])[-1]


def that_counts(found: Sequence[R]) -> R | None:
    """Of a key's attempts, oldest first, the one that counts: the newest finished one, else the newest. None without attempts."""
    return next((run for run in reversed(found) if run.status == "finished"), found[-1] if found else None)


def find(engine: Engine, id_or_key: int | str) -> Run:
    """One run by its number, or the newest attempt of a key (or of the beginning of a key), with its current status.

    Fewer than SHORTEST_KEY digits without a letter are a number.

    Raises UserError if no run or runs of several keys match.
    """
    return _found(engine, Run, id_or_key)


def find_head(engine: Engine, id_or_key: int | str) -> RunHead:
    """As `find`, also for a run whose specification or environment is damaged."""
    return _found(engine, RunHead, id_or_key)


def with_current_status(engine: Engine, run: R) -> R:
    """The run with its current status: a running one without a process was interrupted and could not write that."""
    return replace(run, status=presence(engine)(run.key, run.status)) if run.status in UNDER_WAY else run


def distinct(engine: Engine, among: RunScope, column: Literal["method", "dataset"]) -> list[str]:
    """The methods or datasets of these runs, sorted."""
    named: InstrumentedAttribute[str] = getattr(RunRow, column)
    with reading(engine) as c:
        return list(c.scalars(select(named).where(among.condition).distinct().order_by(named)))


def results(engine: Engine, among: RunScope, selection: RoundRule) -> list[Result]:
    """The result of each run, of any status, by number. The database applies the rule, along its indexes."""
    value, round, used = counted(selection)
    of_budget = {name: selection.of_budget(name) for name in ("within", "spent")}
    if selection.at is not None:
        of_budget["best"] = func.coalesce(counted(RoundRule(at=selection.at))[0], _COMPUTED["best"])
    return _stored(engine, Result, among.condition, value=value, round=round, used=used, **of_budget)


def hidden_smoke(engine: Engine, among: RunScope) -> int:
    """The number of smoke runs that the scope leaves out."""
    if among.smoke or among.runs is not None:
        return 0
    with reading(engine) as c:
        return int(c.scalar(select(func.count()).select_from(RunRow).where(_IS_SMOKE)) or 0)


def _found(engine: Engine, kind: type[R], id_or_key: int | str) -> R:
    text = str(id_or_key)
    found = _stored(engine, kind, RunRow.id == int(text)) if text.isdigit() and len(text) < 16 else []
    # "1" must not find the key 1f03... when run 1 has been removed: `runs rm 1` would remove another run.
    number = isinstance(id_or_key, int) or (text.isdigit() and len(text) < SHORTEST_KEY)
    if text and not found and not number:
        found = _stored(engine, kind, RunRow.key.startswith(text.lower(), autoescape=True))
        found.sort(key=lambda run: run.attempt)
    keys = {run.key for run in found}
    if not keys:
        raise UserError(f"No run '{text}' in this database.", "`pflbench runs list` shows the numbers and keys of all runs.")
    if len(keys) > 1:
        raise UserError(f"The keys of {len(keys)} runs begin with '{text}'.", "Give more digits of the key.")
    return with_current_status(engine, found[-1])


def _stored(engine: Engine, kind: type[R], *where: ColumnElement[bool], **more: Any) -> list[R]:
    """Runs by number. more: columns for fields that are none of the table `run`."""
    of = {**_COMPUTED, **more}
    columns = [of[name] if name in of else getattr(RunRow, name) for name in kind.__dataclass_fields__]
    query = select(*columns).join(PartitionRow, RunRow.partition_id == PartitionRow.id, isouter=True)
    with reading(engine) as c:
        return [kind(*row) for row in c.execute(query.where(*where).order_by(RunRow.id))]
