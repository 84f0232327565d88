"""What figures have in common before anything is drawn: the settings they show, the arrays they need, the words for both."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Engine

from pflbench.errors import NothingYet
from pflbench.report import labels, style
from pflbench.report.collect import Arranged, Row, Setting, collect
from pflbench.store import observed
from pflbench.store.read import Result, Select


@dataclass(frozen=True)
class Filters:
    """Which runs a figure is about, as for every report: see `collect`."""

    methods: Sequence[str] = ()
    datasets: Sequence[str] = ()
    partitions: Sequence[str] = ()
    status: Collection[str] = field(default=("finished",))

    @property
    def any(self) -> bool:
        return bool(self.methods or self.datasets or self.partitions)

    def collect(self, engine: Engine) -> Arranged:
        return collect(
            engine,
            Select("best"),
            methods=self.methods,
            datasets=self.datasets,
            partitions=self.partitions,
            status=self.status,
        )


@dataclass(frozen=True)
class Observed:
    """A run that kept arrays of one name, in `rounds`: rows of the database, so that row t is what came after t rounds."""

    setting: Setting
    row: Row
    run: Result
    name: str
    rounds: tuple[int, ...]

    @property
    def title(self) -> str:
        return f"{self.row.label}: {self.setting.title}"


def busiest(found: Arranged, most: int) -> list[int]:
    """The numbers of the `most` settings with the most runs, in the order of the settings."""
    held = [sum(len(runs) for (_, j), runs in found.cells.items() if j == column) for column in range(len(found.settings))]
    return sorted(sorted(range(len(held)), key=lambda j: -held[j])[:most])


def with_arrays(engine: Engine, found: Arranged, names: Sequence[str], command: str) -> list[Observed]:
    """The runs that kept one of these arrays, by setting, row and seed; of two names the first. command: what keeps them.

    Raises UserError where no run has any.
    """
    runs = [run.id for cell in found.cells.values() for run in cell]
    kept = observed.rounds(engine, runs, names)
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
    most = style.PANELS_CHOSEN if filters.any else style.PANELS_UNASKED
    if len(seen) <= most:
        return list(seen), ()
    note = f"Drawn: the first {most} of {len(seen)} runs. Choose with --method, --dataset and --partition."
    return list(seen[:most]), (note,)


def spread(values: Sequence[int], most: int) -> list[int]:
    """At most so many of these, evenly spaced, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    return [values[round(k * (len(values) - 1) / (most - 1))] for k in range(most)]


def titles(settings: Sequence[Setting]) -> list[str]:
    """For panels: dataset and partition, and what tells apart those of these settings that have the same."""
    made = []
    for setting in settings:
        same = [other for other in settings if other.head[:2] == setting.head[:2]]
        rest = [part for part in setting.head[2:] if not all(part in other.head for other in same)]
        made.append(", ".join((*setting.head[:2], *rest)))
    return made


def observed_titles(seen: Sequence[Observed], *, named: bool = False) -> list[str]:
    """As `titles`, with the method where there are several rows, or always; its hyperparameters where nothing else differs."""
    rows, settings = [one.row for one in seen], titles([one.setting for one in seen])
    if not named and len({row.label for row in rows}) == 1:
        return settings
    alone = len(set(settings)) == len(settings)
    names = [labels.method_title(row.method) for row in rows] if alone else short(rows)
    return [f"{name}: {title}" for name, title in zip(names, settings, strict=True)]


def short(rows: Sequence[Row]) -> list[str]:
    """The names of rows: the hyperparameters are told only where a method has several of these."""
    different = {row.label: row.method for row in rows}
    several = [method for method in different.values() if list(different.values()).count(method) > 1]
    return [row.label if row.method in several else labels.method_title(row.method) for row in rows]


def protocol(settings: Sequence[Setting]) -> str:
    """What these settings share, for a caption: model, clients and the rest of the training protocol."""
    flat = [labels.flat({key: value for key, value in s.spec.items() if key not in ("method", "seed", "data")}) for s in settings]
    keys = ("model", "partition.clients", *(key for key in flat[0] if key.startswith("train.")))
    shared = [labels.words(key, flat[0][key]) for key in keys if all(one.get(key) == flat[0].get(key) for one in flat)]
    return f"Protocol: {', '.join(shared)}."
