"""Which runs a report is about: what was asked for, and which attempt of a run and which of its rounds count."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from sqlalchemy import Engine

from pflbench import models
from pflbench.errors import NothingYet, UserError, unknown
from pflbench.report import labels, style
from pflbench.report.arrangement import TEST_LABELS, Arranged, Row, SharedSetting, arrange, short, titles
from pflbench.spec import TrainSpec
from pflbench.store import arrays, runs
from pflbench.store.runs import Among, Result, Select
from pflbench.store.schema import STATUSES

T = TypeVar("T")
BEST = Select("best")
PROTOCOL = "train"  # in --where, in a method's place
RULES = "best, last, mean-last:K"
TEST_LABELS_NOTE = f"{TEST_LABELS}: clients adapt on labelled test data, so this is no test."
_FIRST_RUN = "Make some: pflbench run -m fedavg -m fedala -d digits"


@dataclass(frozen=True)
class Filters:
    """What is asked for, the same for every report; nothing lets everything pass.

    Of one kind any may fit, and all kinds have to. Names of methods, datasets and partitions may be those of the command line or
    those of the tables, in any case. status: finished where none is named, 'any' for all. runs: numbers or beginnings of keys.
    where: "fedala.p=2", which is about the runs of its method alone: others stay; "train.optimizer=adamw", about all. smoke: with
    runs of `reproduce --scale smoke`, which are left out otherwise, but where they are named. only: the numbers of the runs that
    there are to choose from. kept: what was read already, where one page has many tables and figures of the same runs.
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
    def named(self) -> bool:
        """Whether settings or methods are chosen by name."""
        return bool(self.methods or self.datasets or self.partitions)

    @property
    def words(self) -> str:
        """'model cnn, rounds 20 or 50, fedala.p=2': of which part of the runs a report is; nothing for all."""
        kinds = {"model": self.models, "clients": self.clients, "rounds": self.rounds, "run": self.runs}
        said = [f"{kind} {' or '.join(map(str, asked))}" for kind, asked in kinds.items() if asked]
        return ", ".join([*said, *self.where])

    @property
    def sentence(self) -> str:
        """Of which methods, datasets and partitions it is, in words; nothing for all."""
        kinds = {"methods": self.methods, "datasets": self.datasets, "partitions": self.partitions}
        return "; ".join(f"{kind} {', '.join(names)}" for kind, names in kinds.items() if names)

    def select(self, engine: Engine, rule: Select = BEST) -> Arranged:
        """The newest attempt of each run with one of the statuses, arranged. rule: which of its rounds count.

        Raises UserError for names without runs and when no run is left.
        """
        return self._once("select", rule, lambda: self._select(engine, rule))

    def _once(self, what: str, rule: Select, read: Callable[[], T]) -> T:
        """Reads it, or gives what was kept of it."""
        if self.kept is None:
            return read()
        key = what, repr(self), rule
        if key not in self.kept:
            self.kept[key] = read()
        found: T = self.kept[key]
        return found

    def _select(self, engine: Engine, rule: Select) -> Arranged:
        among, wanted = self.among(engine), statuses(self.status)
        counted, left_out = _newest(self._matching(engine, among, rule), wanted)
        if not counted:
            raise UserError(
                f"None of the {len(left_out)} matching runs is {' or '.join(wanted)} with a result: {_tally(left_out)}.",
                "Repeat `pflbench run` to complete them, or show them as they are with --status any.",
            )
        notes = []
        if hidden := runs.hidden_smoke(engine, among):
            notes.append(f"Not counted: {labels.counted(hidden, 'run')} of `reproduce --scale smoke`; --smoke shows them.")
        if left_out:
            notes.append(f"Not counted: {_tally(left_out)}. --status any shows what they have.")
        if partial := [result for result in counted if result.status != "finished"]:
            notes.append("Counted as far as they got: " + ", ".join(f"run {r.id} ({r.status})" for r in partial) + ".")
        arranged = arrange(counted)
        if any(row.test_labels for row in arranged.rows):
            notes.append(TEST_LABELS_NOTE)
        return replace(arranged, notes=tuple(notes))

    def matching(self, engine: Engine, rule: Select = BEST) -> list[Result]:
        """The runs of any status. Raises UserError where there is none."""
        return self._matching(engine, self.among(engine), rule)

    def _datasets(self, present: Iterable[str]) -> list[str]:
        """Own data may be named by their whole path, as `run` takes it."""
        known = {name.casefold() for label in present for name in labels.names(label)}
        return [text if text.casefold() in known else labels.without_folder(text) for text in self.datasets]

    def _matching(self, engine: Engine, among: Among, rule: Select) -> list[Result]:
        return self._once("matching", rule, lambda: self._read(engine, among, rule))

    def _read(self, engine: Engine, among: Among, rule: Select) -> list[Result]:
        present, told = runs.distinct(engine, among, "dataset"), runs.titles(engine, among)
        if not told:
            if hidden := runs.hidden_smoke(engine, among):
                raise NothingYet(
                    f"There {'are' if hidden > 1 else 'is'} only {labels.counted(hidden, 'smoke run')} in this database.",
                    "--smoke shows them.",
                )
            raise NothingYet("There are no runs in this database yet.", _FIRST_RUN)
        found = runs.results(
            engine,
            among,
            rule,
            methods=_named(
                "method", self.methods, {name: {name, labels.method_title(name, title)} for name, title in told.items()}
            ),
            datasets=_named("dataset", self._datasets(present), {label: labels.names(label) for label in present}),
        )
        if labelled := _named("partition", self.partitions, {r.partition_label: {r.partition_label} for r in found}):
            found = [result for result in found if result.partition_label in labelled]
        if not found:
            raise UserError("No run fits these filters together.", "`pflbench runs list` shows what there is.")
        return found

    def among(self, engine: Engine) -> Among:
        """The runs that a report is of, but for names and status, which `select` regards.

        Raises UserError for what no run has, and where none is left.
        """
        among = Among(self.only, smoke=self.smoke or bool(self.runs))
        if not self.words or not (found := runs.results(engine, among, BEST)):
            return among
        found = _fitting("model", self.models, found, lambda r: r.spec["model"], models.title)
        found = _fitting("clients", self.clients, found, lambda r: str(r.spec["partition"]["clients"]))
        found = _fitting("rounds", self.rounds, found, lambda r: str(r.spec["train"]["rounds"]))
        if self.runs:
            named = {runs.find(engine, text).id for text in self.runs}
            found = [r for r in found if r.id in named]
        for (method, name), values in _conditions(self.where).items():
            found = _with_value(found, method, name, values)
        if not found:
            raise UserError(f"No run has {self.words}.", "`pflbench runs list` shows what there is.")
        return Among(frozenset(r.id for r in found))


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
    runs = [run.id for cell in found.cells.values() for run in cell]
    kept = arrays.rounds(engine, runs, names)
    seen = [
        Observed(found.settings[j], found.rows[i], run, name, tuple(kept[run.id, name]))
        for (i, j), cell in sorted(found.cells.items(), key=lambda item: item[0][::-1])
        for run in cell
        for name in [next((n for n in names if (run.id, n) in kept), None)]
        if name is not None
    ]
    if not seen:
        raise NothingYet(
            f"Of {labels.counted(len(runs), 'run')} none kept {' or '.join(names)}.",
            f"Make one that does: {command} (with --force, should it be finished already).",
        )
    return seen


def one_per_line(seen: Sequence[Observed]) -> list[Observed]:
    """Of each method in each setting the run with the first seed."""
    first: dict[tuple[str, str | None, str], Observed] = {}
    for one in seen:
        first.setdefault((one.setting.protocol, one.setting.partition, one.row.label), one)
    return list(first.values())


def cut(seen: Sequence[Observed], filters: Filters) -> tuple[list[Observed], tuple[str, ...]]:
    """As many as there is room for, and a note where that is not all."""
    most = style.PANELS_CHOSEN if filters.named else style.PANELS_UNASKED
    if len(seen) <= most:
        return list(seen), ()
    note = f"Drawn: the first {most} of {len(seen)} runs. Choose with --method, --dataset and --partition."
    return list(seen[:most]), (note,)


def spread(values: Sequence[int], most: int) -> list[int]:
    """At most so many of these, evenly spaced, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    return [values[round(k * (len(values) - 1) / (most - 1))] for k in range(most)]


def observed_titles(seen: Sequence[Observed], *, named: bool = False) -> list[str]:
    """As `titles`, with the method where there are several rows, or always; its hyperparameters where nothing else differs."""
    rows, settings = [one.row for one in seen], titles([one.setting for one in seen])
    if not named and len({row.label for row in rows}) == 1:
        return settings
    alone = len(set(settings)) == len(settings)
    names = [row.title for row in rows] if alone else short(rows)
    return [f"{name}: {title}" for name, title in zip(names, settings, strict=True)]


def parse(text: str) -> Select:
    """'best' | 'last' | 'mean-last:K', K >= 1 evaluated rounds. Raises UserError for anything else."""
    if text == "best":
        return Select("best")
    if text == "last":
        return Select("last")
    rule, _, count = text.partition(":")
    if rule == "mean-last" and count.isascii() and count.isdigit() and int(count) > 0:
        return Select("mean-last", int(count))
    raise UserError(f"Unknown selection '{text}'.", f"Valid: {RULES}, e.g. mean-last:10 for the mean of the last 10 rounds.")


def sentence(select: Select) -> str:
    """What a table says about its selection; the best round is chosen on test data (methods.md 2.1)."""
    if select.rule == "best":
        return "Result of a run: its best round, chosen on the test data, which is optimistic."
    if select.rule == "last":
        return "Result of a run: its last evaluated round."
    return f"Result of a run: mean of its last {select.last} evaluated rounds."


def statuses(status: Collection[str]) -> tuple[str, ...]:
    """The statuses that are meant, 'any' being all of them, and none finished. Raises UserError for an unknown one."""
    for name in status:
        if name != "any" and name not in STATUSES:
            raise unknown("status", name, (*STATUSES, "any"))
    return STATUSES if "any" in status else tuple(status) or ("finished",)


def _named(kind: str, asked: Iterable[str], present: dict[str, set[str]]) -> set[str] | None:
    """The names meant by `asked`, None for no wish. `present`: what may be written for each name."""
    chosen: set[str] = set()
    for text in asked:
        fits = {name for name, written in present.items() if text.casefold() in {item.casefold() for item in written}}
        if not fits:
            raise UserError(f"No runs with {kind} '{text}' in this database.", f"There are: {', '.join(sorted(present))}.")
        chosen |= fits
    return chosen or None


def _newest(results: Iterable[Result], wanted: Collection[str]) -> tuple[list[Result], list[Result]]:
    """Per key, the newest attempt that counts; and the newest attempt of the keys of which none does."""
    attempts: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        attempts[result.key].append(result)
    counted: list[Result] = []
    left_out: list[Result] = []
    for same in attempts.values():
        same.sort(key=lambda result: result.attempt)
        valid = [result for result in same if result.status in wanted and result.value is not None]
        (counted if valid else left_out).append((valid or same)[-1])
    return counted, left_out


def _tally(results: Sequence[Result]) -> str:
    """'3 unfinished runs (2 running, 1 diverged)'."""
    statuses = Counter(result.status for result in results)
    inner = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
    finished = "" if "finished" in statuses else "unfinished "
    return f"{len(results)} {finished}run{'s' * (len(results) != 1)} ({inner})"


def _fitting(
    kind: str,
    asked: Iterable[object],
    results: list[Result],
    has: Callable[[Result], str],
    title: Callable[[str], str] = str,
) -> list[Result]:
    wanted = {str(text).casefold() for text in asked}
    present = {text for r in results for name in [has(r)] for text in (name, title(name))}
    if missing := wanted - {text.casefold() for text in present}:
        there = sorted({has(r) for r in results}, key=lambda text: (len(text), text) if text.isdecimal() else (0, text))
        raise UserError(f"No runs with {kind} '{min(missing)}' among those asked for.", f"There are: {', '.join(there)}.")
    return [r for r in results if not wanted or {has(r).casefold(), title(has(r)).casefold()} & wanted]


def _conditions(where: Iterable[str]) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for text in where:
        target, equals, value = text.partition("=")
        method, dot, name = target.strip().partition(".")
        if not (equals and dot and method and name):
            raise UserError(
                f"--where {text}: expected METHOD.NAME=VALUE or train.NAME=VALUE.",
                "For example --where fedala.p=2 or --where train.optimizer=adamw.",
            )
        found.setdefault((method.casefold(), name), []).append(value.strip())
    return found


def _with_value(results: list[Result], method: str, name: str, values: Sequence[str]) -> list[Result]:
    """Without the runs of this method, or with "train" without all runs, that have another value."""
    if method == PROTOCOL:
        return _with_protocol(results, name, values)
    own = [r for r in results if method in (r.method.casefold(), labels.method_title(r.method, r.title).casefold())]
    if not own:
        there = ", ".join(sorted({r.method for r in results}))
        raise UserError(f"--where {method}.{name}: no such runs of '{method}'.", f"There are runs of: {there or 'no method'}.")
    known = {key for r in own for key in r.spec["method"]["hyperparameters"]}
    if name not in known:
        raise UserError(
            f"--where {method}.{name}: {method} has no hyperparameter '{name}'.", f"It has: {', '.join(sorted(known)) or 'none'}."
        )
    present = {r.id: r.spec["method"]["hyperparameters"].get(name) for r in own}
    for value in values:
        if not any(_is(one, value) for one in present.values()):
            there = ", ".join(sorted({_text(one) for one in present.values()}))
            raise UserError(f"No run of {method} has {name}={value}.", f"There are: {there}.")
    out = {run for run, one in present.items() if not any(_is(one, value) for value in values)}
    return [r for r in results if r.id not in out]


def _with_protocol(results: list[Result], name: str, values: Sequence[str]) -> list[Result]:
    """The runs with one of these values of an item of the training protocol, as `runs show` names it."""
    if name not in TrainSpec.model_fields:
        raise unknown(f"item of --where {PROTOCOL}.", name, TrainSpec.model_fields)
    present = {r.id: r.spec["train"][name] for r in results}
    for value in values:
        if not any(_is(one, value) for one in present.values()):
            there = ", ".join(sorted({_text(one) for one in present.values()}))
            raise UserError(f"No run has {PROTOCOL}.{name}={value}.", f"There are: {there}.")
    return [r for r in results if any(_is(present[r.id], value) for value in values)]


def _is(stored: object, text: str) -> bool:
    """As --set reads a value: 80 and 80.0 are the same."""
    if isinstance(stored, int | float) and not isinstance(stored, bool):
        try:
            return float(stored) == float(text)
        except ValueError:
            return False
    return _text(stored) == text.casefold()


def _text(stored: object) -> str:
    return f"{stored:g}" if isinstance(stored, float) else str(stored).casefold()
