"""Which runs may stand together, and what they are called beside each other.

A *setting* (column, panel) is one protocol on one partition: runs that differ in anything but method and seed never
share one. A *row* (line) is one method with one set of hyperparameters and one version. A *cell* holds the runs of
both: its seeds.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

from pflbench.report import labels, looks, paper
from pflbench.report.looks import Look
from pflbench.store.runs import Result

TEST_LABELS = "‡"
COLOURED, OTHERS = 12, "others"  # rows of a figure that are told apart by their looks, and the name of the rest


@dataclass(frozen=True)
class SharedSetting:
    """A protocol on a partition. `head`: dataset, partition and, if another setting has the same, what differs."""

    protocol: str
    partition: str | None  # hash
    head: tuple[str, ...]
    spec: dict[str, Any]  # of one of its runs

    @property
    def title(self) -> str:
        return ", ".join(self.head)

    @property
    def shared(self) -> dict[str, Any]:
        """The part of the specification that all its runs share."""
        return {key: value for key, value in self.spec.items() if key not in ("method", "seed")}


@dataclass(frozen=True)
class Row:
    """A method with one set of hyperparameters; `label` names those in which rows of the same method differ.

    Where they differ in more than one, it names what is not the paper's value.
    """

    key: str  # as of `row_key`: equal for the same row among other rows, where its label may differ
    method: str
    title: str  # of the method
    label: str
    version: int
    hyperparameters: dict[str, Any]
    look: Look  # unlike that of any other row beside it
    test_labels: bool = False  # its clients adapt on labelled test data


@dataclass(frozen=True)
class Arranged:
    """Runs by setting and row, each cell ordered by seed, and notes about runs that were left out."""

    settings: tuple[SharedSetting, ...]
    rows: tuple[Row, ...]
    cells: dict[tuple[int, int], tuple[Result, ...]]  # [row, setting]
    notes: tuple[str, ...]

    @property
    def runs(self) -> list[Result]:
        """The runs of all cells."""
        return [run for cell in self.cells.values() for run in cell]

    def column(self, j: int) -> list[tuple[Row, tuple[Result, ...]]]:
        """The rows with runs in a setting, and these runs."""
        return [(row, self.cells[i, j]) for i, row in enumerate(self.rows) if (i, j) in self.cells]

    def names(self, i: int, j: int) -> dict[str, Any]:
        """What a record of a table begins with: which row and setting it is of."""
        row, setting = self.rows[i], self.settings[j]
        return {
            "setting": setting.title,
            "protocol": setting.protocol,
            "row": row.label,
            "method": row.method,
            "hyperparameters": row.hyperparameters,
        }


def arrange(results: Sequence[Result]) -> Arranged:
    """Runs by setting and row, without notes."""
    settings = _settings(results)
    rows = _rows(results)
    line = {key: i for i, key in enumerate(rows)}
    column = {(s.protocol, s.partition): j for j, s in enumerate(settings)}
    cells: dict[tuple[int, int], list[Result]] = defaultdict(list)
    for r in sorted(results, key=lambda r: r.seed):
        cells[line[row_key(r)], column[r.protocol, r.partition]].append(r)
    return Arranged(settings, tuple(rows.values()), {place: tuple(runs) for place, runs in cells.items()}, ())


def _settings(results: Iterable[Result]) -> tuple[SharedSetting, ...]:
    first = {(r.protocol, r.partition): r for r in reversed(list(results))}
    by_head: dict[tuple[str, str], list[SharedSetting]] = defaultdict(list)
    for r in first.values():
        head = (labels.dataset_title(r.spec), r.partition_label)
        by_head[head].append(SharedSetting(r.protocol, r.partition, head, r.spec))
    settings = [setting for same in by_head.values() for setting in _with_distinct_heads(same)]
    settings.sort(key=_place)
    return tuple(settings)


def _place(setting: SharedSetting) -> tuple[Any, ...]:
    """The order of the paper's Table 2: pathological settings, practical ones, others; each by dataset."""
    spec = setting.spec
    kind = spec["partition"].get("kind", spec["partition"]["scheme"])
    kinds = labels.rank(("pathological", "dirichlet"), kind)
    return (kinds, labels.rank(labels.DATASETS, spec["data"]["name"]), setting.head[0], spec["model"], setting.head)


def _with_distinct_heads(settings: Sequence[SharedSetting]) -> list[SharedSetting]:
    shared = [labels.flat(s.shared) for s in settings]
    apart = labels.telling_apart(shared)
    if len({json.dumps(d) for d in apart}) < len(settings):
        # A partition's hash differs with everything that makes it: it is news only where nothing else tells them apart.
        apart = labels.telling_apart([{**spec, "partition hash": s.partition} for spec, s in zip(shared, settings, strict=True)])
    return [
        replace(s, head=(*s.head, *(labels.words(k, v) for k, v in d.items() if v is not None)))
        for s, d in zip(settings, apart, strict=True)
    ]


def row_key(run: Result) -> str:
    """Equal for runs of the same row."""
    of = run.spec["method"]
    return json.dumps([run.method, of["version"], of["hyperparameters"]], sort_keys=True)


def _rows(results: Iterable[Result]) -> dict[str, Row]:
    """By key, in the order of the tables."""
    variants: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for r in results:
        variants[r.method][row_key(r)] = r.spec["method"]
    plugin_titles = {r.method: r.title for r in results if r.title}
    titles = {method: labels.method_title(method, plugin_titles.get(method)) for method in variants}
    drawn = looks.assign((method, i) for method, of in variants.items() for i in range(len(of)))
    rows = {}
    for method in sorted(variants, key=labels.method_rank):
        ordered = sorted(variants[method].items(), key=lambda item: (item[1]["version"], _by_number(item[0])))
        apart = _departing(method, [{**of["hyperparameters"], "version": of["version"]} for _, of in ordered])
        title = titles[method] if [*titles.values()].count(titles[method]) == 1 else f"{titles[method]}, {method}"
        # The row with the usual values looks as the method does where it has one row.
        usual_first = sorted(range(len(apart)), key=lambda i: bool(apart[i]))
        for i, ((key, of), differing) in enumerate(zip(ordered, apart, strict=True)):
            extra = ", ".join(labels.words(k, v) for k, v in differing.items())
            label = (f"{title} ({extra})" if extra else title) + (f" {TEST_LABELS}" if of["test_labels"] else "")
            look = drawn[method, usual_first.index(i)]
            rows[key] = Row(key, method, title, label, of["version"], of["hyperparameters"], look, of["test_labels"])
    return rows


def _by_number(text: str) -> list[str | float]:
    """To sort by: numbers in the text by their value, 5 before 10."""
    return [float(part) if i % 2 else part for i, part in enumerate(re.split(r"(\d+(?:\.\d+)?)", text))]


def _departing(method: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What tells these rows of a method apart, without defaults. If it is more than one thing, of each row what is not usual.

    Usual is the default, which is the paper's value, else the commonest, and the newest version.
    """
    apart = labels.telling_apart(rows)
    printed = paper.hyperparameters(method)
    everywhere = {key for key in apart[0] if all(key in row for row in apart)}
    if len({key for row in apart for key in row}) < 2:
        everywhere &= printed.keys()
    usual = {}
    for key in everywhere:
        values = [row[key] for row in apart]
        usual[key] = max(values) if key == "version" else printed.get(key, max(values, key=values.count))
    return [{key: value for key, value in row.items() if key not in usual or value != usual[key]} for row in apart]


def busiest(found: Arranged, most: int | None) -> list[int]:
    """The indices of the `most` settings with the most runs, or of all settings, in their order."""
    held = [sum(len(runs) for (_, j), runs in found.cells.items() if j == column) for column in range(len(found.settings))]
    return sorted(sorted(range(len(held)), key=lambda j: -held[j])[:most])


def best_in_colour(found: Arranged, columns: Sequence[int], asked: Sequence[str]) -> tuple[Arranged, str]:
    """Rows beyond the best `COLOURED` are grey, with one entry in the legend, unless methods were asked for; and what says so."""
    accuracy = {place: mean(run.value or 0.0 for run in cell) for place, cell in found.cells.items() if place[1] in columns}
    best = {j: max(value for (_, k), value in accuracy.items() if k == j) for j in columns}
    behind: dict[int, list[float]] = defaultdict(list)
    for (i, j), value in accuracy.items():
        behind[i].append(best[j] - value)
    grey = set(sorted(behind, key=lambda i: mean(behind[i]))[COLOURED:])
    if asked or not grey:
        return found, ""
    rows = tuple(replace(row, label=OTHERS, look=looks.OTHER) if i in grey else row for i, row in enumerate(found.rows))
    named = ", ".join(found.rows[i].label for i in sorted(grey))
    said = f" In colour: the {COLOURED} methods least behind the best of each setting, on average; in grey: {named}."
    return replace(found, rows=rows), said


def titles(settings: Sequence[SharedSetting]) -> list[str]:
    """Titles of panels: dataset and partition, and how settings with the same ones differ."""
    return short_titles([(setting.head[:2], setting.head) for setting in settings])


def short_titles(items: Sequence[tuple[Sequence[str], Sequence[str]]]) -> list[str]:
    """Of each item (first, parts): `first`, and what of `parts` not all items with the same `first` have."""
    made = []
    for first, parts in items:
        same = [other for beginning, other in items if beginning == first]
        made.append(", ".join((*first, *(part for part in parts if not all(part in other for other in same)))))
    return made


def short(rows: Sequence[Row]) -> list[str]:
    """The labels of rows, with hyperparameters only if a method has several rows."""
    rows_of = Counter({row.label: row.method for row in rows}.values())
    return [row.label if rows_of[row.method] > 1 else row.title for row in rows]


def protocol(settings: Sequence[SharedSetting]) -> str:
    """The protocol that these settings share, for a caption: model, clients, training."""
    flat = [labels.flat({key: value for key, value in s.spec.items() if key not in ("method", "seed", "data")}) for s in settings]
    keys = ("model", "partition.clients", *(key for key in flat[0] if key.startswith("train.")))
    shared = [labels.words(key, flat[0][key]) for key in keys if all(one.get(key) == flat[0].get(key) for one in flat)]
    return f"Protocol: {', '.join(shared)}."
