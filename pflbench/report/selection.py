"""The runs of a report: filters, and the attempt and the round of each run that count."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

from sqlalchemy import Engine

from pflbench import models
from pflbench.errors import NothingYet, UserError, unknown
from pflbench.report import budgets, labels, style
from pflbench.report.arrangement import TEST_LABELS, Arranged, Row, SharedSetting, arrange, row_key, short, titles
from pflbench.store import arrays, runs, studies
from pflbench.store.measures import COLUMNS, TITLES, by_measure
from pflbench.store.runs import Result, RoundRule, RunScope
from pflbench.store.schema import STATUSES

T = TypeVar("T")
BEST = RoundRule("best")
_HOW = {"after-training": "--test-after-training"}  # else --metrics-every
# The filters by what they are called in messages, and what a run answers to: the name in the database first, then others.
_FIELDS: dict[str, tuple[str, Callable[[Result], tuple[object, ...]]]] = {
    "methods": ("method", lambda r: (r.method, labels.method_title(r.method, r.title))),
    "datasets": ("dataset", lambda r: (r.dataset, *labels.names(r.dataset))),
    "partitions": ("partition", lambda r: (r.partition_label,)),
    "models": ("model", lambda r: (r.model, models.title(r.model))),
    "clients": ("clients", lambda r: (r.clients,)),
    "rounds": ("rounds", lambda r: (r.rounds,)),
}


@dataclass(frozen=True)
class Filters:
    """What is asked for, the same for every report; nothing lets everything pass.

    Values of a filter are OR-ed, filters AND-ed. Names of methods, datasets, partitions and models may be those of the command
    line or those of the tables, in any case. status: finished where none is named, 'any' for all. runs: numbers or beginnings of
    keys. where: "fedala.p=2", which is about the runs of its method alone: others stay; "train.optimizer=adamw", about all.
    smoke: with runs of `reproduce --scale smoke`, which are left out otherwise, but where they are named. only: the numbers of
    the runs that there are to choose from. kept: what was read, where one page has many tables and figures of the same runs.
    """

    methods: Sequence[str] = ()
    datasets: Sequence[str] = ()
    partitions: Sequence[str] = ()
    status: Collection[str] = ()
    models: Sequence[str] = ()
    clients: Sequence[int] = ()
    rounds: Sequence[int] = ()
    runs: Sequence[str] = ()
    where: Sequence[str] = ()
    smoke: bool = False
    only: frozenset[int] | None = None
    kept: dict[Any, Any] | None = field(default=None, repr=False, compare=False)

    @property
    def words(self) -> str:
        """The filters in words, 'model cnn, rounds 20 or 50, fedala.p=2'; empty for all runs."""
        kinds = {"model": self.models, "clients": self.clients, "rounds": self.rounds, "run": self.runs}
        said = [f"{kind} {' or '.join(map(str, asked))}" for kind, asked in kinds.items() if asked]
        return ", ".join([*said, *self.where])

    @property
    def sentence(self) -> str:
        """All filters in words, also those for methods, datasets and partitions; empty for all runs."""
        said = [
            f"{name} {', '.join(asked)}"
            for name in ("methods", "datasets", "partitions", "status")
            if (asked := getattr(self, name))
        ]
        return "; ".join(filter(None, [*said, self.words]))

    def unnamed(self) -> Filters:
        """The filters without those for methods, datasets and partitions."""
        return replace(self, methods=(), datasets=(), partitions=())

    def among(self, engine: Engine) -> RunScope:
        """The runs that a report is of, whatever their method, dataset, partition and status.

        Raises UserError for what no run has, and where none is left.
        """
        if not self.words:
            return RunScope(self.only, smoke=self.smoke)
        return RunScope(frozenset(run.id for run in self.unnamed().matching(engine)))

    def matching(self, engine: Engine, rule: RoundRule = BEST) -> list[Result]:
        """The runs that pass, of any status. Raises UserError for values that no run has, and if no run is left."""
        found = self._all(engine, rule)
        passing = {run.id for run in found}
        if self.runs:
            passing &= {runs.find(engine, text).id for text in self.runs}
        for name, (kind, values) in _FIELDS.items():
            if asked := getattr(self, name):
                passing &= _having(found, kind, asked, values)
        for (owner, name), wanted in _conditions(self.where, found).items():
            passing &= _having(found, f"{owner}.{name}", wanted, partial(_value, owner, name))
        if not passing:
            raise UserError("No run fits these filters together.", "`pflbench runs list` shows what there is.")
        return [run for run in found if run.id in passing]

    def select(self, engine: Engine, rule: RoundRule = BEST) -> Arranged:
        """Of the runs that pass the newest attempt with one of the statuses, arranged. Raises UserError as `matching`.

        rule: which of their rounds count.
        """
        return self._kept(("selected", repr(self), rule), lambda: self.arranged(engine, self.matching(engine, rule), rule))

    def arranged(self, engine: Engine, found: Sequence[Result], rule: RoundRule = BEST) -> Arranged:
        """As `select`, of these runs. Raises UserError where none has one of the statuses."""
        wanted = statuses(self.status)
        counted, left_out = _newest(found, wanted)
        unruled = [result for result in left_out if result.best is not None and result.value is None and result.status in wanted]
        if not counted and unruled:
            raise UserError(
                f"None of the {len(left_out)} matching runs has a result by this rule.", f"They are without {_lacking(rule)}."
            )
        if not counted:
            raise UserError(
                f"None of the {len(left_out)} matching runs is {' or '.join(wanted)} with a result: {_tally(left_out)}.",
                "Repeat `pflbench run` to complete them, or show them as they are with --status any.",
            )
        notes = []
        counted, trials = self._without_trials(engine, counted)
        notes += [
            f"Not counted: {labels.counted(number, 'trial')} of the study {of}: `pflbench table tuned`." for of, number in trials
        ]
        if hidden := 0 if self.words else runs.hidden_smoke(engine, self._scope):
            notes.append(f"Not counted: {labels.counted(hidden, 'run')} of `reproduce --scale smoke`; --smoke shows them.")
        if unruled:
            notes.append(f"Not counted: {labels.counted(len(unruled), 'run')} without {_lacking(rule)}.")
        if unfinished := [result for result in left_out if result not in unruled]:
            notes.append(f"Not counted: {_tally(unfinished)}. `--status any` shows what they have.")
        if partial := [result for result in counted if result.status != "finished"]:
            notes.append("Counted as far as they got: " + ", ".join(f"run {r.id} ({r.status})" for r in partial) + ".")
        arranged = arrange(counted)
        if any(row.test_labels for row in arranged.rows):
            notes.append(f"{TEST_LABELS}: clients adapt on labelled test data, so this is no test.")
        return replace(arranged, notes=(*notes, *budgets.notes(arranged, rule.at)))

    def _without_trials(self, engine: Engine, found: list[Result]) -> tuple[list[Result], list[tuple[str, int]]]:
        """Leaves out rows with trials of a study alone, unless runs are named; and how many trials of each study that are."""
        trials = {} if self.runs else studies.trials_only(engine)
        cell = {run.id: (row_key(run), run.protocol, run.partition) for run in found}
        others = {cell[run.id] for run in found if run.key not in trials}
        left_out = Counter(trials[run.key] for run in found if cell[run.id] not in others)
        if len(left_out) and not others:
            raise NothingYet("All of these runs are trials of a study.", "pflbench table tuned sums them up.")
        return [run for run in found if cell[run.id] in others], list(left_out.items())

    @property
    def _scope(self) -> RunScope:
        """The scope of the choice: a run named by --run may be a smoke run."""
        return RunScope(self.only, smoke=self.smoke or bool(self.runs))

    def _all(self, engine: Engine, rule: RoundRule) -> list[Result]:
        """All runs in this scope with their current status, read once."""
        scope = self._scope

        def read() -> list[Result]:
            found = [runs.with_current_status(engine, run) for run in runs.results(engine, scope, rule)]
            if found:
                return found
            if hidden := runs.hidden_smoke(engine, scope):
                raise NothingYet(f"This database has only smoke runs: {hidden}.", "--smoke shows them.")
            raise NothingYet("There are no runs in this database yet.", "Make some: pflbench run -m fedavg -m fedala -d digits")

        return self._kept(("all", scope, rule), read)

    def _kept(self, key: Any, read: Callable[[], T]) -> T:
        """Reads the runs, or returns the cached ones."""
        if self.kept is None:
            return read()
        if key not in self.kept:
            self.kept[key] = read()
        found: T = self.kept[key]
        return found


def _having(
    found: Sequence[Result], kind: str, asked: Iterable[object], values: Callable[[Result], tuple[object, ...] | None]
) -> set[int]:
    """The runs that have one of the values asked for; those that have no such thing (None) stay.

    Raises UserError for a value that none has.
    """
    wanted = {str(text): {_plain(text), _plain(labels.without_folder(str(text)))} for text in asked}  # own data by the whole path
    has = {run.id: of and tuple(map(_plain, of)) for run in found for of in [values(run)]}
    for text, alternatives in wanted.items():
        if not any(of and alternatives & {*of} for of in has.values()):
            there = {str(of[0]) for run in found if (of := values(run))}
            raise UserError(f"No runs with {kind} '{text}' in this database.", f"There are: {', '.join(sorted(there))}.")
    every = set[str]().union(*wanted.values())
    return {run for run, of in has.items() if of is None or every & {*of}}


def _plain(value: object) -> str:
    """A value for comparison: 80, 80.0 and '80' are equal, as are names in any case."""
    text = str(value).casefold()
    try:
        return f"{float(text):.12g}"
    except ValueError:
        return text


def _conditions(where: Iterable[str], found: Sequence[Result]) -> dict[tuple[str, str], list[str]]:
    """The values of --where by owner and name. Raises UserError for another form, and for what no run has."""
    asked: dict[tuple[str, str], list[str]] = {}
    for text in where:
        key, equals, value = text.partition("=")
        owner, dot, name = key.strip().casefold().partition(".")
        if not (equals and dot and owner and name):
            raise UserError(
                f"--where {text}: expected METHOD.NAME=VALUE or train.NAME=VALUE.",
                "For example --where fedala.p=2 or --where train.optimizer=adamw.",
            )
        asked.setdefault((owner, name), []).append(value.strip())
    known = {(owner, name) for run in found for owner, own in _owners(run).items() for name in own} if asked else set()
    for owner, name in asked.keys() - known:
        near = [one for one in known if one[0] == owner] or known
        raise unknown("item of --where", f"{owner}.{name}", [".".join(one) for one in near])
    return asked


def _owners(run: Result) -> dict[str, dict[str, Any]]:
    """A run's values for --where: those of "train", and its hyperparameters under the method's name and its title."""
    own = run.spec["method"]["hyperparameters"]
    owners = {"train": run.spec["train"], run.method: own, labels.method_title(run.method, run.title): own}
    return {owner.casefold(): {name.casefold(): value for name, value in items.items()} for owner, items in owners.items()}


def _value(owner: str, name: str, run: Result) -> tuple[object, ...] | None:
    """The value for --where; None if the owner is another method."""
    owners = _owners(run)
    return (owners[owner].get(name),) if owner in owners else None


@dataclass(frozen=True)
class Observed:
    """A run that kept arrays of one name, in `rounds`: rows of the database, so that row t is what came after t rounds."""

    setting: SharedSetting
    row: Row
    run: Result
    name: str
    rounds: tuple[int, ...]

    @property
    def title(self) -> str:
        return f"{self.row.label}: {self.setting.title}"


def with_arrays(engine: Engine, found: Arranged, names: Sequence[str], command: str) -> list[Observed]:
    """The runs that kept one of these arrays, by setting, row and seed; of two names the first. command: what keeps them.

    Raises UserError where no run has any.
    """
    runs = [run.id for run in found.runs]
    kept = arrays.rounds(engine, runs, names)
    seen = [
        Observed(setting, row, run, name, tuple(kept[run.id, name]))
        for j, setting in enumerate(found.settings)
        for row, cell in found.column(j)
        for run in cell
        if (name := next((n for n in names if (run.id, n) in kept), ""))
    ]
    if not seen:
        raise NothingYet(
            f"Of {labels.counted(len(runs), 'run')} none kept {' or '.join(names)}.",
            f"Make one that does: {command} (with --force, should it be finished already).",
        )
    return seen


def first_seeds(engine: Engine, filters: Filters, names: Sequence[str], command: str) -> tuple[list[Observed], tuple[str, ...]]:
    """Of each method in each setting the run with the first seed that kept one of these arrays, and notes on the filtered runs.

    Raises UserError as `with_arrays`.
    """
    found = filters.select(engine)
    seen = with_arrays(engine, found, names, command)
    lines = groupby(seen, key=lambda one: (one.setting.protocol, one.setting.partition, one.row.label))
    return [next(runs) for _, runs in lines], found.notes


def cut(seen: Sequence[Observed], notes: tuple[str, ...], filters: Filters) -> tuple[list[Observed], tuple[str, ...]]:
    """As many as fit in print, and the notes, with one more if some are left out."""
    most = style.PANELS_CHOSEN if filters.methods or filters.datasets or filters.partitions else style.PANELS_UNASKED
    if len(seen) > most:
        notes += (f"Drawn: the first {most} of {len(seen)} runs. Choose with --method, --dataset and --partition.",)
    return list(seen[:most]), notes


def measured(engine: Engine, filters: Filters, metric: str, rule: RoundRule = BEST) -> Arranged:
    """As `Filters.select`, of the runs that have this measure, one of `measures.TITLES`, with it in accuracy's place.

    Raises UserError if none has it.
    """
    found = filters.select(engine, rule)
    counted = by_measure(engine, found.runs, metric, rule)
    # A measure's rule chooses among its rounds; a series has to have the round that validation data choose.
    validated = rule.rule == "val" and metric not in COLUMNS
    what = TITLES[metric] + " at the round that is best on validation data" * validated
    what += f" within {budgets.amount(rule.at)}" if rule.at else ""
    if not counted:
        raise UserError(
            f"None of these runs has measured {what}.",
            "Take another --round-rule. " * validated
            + "Give a larger --at, or measure it: " * bool(rule.at)
            + f"Runs do with {_HOW.get(metric, '--metrics-every 1')}; --force runs finished ones anew.",
        )
    left = len(found.runs) - len(counted)
    note = f"Not counted: {labels.counted(left, 'run')} without {what} (`{_HOW.get(metric, '--metrics-every')}`)."
    kept = filters.arranged(engine, counted, rule)
    others = [said for said in found.notes if said not in budgets.notes(found, rule.at)]
    return replace(kept, notes=(*others, *kept.notes, *((note,) if left else ())))


def spread(values: Sequence[int], most: int) -> list[int]:
    """Up to so many of these, evenly spaced, including the first and the last."""
    if len(values) <= most:
        return list(values)
    return [values[round(k * (len(values) - 1) / (most - 1))] for k in range(most)]


def observed_titles(seen: Sequence[Observed], *, named: bool = False) -> list[str]:
    """As `titles`, with the method if there are several rows or `named`, and its hyperparameters if nothing else differs."""
    rows, settings = [one.row for one in seen], titles([one.setting for one in seen])
    if not named and len({row.label for row in rows}) == 1:
        return settings
    alone = len(set(settings)) == len(settings)
    names = [row.title for row in rows] if alone else short(rows)
    return [f"{name}: {title}" for name, title in zip(names, settings, strict=True)]


def parse(text: str, at: str | None = None) -> RoundRule:
    """'best' | 'val' | 'last' | 'mean-last:K', K >= 1 evaluated rounds. at: see `budgets.parse`. Raises UserError for others."""
    budget = None if at is None else budgets.parse(at)
    plain = {str(rule): rule for rule in (BEST, RoundRule("val"), RoundRule("last"))}
    if text in plain:
        return replace(plain[text], at=budget)
    if count := re.fullmatch("mean-last:0*([1-9][0-9]{0,8})", text):
        return RoundRule("mean-last", int(count[1]), budget)
    raise UserError(
        f"--round-rule {text} is not possible.",
        "Valid: best, val, last, mean-last:K, e.g. mean-last:10 for the mean of the last 10 rounds.",
    )


def sentence(round_rule: RoundRule) -> str:
    """A table's notes about its rule for rounds; the best round is chosen on test data (methods.md 2.1)."""
    if at := round_rule.at:
        return f"{sentence(replace(round_rule, at=None))} {budgets.sentence(at)}"
    if round_rule.rule == "best":
        return "Result of a run: its best round, chosen on the test data, which is optimistic."
    if round_rule.rule == "val":
        return "Result of a run: the test at the round that is best on the clients' validation data."
    if round_rule.rule == "last":
        return "Result of a run: its last evaluated round."
    return f"Result of a run: mean of its last {round_rule.last} evaluated rounds."


def short_runs(rule: RoundRule, used: Sequence[int]) -> list[str]:
    """A table's note about runs with fewer rounds than the rule takes the mean of. used: rounds of each run."""
    if min(used) >= rule.last:
        return []
    return [f"A run with fewer than {rule.last} evaluated rounds counts with all it has (shortest: {min(used)})."]


def _lacking(rule: RoundRule) -> str:
    """What a run with accuracies lacks that has no result by the rule."""
    lacks = ["validation samples (`run --val-share`)"] * (rule.rule == "val")
    if rule.at is not None and rule.at.measure != "rounds":
        lacks.append(
            f"the {budgets.UNITS[rule.at.measure]} of every round (new runs store them; --force runs finished ones anew)"
        )
    return " or ".join(lacks)


def statuses(status: Collection[str]) -> tuple[str, ...]:
    """The statuses of a filter: 'any' means all, no filter means finished. Raises UserError for an unknown one."""
    for name in status:
        if name != "any" and name not in STATUSES:
            raise unknown("status", name, (*STATUSES, "any"))
    return STATUSES if "any" in status else tuple(status) or ("finished",)


def _newest(results: Iterable[Result], wanted: Collection[str]) -> tuple[list[Result], list[Result]]:
    """The attempt of each key that counts, a finished one before others; and the newest attempt of each key without one."""
    attempts: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        attempts[result.key].append(result)
    counted: list[Result] = []
    left_out: list[Result] = []
    for same in attempts.values():
        same.sort(key=lambda result: result.attempt)
        valid = runs.that_counts([result for result in same if result.status in wanted and result.value is not None])
        (counted if valid else left_out).append(valid or same[-1])
    return counted, left_out


def _tally(results: Sequence[Result]) -> str:
    """'3 unfinished runs (2 running, 1 diverged)'."""
    statuses = Counter(result.status for result in results)
    inner = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
    finished = "" if "finished" in statuses else "unfinished "
    return f"{len(results)} {finished}run{'s' * (len(results) != 1)} ({inner})"
