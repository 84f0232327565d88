"""The columns of a paper's table, from the runs that there are.

Runs belong to a cell by method, dataset, model and partition, and by what the table varies; whatever else sets their protocol
apart from the paper's is named (see `paper`). Each protocol and partition has a column of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Engine

from pflbench import models
from pflbench.errors import NothingYet, UserError
from pflbench.report import blocks, labels, paper
from pflbench.report import statistics as stats
from pflbench.report.arrangement import Arranged, SharedSetting, arrange
from pflbench.report.needed import TABLES
from pflbench.report.needs import MethodLine, Planned, TableNeeds, can_be
from pflbench.report.paper import Place, PrintedValue
from pflbench.report.selection import Filters
from pflbench.report.tables import cell as cellular
from pflbench.report.tables.cell import Cell, Cells
from pflbench.store.rounds import CENTRAL, by_series
from pflbench.store.runs import Result, RoundRule


@dataclass(frozen=True)
class AccuracyColumn:
    """A setting; of a paper's table a place with one of the settings in which it was run, or with none. Tuples are by row.

    printed: the paper's values that are shown. extra: what else the table is about, by its name in the records.
    """

    head: tuple[str, ...]
    setting: SharedSetting | None
    cells: Cells
    printed: tuple[PrintedValue | None, ...]
    verdicts: tuple[str | None, ...]
    place: Place | None = None
    extra: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return ", ".join(self.head)


def filtered(declared: TableNeeds, filters: Filters) -> TableNeeds:
    """The part of the table that the filters name, each by name or title."""
    lines = named("method", filters.methods, declared.lines, lambda x: (x.method, labels.method_title(x.method)))
    places = named("dataset", filters.datasets, declared.places, lambda x: x.names)
    places = named("partition", filters.partitions, places, lambda x: (x.partition_label,))
    return replace(declared, lines=lines, places=places)


def named(kind: str, asked: Iterable[str], items: tuple[Any, ...], names: Any) -> tuple[Any, ...]:
    """The items that have one of the names asked for, in any case; all where none is. Raises UserError for a name of none."""
    asked = [text.casefold() for text in asked]
    for text in asked:
        if not any(text == name.casefold() for item in items for name in names(item)):
            raise UserError(
                f"This table has no {kind} '{text}'.", f"It has: {', '.join(dict.fromkeys(names(item)[0] for item in items))}."
            )
    return tuple(item for item in items if not asked or any(name.casefold() in asked for name in names(item)))


def columns(
    engine: Engine,
    filters: Filters,
    declared: TableNeeds,
    beside: Collection[Place],
    rule: RoundRule,
    wanted: stats.Statistics,
) -> tuple[list[AccuracyColumn], list[str]]:
    """The columns, and what was not run or not counted, in words. beside: places that are left out where they were not run."""
    found, at, left = _collected(engine, filters, declared, rule)
    made = [
        column
        for place in declared.places
        for column in _columns(declared, place, found, at.get(place, []), rule, wanted)
        if place not in beside or any(column.cells)
    ]
    return made, [*_missing(declared, made, beside), *_hidden(made, declared, found), *left]


def _collected(
    engine: Engine, filters: Filters, declared: TableNeeds, rule: RoundRule
) -> tuple[Arranged, dict[Place, list[int]], list[str]]:
    """The runs that belong to the table, arranged; the settings at each place; and what was left out, in words."""
    methods = {cell.line.method for cell in declared.needed}
    where: dict[str, Place | None] = {}

    def place(run: Result) -> Place | None:
        if run.protocol not in where:
            where[run.protocol] = _place(run.spec, declared)
        return where[run.protocol]

    try:
        found = filters.unnamed().select(engine, rule, lambda run: run.method in methods and place(run) is not None)
    except NothingYet:
        raise _nothing(declared) from None
    runs = [run for cell in found.cells.values() for run in cell]
    notes = list(found.notes)
    if declared.places[0].central:
        tested = by_series(engine, runs, CENTRAL, rule)
        if len(tested) < len(runs):
            held = labels.counted(len(runs) - len(tested), "run")
            notes.append(f"Not counted: {held} without a central test set (--central-test).")
        runs = tested
    if not any(_matches(run.spec["method"], line) for run in runs for line in declared.lines):
        raise _nothing(declared)
    found = arrange(runs)
    at: dict[Place, list[int]] = {}
    for j, setting in enumerate(found.settings):
        if (here := where[setting.protocol]) is not None:
            at.setdefault(here, []).append(j)
    return found, at, notes


def _nothing(declared: TableNeeds) -> UserError:
    first = next((cell for cell in declared.needed if cell.known and cell.place not in declared.beside), None)
    hint = f"A first part of it: {first.command}" if first else "pflbench does not have its datasets."
    return NothingYet(f"Nothing of the table '{declared.name}' ({declared.source}) was run yet.", hint)


def _place(spec: dict[str, Any], declared: TableNeeds) -> Place | None:
    """The nearest of the table's places to which a run belongs; None if a place of another table is nearer."""
    here = {"clients": spec["partition"]["clients"], "join_ratio": spec["train"]["join_ratio"]}
    fits = [
        place
        for place in declared.places
        if paper.is_at(spec, place) and all(getattr(place, key) == here[key] for key in declared.same)
    ]
    nearest = min(fits, key=lambda place: _distance(spec, place), default=None)
    if nearest is None or any(
        paper.is_at(spec, other) and _distance(spec, other) < _distance(spec, nearest)
        for table in TABLES.values()
        for other in table.places
    ):
        return None
    return nearest


def _distance(spec: dict[str, Any], place: Place) -> int:
    return len(paper.setting_differences(spec, place))


def _matches(method: dict[str, Any], line: MethodLine) -> bool:
    own = method["hyperparameters"]
    return bool(method["name"] == line.method and all(own.get(name) == value for name, value in line.varied))


def _columns(
    declared: TableNeeds,
    place: Place,
    found: Arranged,
    here: Sequence[int],
    rule: RoundRule,
    wanted: stats.Statistics,
) -> list[AccuracyColumn]:
    """A column for each of the settings `here` with runs of the table's lines, the paper's protocol first; or an empty one."""
    planned = [declared.planned(line, place) for line in declared.lines]
    possible = [can_be(line, place) for line in declared.lines]
    printed = tuple(cell.reference for cell in planned)
    filled = {j: tuple(_filled(found, j, cell, rule, wanted) for cell in planned) for j in here}
    run = sorted((j for j in here if any(filled[j])), key=lambda j: _distance(found.settings[j].spec, place))
    made = []
    for j in run:
        setting = found.settings[j]
        apart = setting.head[2:] if len(run) > 1 else ()
        head = tuple(dict.fromkeys((*_head(declared, place, labels.other_content(setting.spec)), *apart)))
        leader = None
        if declared.leader is not None:
            leader = _filled(found, j, declared.planned(MethodLine(declared.leader), place), rule, wanted)
        verdicts = _verdicts(declared, filled[j], possible, leader)
        gains = [_improvement(found, j, cell) for cell in filled[j]]
        made.append(AccuracyColumn(head, setting, filled[j], printed, verdicts, place, _extra(declared, place, gains)))
    empty: tuple[None, ...] = (None,) * len(planned)
    none = _verdicts(declared, empty, possible, None)
    return made or [AccuracyColumn(_head(declared, place), None, empty, printed, none, place, _extra(declared, place, empty))]


def _extra(declared: TableNeeds, place: Place, gains: Sequence[float | None]) -> dict[str, Sequence[Any]]:
    """gains: the improvement by ALA of each line, in points."""
    if declared.extra == "improvement":
        printed = paper.improvements()
        return {"improvement": gains, "paper_improvement": [printed.get((line.method, place.dataset)) for line in declared.lines]}
    if declared.extra == "weights":
        ours, theirs, covered = zip(*(_weights(line, place) for line in declared.lines), strict=True)
        return {"weights": ours, "paper_weights": theirs, "range": covered}
    return {}


def _weights(line: MethodLine, place: Place) -> tuple[int | None, int | None, tuple[str, ...]]:
    """The weights that ALA learns, ours and the paper's, and the blocks of its range. Nothing for a p beyond the model."""
    varied = dict(line.varied)
    covered = paper.covered().get((place.model, varied["p"]), ())
    ours = blocks.weights(place.model, place.dataset, varied["p"]) if covered else None
    return ours, paper.trained_weights().get((place.dataset, place.model, varied["s"], varied["p"])), covered


def _filled(found: Arranged, j: int, planned: Planned, rule: RoundRule, wanted: stats.Statistics) -> Cell | None:
    """The runs of a cell in setting j; of several sets of hyperparameters the nearest to the paper's, of versions the newest."""
    fits = []
    for i, row in enumerate(found.rows):
        runs = found.cells.get((i, j), ())
        if runs and _matches(runs[0].spec["method"], planned.line):
            fits.append((paper.differences(runs[0].spec, rule, planned.place, planned.line.varied), row.version, runs))
    if not fits:
        return None
    differences, _, runs = min(fits, key=lambda fit: (len(fit[0]), -fit[1]))
    return cellular.make(runs, wanted, planned.reference, differences)


def _improvement(found: Arranged, j: int, cell: Cell | None) -> float | None:
    """By how many points ALA improves a method: against the same method with the same hyperparameters, in the same setting."""
    if cell is None:
        return None
    name, hyperparameters = cell.method["name"], cell.method["hyperparameters"]
    base = name.removesuffix("+ala")
    # What ALA itself decides of the method is not the same, nor could it be.
    own = paper.hyperparameters(base)
    decided = {key for key, value in own.items() if paper.hyperparameters(name).get(key) != value}
    mine = {k: v for k, v in hyperparameters.items() if k in own or k not in paper.hyperparameters("fedala")}
    for i, other in enumerate(found.rows):
        # Hyperparameters that came later are there on one side alone.
        same = all(mine.get(k) == other.hyperparameters.get(k) for k in {*mine, *other.hyperparameters} - decided)
        if other.method == base and same and (i, j) in found.cells:
            values = [100 * run.value for run in found.cells[i, j] if run.value is not None]
            return cell.mean - sum(values) / len(values)
    return None


def _verdicts(declared: TableNeeds, cells: Cells, possible: Sequence[bool], leader: Cell | None) -> tuple[str | None, ...]:
    """None of what cannot be run."""
    ranked = declared.leader is not None
    return tuple(cellular.judge(cell, leader, ranked) if cell or can else None for cell, can in zip(cells, possible, strict=True))


def _hidden(made: Sequence[AccuracyColumn], declared: TableNeeds, found: Arranged) -> list[str]:
    """How many runs of the table's methods have no cell: a reader may look for them."""
    shown = {run for column in made for cell in column.cells if cell for run in cell.runs}
    runs = [run for same in found.cells.values() for run in same if run.id not in shown]
    more = [run for run in runs if any(_matches(run.spec["method"], line) for line in declared.lines)]
    if not more:
        return []
    held = labels.counted(len(more), "run")
    return [f"Not shown: {held} with other hyperparameters or an older version; `pflbench table accuracy` has them."]


def _missing(declared: TableNeeds, made: Sequence[AccuracyColumn], beside: Collection[Place]) -> list[str]:
    """What of the table was not run, and the command for the first of it."""
    cells = [planned for planned in declared.cells if planned.place not in beside]
    run = {(line, column.place) for column in made for line, cell in zip(declared.lines, column.cells, strict=True) if cell}
    missing = [planned for planned in cells if (planned.line, planned.place) not in run]
    notes = []
    if missing:
        first = next((planned for planned in missing if planned.known), None)
        todo = f"; next: {first.command}" if first else ""
        notes.append(f"Not run: {len(missing)} of {labels.counted(len(cells), 'cell')}{todo}.")
    foreign = dict.fromkeys(planned.place.dataset for planned in missing if not planned.known)
    return notes + [f"pflbench does not have the dataset {name}." for name in foreign]


def _head(declared: TableNeeds, place: Place, content: str = "") -> tuple[str, ...]:
    """Dataset, with a content that is not the official one, and partition, and what else differs between its places."""
    alike = [other for other in declared.places if (other.dataset, other.partition) == (place.dataset, place.partition)]
    more = {
        "model": models.title(place.model),
        "clients": f"{place.clients} clients",
        "join_ratio": f"join ratio {place.join_ratio:g}",
        "rounds": labels.counted(place.rounds, "round"),
    }
    apart = [text for key, text in more.items() if key in declared.same or len({getattr(other, key) for other in alike}) > 1]
    partition = () if place.partition == paper.UNKNOWN else (place.partition_label,)
    return ((labels.label_title(place.data) or place.data) + content, *partition, *apart)
