"""Which runs may stand together, and what they are called beside each other.

A *setting* (column, panel) is one protocol on one partition: runs that differ in anything but method and seed never
share one. A *row* (line) is one method with one set of hyperparameters and one version. A *cell* holds the runs of
both: its seeds.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pflbench.report import labels, looks, paper
from pflbench.report.looks import Look
from pflbench.store.runs import Result

TEST_LABELS = "‡"


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

    method: str
    title: str  # of the method
    label: str
    version: int
    hyperparameters: dict[str, Any]
    variant: int  # 0, 1, ... among the rows of the same method
    look: Look  # unlike that of any other row beside it
    test_labels: bool = False  # its clients adapt on labelled test data


@dataclass(frozen=True)
class Arranged:
    """Runs by setting and row, each cell ordered by seed, and notes about runs that were left out."""

    settings: tuple[SharedSetting, ...]
    rows: tuple[Row, ...]
    cells: dict[tuple[int, int], tuple[Result, ...]]  # [row, setting]
    notes: tuple[str, ...]


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
        version, hyperparameters, adapted = spec["version"], spec["hyperparameters"], spec["test_labels"]
        variants[r.method][_row_key(r.method, version, hyperparameters)] = (version, hyperparameters, adapted)
    told = {r.method: r.title for r in results if r.title}
    drawn = looks.assign((method, i) for method, of in variants.items() for i in range(len(of)))
    rows = []
    for method in sorted(variants, key=labels.method_rank):
        ordered = sorted(variants[method].values(), key=lambda v: (v[0], json.dumps(v[1], sort_keys=True)))
        apart = _departing(method, [{**hyper, "version": version} for version, hyper, _ in ordered])
        title = labels.method_title(method, told.get(method))
        for i, ((version, hyper, adapted), differing) in enumerate(zip(ordered, apart, strict=True)):
            extra = ", ".join(labels.words(k, v) for k, v in differing.items())
            label = (f"{title} ({extra})" if extra else title) + (f" {TEST_LABELS}" if adapted else "")
            rows.append(Row(method, title, label, version, hyper, i, drawn[method, i], adapted))
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


def busiest(found: Arranged, most: int | None) -> list[int]:
    """The indices of the `most` settings with the most runs, or of all settings, in their order."""
    held = [sum(len(runs) for (_, j), runs in found.cells.items() if j == column) for column in range(len(found.settings))]
    return sorted(sorted(range(len(held)), key=lambda j: -held[j])[:most])


def titles(settings: Sequence[SharedSetting]) -> list[str]:
    """Titles of panels: dataset and partition, and how settings with the same ones differ."""
    made = []
    for setting in settings:
        same = [other for other in settings if other.head[:2] == setting.head[:2]]
        rest = [part for part in setting.head[2:] if not all(part in other.head for other in same)]
        made.append(", ".join((*setting.head[:2], *rest)))
    return made


def short(rows: Sequence[Row]) -> list[str]:
    """The labels of rows, with hyperparameters only if a method has several rows."""
    different = {row.label: row.method for row in rows}
    several = [method for method in different.values() if list(different.values()).count(method) > 1]
    return [row.label if row.method in several else row.title for row in rows]


def protocol(settings: Sequence[SharedSetting]) -> str:
    """The protocol that these settings share, for a caption: model, clients, training."""
    flat = [labels.flat({key: value for key, value in s.spec.items() if key not in ("method", "seed", "data")}) for s in settings]
    keys = ("model", "partition.clients", *(key for key in flat[0] if key.startswith("train.")))
    shared = [labels.words(key, flat[0][key]) for key in keys if all(one.get(key) == flat[0].get(key) for one in flat)]
    return f"Protocol: {', '.join(shared)}."
