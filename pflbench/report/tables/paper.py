"""A table of the papers, from the runs that there are: the paper's value beside ours, the difference, and a verdict.

Runs belong to a cell by method, dataset, model and partition, and by what the table varies; whatever else sets their protocol
apart from the paper's is named (see `paper`). Each protocol and partition has a column of its own: they are never averaged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Engine

from pflbench import models
from pflbench.errors import NothingYet, UserError, unknown
from pflbench.report import blocks, labels, paper, selection
from pflbench.report import statistics as stats
from pflbench.report.arrangement import TEST_LABELS, Arranged, Row, SharedSetting, arrange
from pflbench.report.declared import TABLES
from pflbench.report.needs import MethodLine, Planned, TableNeeds
from pflbench.report.paper import Place, PrintedValue
from pflbench.report.selection import TEST_LABELS_NOTE, Filters
from pflbench.report.tables import accuracy
from pflbench.report.tables import cell as cellular
from pflbench.report.tables.cell import Cell
from pflbench.report.tables.grid import CellText, Column, Grid
from pflbench.store.rounds import CENTRAL, by_series
from pflbench.store.runs import Among, Select, distinct

_UNPRINTED = "No paper's values stand beside these: what is at hand of FedAMP's paper, a review, prints none, and no protocol."


@dataclass(frozen=True)
class PlaceCells:
    """A column of cells: a place with one of the settings in which it was run, or with none. All lists are by line."""

    place: Place
    setting: SharedSetting | None
    head: tuple[str, ...]
    cells: tuple[Cell | None, ...]
    rows: tuple[Row | None, ...]  # what each cell's runs are: version, hyperparameters
    references: tuple[PrintedValue | None, ...]
    verdicts: tuple[str | None, ...]
    improvements: tuple[float | None, ...]  # by ALA, in points; None where not run or where the table has none

    @property
    def title(self) -> str:
        return ", ".join(self.head)


@dataclass(frozen=True)
class PaperTable:
    name: str
    declared: TableNeeds
    select: str
    paper: accuracy.Paper
    wanted: stats.Statistics
    lines: tuple[MethodLine, ...]
    parts: tuple[PlaceCells, ...]
    notes: tuple[str, ...]

    def grid(self) -> Grid:
        lines = zip(*(part.cells for part in self.parts), strict=True)
        marks = [f" {TEST_LABELS}" * any(cell and cell.test_labels for cell in line) for line in lines]
        return Grid(
            title=self.declared.title,
            labels=tuple(line.label + mark for line, mark in zip(self.lines, marks, strict=True)),
            columns=tuple(column for part in self.parts for column in _columns(self, part)),
            notes=self.notes,
            records=tuple(_record(self, part, i) for i in range(len(self.lines)) for part in self.parts),
            runs=tuple(run for part in self.parts for cell in part.cells if cell for run in cell.runs),
            document={"table": self.name, "source": self.declared.source, "select": self.select},
        )


def build(
    name: str,
    engine: Engine,
    filters: Filters = Filters(),
    *,
    declared: TableNeeds | None = None,
    select: Select | str = "best",
    paper: accuracy.Paper = "always",
    std: stats.Std = "population",
    ci: float | None = None,
    test: stats.Test | None = None,
    against: str | None = None,
) -> PaperTable:
    """The table `name` of `tables.TABLES`, of its rows and columns those that the filters name.

    declared: another declaration in its place, as of a part of it. paper: 'always' marks the paper's values where the protocol
    differs, 'auto' leaves them out there, 'never' everywhere. The rest is as for `accuracy.build`. Raises UserError for unknown
    names and where nothing of the table was run.
    """
    if paper not in accuracy.PAPER:
        raise unknown("value of --paper", paper, accuracy.PAPER)
    rule = selection.parse(select) if isinstance(select, str) else select
    planned = declared or TABLES[name].needs
    among, declared = filters.among(engine), _filtered(planned.with_beside(), filters)
    wanted = declared.wanted(std, ci, test, against)
    paper = paper if planned.printed else "never"
    found, left = _collected(engine, among, name, declared, rule, filters.status)
    parts = [part for place in declared.places for part in _parts(declared, place, found, rule, wanted)]
    parts = [part for part in parts if part.place not in planned.beside or any(part.cells)]
    parts = _compared(declared, parts, wanted, engine, rule)
    cells = [cell for part in parts for cell in part.cells if cell]
    notes = [
        "Accuracy in %, "
        + ("of the global model on a central test set" if declared.places[0].central else "pooled over the clients' test data")
        + f"; mean ± {std} std over runs that differ in the seed.",
        accuracy.counts(cells),
        selection.sentence(rule),
        *stats.notes(wanted, [cell.n for cell in cells], [c.comparison for c in cells if c.comparison]),
        *([] if planned.printed else [_UNPRINTED, *accuracy.protocol([part.setting for part in parts if part.setting])]),
        *_paper_notes(declared, parts, paper),
        *_missing(declared, parts, planned.beside),
        *_hidden(parts, declared, found),
        *left,
    ]
    if any(cell.test_labels for cell in cells):
        notes.append(TEST_LABELS_NOTE)
    return PaperTable(name, declared, str(rule), paper, wanted, declared.lines, tuple(parts), tuple(notes))


def _filtered(declared: TableNeeds, filters: Filters) -> TableNeeds:
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


def _collected(
    engine: Engine, among: Among, name: str, declared: TableNeeds, rule: Select, status: Collection[str]
) -> tuple[Arranged, list[str]]:
    """The runs that belong to the table, arranged, and what was left out, in words."""
    methods = _present(engine, among, "method", {cell.line.method for cell in declared.needed})
    # Of own data older runs are labelled by the whole path.
    places = {name for place in declared.places for name in (place.data, labels.without_folder(place.data))}
    datasets = _present(engine, among, "dataset", places)
    if not methods or not datasets:
        raise _nothing(name, declared)
    found = Filters(methods, datasets, status=status, only=among.runs, smoke=among.smoke).select(engine, rule)
    runs = [run for cell in found.cells.values() for run in cell if _place(run.spec, declared)]
    notes = [note for note in found.notes if note != TEST_LABELS_NOTE]
    if declared.places[0].central:
        tested = by_series(engine, runs, CENTRAL, rule)
        if len(tested) < len(runs):
            notes.append(
                f"Not counted: {labels.counted(len(runs) - len(tested), 'run')} without a central test set (--central-test)."
            )
        runs = tested
    if not any(_matches(row, line) for row in (r.spec["method"] for r in runs) for line in declared.lines):
        raise _nothing(name, declared)
    return arrange(runs), notes


def _present(engine: Engine, among: Among, column: Any, wanted: Collection[str]) -> list[str]:
    # A dataset's runs bear its variant and content, too: "emnist:byclass".
    named = ((text, labels.without_content(text)) for text in distinct(engine, among, column))
    return [text for text, name in named if name in wanted or name.partition(":")[0] in wanted]


def _nothing(name: str, declared: TableNeeds) -> UserError:
    first = next((cell for cell in declared.needed if cell.known and cell.place not in declared.beside), None)
    hint = f"A first part of it: {first.command}" if first else "pflbench does not have its datasets."
    return NothingYet(f"Nothing of the table '{name}' ({declared.source}) was run yet.", hint)


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
        if table.needs
        for other in table.needs.places
    ):
        return None
    return nearest


def _distance(spec: dict[str, Any], place: Place) -> int:
    return len(paper.setting_differences(spec, place))


def _matches(method: dict[str, Any], line: MethodLine) -> bool:
    own = method["hyperparameters"]
    return bool(method["name"] == line.method and all(own.get(name) == value for name, value in line.varied))


def _parts(declared: TableNeeds, place: Place, found: Arranged, rule: Select, wanted: stats.Statistics) -> list[PlaceCells]:
    here = [j for j, setting in enumerate(found.settings) if _place(setting.spec, declared) == place]
    planned = [declared.planned(line, place) for line in declared.lines]
    filled = {j: [_filled(found, j, cell, rule, wanted) for cell in planned] for j in here}
    run = [j for j in here if any(cell for cell, _ in filled[j])]
    run.sort(key=lambda j: len(paper.setting_differences(found.settings[j].spec, place)))
    printed, empty = tuple(cell.reference for cell in planned), (None,) * len(planned)
    parts = []
    for j in run:
        apart = found.settings[j].head[2:] if len(run) > 1 else ()
        head = tuple(dict.fromkeys((*_head(declared, place, labels.other_content(found.settings[j].spec)), *apart)))
        cells, rows = tuple(cell for cell, _ in filled[j]), tuple(row for _, row in filled[j])
        gains = tuple(_improvement(found, j, *pair) for pair in filled[j]) if declared.extra == "improvement" else empty
        leader = None
        if declared.leader is not None:
            leader, _ = _filled(found, j, declared.planned(MethodLine(declared.leader), place), rule, wanted)
        verdicts = tuple(_verdict(declared, cell, own, leader) for cell, own in zip(planned, cells, strict=True))
        parts.append(PlaceCells(place, found.settings[j], head, cells, rows, printed, verdicts, gains))
    missing = tuple(_verdict(declared, cell, None, None) for cell in planned)
    return parts or [PlaceCells(place, None, _head(declared, place), empty, empty, printed, missing, empty)]


def _filled(found: Arranged, j: int, planned: Planned, rule: Select, wanted: stats.Statistics) -> tuple[Cell | None, Row | None]:
    """The runs of a cell in setting j; of several sets of hyperparameters the nearest to the paper's, of versions the newest."""
    fits = []
    for i, row in enumerate(found.rows):
        runs = found.cells.get((i, j), ())
        if runs and _matches(runs[0].spec["method"], planned.line):
            fits.append((paper.differences(runs[0].spec, rule, planned.place, planned.line.varied), row, runs))
    if not fits:
        return None, None
    differences, row, runs = min(fits, key=lambda fit: (len(fit[0]), -fit[1].version))
    return cellular.make(runs, wanted, planned.reference, differences), row


def _improvement(found: Arranged, j: int, cell: Cell | None, row: Row | None) -> float | None:
    """By how many points ALA improves a method: against the same method with the same hyperparameters, in the same setting."""
    if cell is None or row is None:
        return None
    base = row.method.removesuffix("+ala")
    # What ALA itself decides of the method is not the same, nor could it be.
    own = paper.hyperparameters(base)
    decided = {name for name, value in own.items() if paper.hyperparameters(row.method).get(name) != value}
    mine = {k: v for k, v in row.hyperparameters.items() if k in own or k not in paper.hyperparameters("fedala")}
    for i, other in enumerate(found.rows):
        # Hyperparameters that came later are there on one side alone.
        same = all(mine.get(k) == other.hyperparameters.get(k) for k in {*mine, *other.hyperparameters} - decided)
        if other.method == base and same and (i, j) in found.cells:
            values = [100 * run.value for run in found.cells[i, j] if run.value is not None]
            return cell.mean - sum(values) / len(values)
    return None


def _verdict(declared: TableNeeds, planned: Planned, cell: Cell | None, leader: Cell | None) -> str | None:
    if cell is None and planned not in declared.cells:
        return None  # it cannot be run
    return cellular.judge(cell, leader, declared.leader is not None)


def _compared(
    declared: TableNeeds, parts: Sequence[PlaceCells], wanted: stats.Statistics, engine: Engine, rule: Select
) -> list[PlaceCells]:
    """The parts with their best cells marked and their comparisons."""
    names, methods = [line.label for line in declared.lines], [line.method for line in declared.lines]
    cells: cellular.Cells = list(zip(*(part.cells for part in parts), strict=True))
    cells = cellular.compare(cellular.mark_best(cells), names, methods, wanted, engine, rule)
    return [replace(part, cells=tuple(column)) for part, column in zip(parts, zip(*cells, strict=True), strict=True)]


def _hidden(parts: Sequence[PlaceCells], declared: TableNeeds, found: Arranged) -> list[str]:
    shown = {run for part in parts for cell in part.cells if cell for run in cell.runs}
    more = [
        run.id
        for runs in found.cells.values()
        for run in runs
        if run.id not in shown and any(_matches(run.spec["method"], line) for line in declared.lines)
    ]
    if not more:
        return []
    held = labels.counted(len(more), "run")
    return [f"Not shown: {held} with other hyperparameters or an older version; `pflbench table accuracy` has them."]


def _paper_notes(declared: TableNeeds, parts: Sequence[PlaceCells], shown: accuracy.Paper) -> list[str]:
    if shown == "never":
        return []
    notes = [f"paper: {declared.source}; in brackets our mean minus the paper's."]
    notes += cellular.verdict_notes((verdict for part in parts for verdict in part.verdicts), declared.leader is not None)
    if declared.extra == "weights":
        notes.append("weights: parameters in ALA's range, those that it learns. The paper counts models with 10 classes.")
    cells = [
        (line.label, part.title, cell) for part in parts for line, cell in zip(declared.lines, part.cells, strict=True) if cell
    ]
    return notes + cellular.difference_notes((line, title, cell.differences) for line, title, cell in cells)


def _missing(declared: TableNeeds, parts: Sequence[PlaceCells], beside: Collection[Place]) -> list[str]:
    """What of the table was not run, and the command for the first of it."""
    cells = [planned for planned in declared.cells if planned.place not in beside]
    run = {(line, part.place) for part in parts for line, cell in zip(declared.lines, part.cells, strict=True) if cell}
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


def _columns(table: PaperTable, part: PlaceCells) -> list[Column]:
    counts = Counter(cell.n for other in table.parts for cell in other.cells if cell)
    # Neither cell nor verdict: a range beyond the model's blocks.
    cells = zip(part.cells, part.verdicts, strict=True)
    shown = tuple(cellular.ours(c, len(counts) > 1) if c or verdict else CellText("") for c, verdict in cells)
    columns = [Column(part.head, shown)]
    if table.paper != "never":
        printed = tuple(
            cellular.papers(None if table.paper == "auto" and cell and cell.differences else value, cell)
            for value, cell in zip(part.references, part.cells, strict=True)
        )
        columns += [Column(("paper",), printed), Column(("verdict",), tuple(CellText(text or "") for text in part.verdicts))]
    if table.wanted.test is not None:
        columns += cellular.columns_of_test(part.cells, table.wanted.test)
    if table.declared.extra == "improvement":
        columns.append(Column(("improvement",), tuple(CellText(_number(gain, "+.2f", "-")) for gain in part.improvements)))
        gains = [paper.improvements().get((line.method, part.place.dataset)) for line in table.lines]
        if table.paper != "never":
            columns.append(Column(("paper",), tuple(CellText(_number(gain, "+.2f")) for gain in gains)))
    if table.declared.extra == "weights":
        counted = [_weights(line, part.place) for line in table.lines]
        columns.append(Column(("weights",), tuple(CellText(_number(ours, ",d")) for ours, _, _ in counted)))
        if table.paper != "never":
            columns.append(Column(("paper",), tuple(CellText(_number(theirs, ",d")) for _, theirs, _ in counted)))
        columns.append(Column(("range",), tuple(CellText(" ".join(covered)) for _, _, covered in counted)))
    return [columns[0], *(replace(column, beside=True) for column in columns[1:])]


def _weights(line: MethodLine, place: Place) -> tuple[int | None, int | None, tuple[str, ...]]:
    """The weights that ALA learns, ours and the paper's, and the blocks of its range. Nothing for a p beyond the model."""
    varied = dict(line.varied)
    covered = paper.covered().get((place.model, varied["p"]), ())
    ours = blocks.weights(place.model, place.dataset, varied["p"]) if covered else None
    return ours, paper.trained_weights().get((place.dataset, place.model, varied["s"], varied["p"])), covered


def _number(value: float | None, form: str, missing: str = "") -> str:
    return missing if value is None else format(value, form)


def _record(table: PaperTable, part: PlaceCells, i: int) -> dict[str, Any]:
    """A cell, run or not."""
    line, cell, row, reference = table.lines[i], part.cells[i], part.rows[i], part.references[i]
    record: dict[str, Any] = {
        "setting": part.title,
        "protocol": part.setting and part.setting.protocol,
        "partition": part.setting and part.setting.partition,
        "row": line.label,
        "method": line.method,
        "version": row and row.version,
        "hyperparameters": row.hyperparameters if row else dict(line.varied),
        "select": table.select,
        "paper_mean": reference and reference.mean,
        "paper_std": reference and reference.std,
        "paper_table": reference and reference.table,
        "paper_differences": cell.differences if cell else (),
        "std_kind": table.wanted.std,
        **cellular.record(cell),
        "verdict": part.verdicts[i],
    }
    if table.declared.extra == "improvement":
        record["improvement"] = part.improvements[i]
        record["paper_improvement"] = paper.improvements().get((line.method, part.place.dataset))
    if table.declared.extra == "weights":
        record["weights"], record["paper_weights"], record["range"] = _weights(line, part.place)
    return record
