"""The columns of a paper's table, from the runs that there are.

A run belongs to a cell by its method, dataset, model and partition, and by what the table varies. What else differs between its
protocol and the paper's is named in a note (see `paper`). Each protocol and partition has a column of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Engine

from pflbench import models
from pflbench.errors import NothingYet, UserError
from pflbench.report import labels, paper
from pflbench.report import statistics as stats
from pflbench.report.arrangement import Arranged, Row, SharedSetting, arrange
from pflbench.report.needed import LEADER, TABLES, MethodLine, Planned, TableNeeds
from pflbench.report.paper import Place, PrintedValue
from pflbench.report.selection import Filters
from pflbench.report.tables import cell as cellular
from pflbench.report.tables.cell import Cell, Cells
from pflbench.store.rounds import CENTRAL, by_series
from pflbench.store.runs import RoundRule

# Parameters of the models' blocks (methods.md 4), from the top, where a table varies ALA's range: building them needs torch.
BLOCKS = {
    ("tiny", "cnn"): (102_600, 5_538_304, 51_264, 2_432),
    ("tiny", "resnet18"): (102_600, 8_393_728, 2_099_712, 525_568, 147_968, 9_536),
    ("agnews", "fasttext"): (132, 1_056, 3_156_320),
}


@dataclass(frozen=True)
class AccuracyColumn:
    """A setting; of a paper's table a place with one of the settings in which it was run, or with none. Tuples are by row.

    printed: the paper's values that are shown. extra: what else the table is about, by its name in the records. majority: as of
    `baselines.majority`.
    """

    head: tuple[str, ...]
    setting: SharedSetting | None
    cells: Cells
    printed: tuple[PrintedValue | None, ...]
    verdicts: tuple[str | None, ...]
    place: Place | None = None
    extra: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    majority: float | None = None

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
    wanted = [text.casefold() for text in asked]
    own = [{name.casefold() for name in names(item)} for item in items]
    for text in wanted:
        if not any(text in one for one in own):
            there = ", ".join(dict.fromkeys(names(item)[0] for item in items))
            raise UserError(f"This table has no {kind} '{text}'.", f"It has: {there}.")
    return tuple(item for item, one in zip(items, own, strict=True) if not wanted or one & {*wanted})


def columns(
    engine: Engine, filters: Filters, declared: TableNeeds, rule: RoundRule, wanted: stats.Statistics
) -> tuple[list[AccuracyColumn], list[str]]:
    """The columns, and what was not run or not counted, in words."""
    found, where = _collected(engine, filters, declared, rule)
    made = []
    for place in declared.places:
        here = [j for j, setting in enumerate(found.settings) if where[setting.protocol] == place]
        every = _columns(declared, place, found, here, rule, wanted)
        made += [column for column in every if place not in declared.beside or any(column.cells)]
    return made, [*_missing(declared, made), *_hidden(made, declared, found), *found.notes]


def _collected(
    engine: Engine, filters: Filters, declared: TableNeeds, rule: RoundRule
) -> tuple[Arranged, dict[str, Place | None]]:
    """The runs that belong to the table, arranged, with notes about others; and the place of each protocol."""
    methods = {cell.line.method for cell in declared.needed}
    try:
        every = filters.unnamed().matching(engine, rule)
    except NothingYet:
        raise _nothing(declared) from None
    where = {protocol: _place(spec, declared) for protocol, spec in {run.protocol: run.spec for run in every}.items()}
    ours = [run for run in every if run.method in methods and where[run.protocol] is not None]
    if not ours:
        raise _nothing(declared)
    found = filters.unnamed().arranged(engine, ours, rule)
    if declared.places[0].central:
        tested = by_series(engine, found.runs, CENTRAL, rule)
        notes = found.notes
        if less := len(found.runs) - len(tested):
            notes = (*notes, f"Not counted: {labels.counted(less, 'run')} without a central test set (`--central-test`).")
        found = replace(arrange(tested), notes=notes)
    if not any(_matches(row, line) for row in found.rows for line in declared.lines):
        raise _nothing(declared)
    return found, where


def _nothing(declared: TableNeeds) -> UserError:
    first = next((cell for cell in declared.needed if cell.known), None)
    hint = f"A first part of it: {first.command}" if first else "pflbench does not have its datasets."
    return NothingYet(f"Nothing of the table '{declared.name}' ({declared.source}) was run yet.", hint)


def _place(spec: dict[str, Any], declared: TableNeeds) -> Place | None:
    """The nearest of the table's places to which a run belongs; None if a place of another table is nearer."""
    places = (place for table in (declared, *TABLES.values()) for place in table.places)
    distances = {place: _distance(spec, place) for place in places if paper.is_at(spec, place)}
    here = {"clients": spec["partition"]["clients"], "join_ratio": spec["train"]["join_ratio"]}
    fits = [p for p in declared.places if p in distances and all(getattr(p, key) == here[key] for key in declared.same)]
    nearest = min(fits, key=distances.__getitem__, default=None)
    return nearest if nearest and distances[nearest] == min(distances.values()) else None


def _distance(spec: dict[str, Any], place: Place) -> int:
    return len(paper.setting_differences(spec, place))


def _matches(row: Row, line: MethodLine) -> bool:
    return row.method == line.method and all(row.hyperparameters.get(name) == value for name, value in line.varied)


def _columns(
    declared: TableNeeds, place: Place, found: Arranged, here: Sequence[int], rule: RoundRule, wanted: stats.Statistics
) -> list[AccuracyColumn]:
    """A column for each of the settings `here` with runs of the table's lines, the paper's protocol first; or an empty one."""
    planned = [declared.planned(line, place) for line in declared.lines]
    printed = tuple(cell.reference for cell in planned)
    filled = {j: tuple(_filled(found, j, cell, rule, wanted) for cell in planned) for j in here}
    run = sorted((j for j in here if any(filled[j])), key=lambda j: _distance(found.settings[j].spec, place))
    made = []
    shown: Sequence[int | None] = run or [None]
    for j in shown:
        head, setting, leader = _head(declared, place), None, None
        cells: Cells = (None,) * len(planned)
        gains: list[float | None] = [None] * len(planned)
        if j is not None:
            cells, setting = filled[j], found.settings[j]
            partition_is_shown = place.partition != paper.UNKNOWN
            apart = setting.head[1 + partition_is_shown :] if len(run) > 1 else ()
            head = tuple(dict.fromkeys((head[0] + labels.other_content(setting.spec), *head[1:], *apart)))
            gains = [_improvement(found, j, cell) if cell else None for cell in cells]
            if declared.ranked:
                leader = _filled(found, j, declared.planned(MethodLine(LEADER), place), rule, wanted)
        verdicts = tuple(
            cellular.judge(cell, leader, declared.ranked) if cell or line.fits(place) else None
            for cell, line in zip(cells, declared.lines, strict=True)
        )
        made.append(AccuracyColumn(head, setting, cells, printed, verdicts, place, _extra(declared, place, gains)))
    return made


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
    s, p = (dict(line.varied)[name] for name in ("s", "p"))
    theirs = paper.trained_weights().get((place.dataset, place.model, s, p))
    if not line.fits(place):
        return None, theirs, ()
    return sum(BLOCKS[place.dataset, place.model][:p]), theirs, models.MODELS[place.model].blocks[p - 1 :: -1]


def _filled(found: Arranged, j: int, planned: Planned, rule: RoundRule, wanted: stats.Statistics) -> Cell | None:
    """The runs of a cell in setting j; of several sets of hyperparameters the nearest to the paper's, of versions the newest."""
    fits = []
    for i, row in enumerate(found.rows):
        runs = found.cells.get((i, j), ())
        if runs and _matches(row, planned.line):
            fits.append((paper.differences(runs[0].spec, rule, planned.place, planned.line.varied), row.version, runs))
    if not fits:
        return None
    differences, _, runs = min(fits, key=lambda fit: (len(fit[0]), -fit[1]))
    return cellular.make(runs, wanted, planned.reference, differences)


def _improvement(found: Arranged, j: int, cell: Cell) -> float | None:
    """By how many points ALA improves a method: against the same method with the same hyperparameters, in the same setting."""
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


def _hidden(made: Sequence[AccuracyColumn], declared: TableNeeds, found: Arranged) -> list[str]:
    """How many runs of the table's methods have no cell: a reader may look for them."""
    shown = {run for column in made for cell in column.cells if cell for run in cell.runs}
    ours = {i for i, row in enumerate(found.rows) if any(_matches(row, line) for line in declared.lines)}
    hidden = sum(run.id not in shown for (i, _), runs in found.cells.items() if i in ours for run in runs)
    if not hidden:
        return []
    held = labels.counted(hidden, "run")
    return [f"Not shown: {held} with other hyperparameters or an older version; `pflbench table accuracy` has them."]


def _missing(declared: TableNeeds, made: Sequence[AccuracyColumn]) -> list[str]:
    """What of the table was not run, and the command for the first of it."""
    run = {(line, column.place) for column in made for line, cell in zip(declared.lines, column.cells, strict=True) if cell}
    missing = [planned for planned in declared.cells if (planned.line, planned.place) not in run]
    notes = []
    if missing:
        first = next((planned for planned in missing if planned.known), None)
        todo = f"; next: {first.command}" if first else ""
        notes.append(f"Not run: {len(missing)} of {labels.counted(len(declared.cells), 'cell')}{todo}.")
    foreign = dict.fromkeys(planned.place.dataset for planned in missing if not planned.known)
    return notes + [f"pflbench does not have the dataset {name}." for name in foreign]


def _head(declared: TableNeeds, place: Place) -> tuple[str, ...]:
    """Dataset and partition, and what else differs between its places."""
    alike = [other for other in declared.places if (other.dataset, other.partition) == (place.dataset, place.partition)]
    more = {
        "model": models.title(place.model),
        "clients": f"{place.clients} clients",
        "join_ratio": f"join ratio {place.join_ratio:g}",
        "rounds": labels.counted(place.rounds, "round"),
    }
    apart = [text for key, text in more.items() if key in declared.same or len({getattr(other, key) for other in alike}) > 1]
    partition = () if place.partition == paper.UNKNOWN else (place.partition_label,)
    return (labels.label_title(place.data) or place.data, *partition, *apart)
