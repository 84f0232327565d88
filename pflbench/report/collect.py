"""Which runs a report is about, and which of them may stand together.

A *setting* (column, panel) is one protocol on one partition: runs that differ in anything but method and seed never
share one. A *row* (line) is one method with one set of hyperparameters and one version. A *cell* holds the runs of
both: its seeds.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Engine

from pflbench.errors import NothingYet, UserError, unknown
from pflbench.report import labels, looks, paper
from pflbench.report.looks import Look
from pflbench.store import read
from pflbench.store.attempts import hidden_smoke
from pflbench.store.read import Result, Select
from pflbench.store.schema import STATUSES

TEST_LABELS = "‡"
TEST_LABELS_NOTE = f"{TEST_LABELS}: clients adapt on labelled test data, so this is no test."
_FIRST_RUN = "Make some: pflbench run -m fedavg -m fedala -d digits"


@dataclass(frozen=True)
class Setting:
    """A protocol on a partition. `head`: dataset, partition and, if another setting has the same, what differs."""

    protocol: str
    partition: str | None  # hash
    head: tuple[str, ...]
    spec: dict[str, Any]  # of one of its runs

    @property
    def title(self) -> str:
        return ", ".join(self.head)


@dataclass(frozen=True)
class Row:
    """A method with one set of hyperparameters; `label` names those in which rows of the same method differ.

    Where they differ in more than one, it names what is not the paper's value.
    """

    method: str
    label: str
    version: int
    hyperparameters: dict[str, Any]
    variant: int  # 0, 1, ... among the rows of the same method
    look: Look  # unlike that of any other row beside it
    test_labels: bool = False  # its clients adapt on labelled test data


@dataclass(frozen=True)
class Arranged:
    """Runs by setting and row, each cell in the order of its seeds, and what was left out, in words."""

    settings: tuple[Setting, ...]
    rows: tuple[Row, ...]
    cells: dict[tuple[int, int], tuple[Result, ...]]  # [row, setting]
    notes: tuple[str, ...]


def collect(
    engine: Engine,
    select: Select,
    *,
    methods: Iterable[str] = (),
    datasets: Iterable[str] = (),
    partitions: Iterable[str] = (),
    status: Collection[str] = ("finished",),
) -> Arranged:
    """The newest attempt of each run with one of the given statuses ('any' for all), filtered and arranged.

    Empty filters let everything pass. Names of methods, datasets and partitions may be those of the command line or
    those of the tables, in any case. Raises UserError for names without runs and when no run is left.
    """
    wanted = statuses(status)
    found = matching(engine, select, methods=methods, datasets=datasets, partitions=partitions)
    counted, left_out = _newest(found, wanted)
    if not counted:
        raise UserError(
            f"None of the {len(left_out)} matching runs is {' or '.join(wanted)} with a result: {_tally(left_out)}.",
            "Repeat `pflbench run` to complete them, or show them as they are with --status any.",
        )
    notes = []
    if hidden := hidden_smoke(engine):
        notes.append(f"Not counted: {labels.counted(hidden, 'run')} of `reproduce --scale smoke`; --smoke shows them.")
    if left_out:
        notes.append(f"Not counted: {_tally(left_out)}. --status any shows what they have.")
    if partial := [result for result in counted if result.status != "finished"]:
        notes.append("Counted as far as they got: " + ", ".join(f"run {r.id} ({r.status})" for r in partial) + ".")
    arranged = arrange(counted)
    if any(row.test_labels for row in arranged.rows):
        notes.append(TEST_LABELS_NOTE)
    return replace(arranged, notes=tuple(notes))


def matching(
    engine: Engine,
    select: Select,
    *,
    methods: Iterable[str] = (),
    datasets: Iterable[str] = (),
    partitions: Iterable[str] = (),
) -> list[Result]:
    """The runs of any status that pass the filters, which are those of `collect`. Raises UserError where none does."""
    present = {"method": read.distinct(engine, "method"), "dataset": read.distinct(engine, "dataset")}
    if not present["method"]:
        if hidden := hidden_smoke(engine):
            raise NothingYet(
                f"There {'are' if hidden > 1 else 'is'} only {labels.counted(hidden, 'smoke run')} in this database.",
                "--smoke shows them.",
            )
        raise NothingYet("There are no runs in this database yet.", _FIRST_RUN)
    found = read.results(
        engine,
        select,
        methods=_named("method", methods, {name: {name, labels.method_title(name)} for name in present["method"]}),
        datasets=_named("dataset", datasets, {label: labels.names(label) for label in present["dataset"]}),
    )
    if labelled := _named("partition", partitions, {r.partition_label: {r.partition_label} for r in found}):
        found = [result for result in found if result.partition_label in labelled]
    if not found:
        raise UserError("No run fits these filters together.", "`pflbench runs list` shows what there is.")
    return found


def statuses(status: Collection[str]) -> tuple[str, ...]:
    """The statuses that are meant, 'any' being all of them. Raises UserError for an unknown one."""
    for name in status:
        if name != "any" and name not in STATUSES:
            raise unknown("status", name, (*STATUSES, "any"))
    return STATUSES if "any" in status else tuple(status)


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


def arrange(results: Sequence[Result]) -> Arranged:
    """Runs by setting and row, without notes."""
    settings = _settings(results)
    rows = _rows(results)
    column = {(s.protocol, s.partition): j for j, s in enumerate(settings)}
    line = {_row_key(row.method, row.version, row.hyperparameters): i for i, row in enumerate(rows)}
    cells: dict[tuple[int, int], list[Result]] = defaultdict(list)
    for r in sorted(results, key=lambda r: r.seed):
        method = r.spec["method"]
        place = line[_row_key(r.method, method["version"], method["hyperparameters"])]
        cells[place, column[r.protocol, r.partition]].append(r)
    return Arranged(settings, rows, {place: tuple(runs) for place, runs in cells.items()}, ())


def _settings(results: Iterable[Result]) -> tuple[Setting, ...]:
    first = {(r.protocol, r.partition): r for r in reversed(list(results))}
    by_head: dict[tuple[str, str], list[Setting]] = defaultdict(list)
    for r in first.values():
        head = (labels.dataset_title(r.spec), r.partition_label)
        by_head[head].append(Setting(r.protocol, r.partition, head, r.spec))
    settings = [setting for same in by_head.values() for setting in _with_distinct_heads(same)]
    settings.sort(key=_place)
    return tuple(settings)


def _place(setting: Setting) -> tuple[Any, ...]:
    """As in the paper's Table 2: pathological settings, then practical ones, then others; each by dataset."""
    spec = setting.spec
    kind = spec["partition"].get("kind", spec["partition"]["scheme"])
    kinds = labels.rank(("pathological", "dirichlet"), kind)
    return (kinds, labels.rank(labels.DATASETS, spec["data"]["name"]), setting.head[0], spec["model"], setting.head)


def _with_distinct_heads(settings: Sequence[Setting]) -> list[Setting]:
    shared = [labels.flat({k: v for k, v in s.spec.items() if k not in ("method", "seed")}) for s in settings]
    apart = labels.telling_apart([{**spec, "partition hash": s.partition} for spec, s in zip(shared, settings, strict=True)])
    # A partition's hash differs with everything that makes it: it is news only where nothing else tells them apart.
    if len({json.dumps({k: v for k, v in d.items() if k != "partition hash"}) for d in apart}) == len(settings):
        apart = [{k: v for k, v in d.items() if k != "partition hash"} for d in apart]
    return [
        replace(s, head=(*s.head, *(labels.words(k, v) for k, v in d.items() if v is not None)))
        for s, d in zip(settings, apart, strict=True)
    ]


def _rows(results: Iterable[Result]) -> tuple[Row, ...]:
    variants: dict[str, dict[str, tuple[int, dict[str, Any], bool]]] = defaultdict(dict)
    for r in results:
        spec = r.spec["method"]
        version, hyperparameters, adapted = spec["version"], spec["hyperparameters"], spec.get("test_labels", False)
        variants[r.method][_row_key(r.method, version, hyperparameters)] = (version, hyperparameters, adapted)
    drawn = looks.assign((method, i) for method, of in variants.items() for i in range(len(of)))
    rows = []
    for method in sorted(variants, key=labels.method_rank):
        ordered = sorted(variants[method].values(), key=lambda v: (v[0], json.dumps(v[1], sort_keys=True)))
        apart = _departing(method, [{**hyper, "version": version} for version, hyper, _ in ordered])
        title = labels.method_title(method)
        for i, ((version, hyper, adapted), differing) in enumerate(zip(ordered, apart, strict=True)):
            extra = ", ".join(labels.words(k, v) for k, v in differing.items())
            label = (f"{title} ({extra})" if extra else title) + (f" {TEST_LABELS}" if adapted else "")
            rows.append(Row(method, label, version, hyper, i, drawn[method, i], adapted))
    return tuple(rows)


def _departing(method: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What tells these rows of a method apart. If it is more than one thing, of each row what is not usual.

    Usual is the paper's value, else the commonest, and the newest version.
    """
    apart = labels.telling_apart(rows)
    everywhere = {key for key in apart[0] if all(key in row for row in apart)}
    if len({key for row in apart for key in row}) < 2:
        return apart
    printed = paper.hyperparameters(method)
    usual = {}
    for key in everywhere:
        values = [row[key] for row in apart]
        usual[key] = max(values) if key == "version" else printed.get(key, max(values, key=values.count))
    return [{key: value for key, value in row.items() if key not in usual or value != usual[key]} for row in apart]


def _row_key(method: str, version: int, hyperparameters: dict[str, Any]) -> str:
    return json.dumps([method, version, hyperparameters], sort_keys=True)
