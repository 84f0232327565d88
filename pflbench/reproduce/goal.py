"""A goal of `reproduce`: a table, a figure or both, at a scale, with the runs that they need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pflbench import data
from pflbench.errors import UserError
from pflbench.report import labels
from pflbench.report.declared import PLOTS, TABLES
from pflbench.report.needed import FigureNeeds, Planned, TableNeeds, command
from pflbench.report.paper import Place
from pflbench.report.papermap import Part, resolve
from pflbench.report.tables.places import named
from pflbench.reproduce.scales import SCALES, Scale, proportion
from pflbench.run.follow import Follow
from pflbench.run.options import RunOptions
from pflbench.run.plan import plan
from pflbench.spec import DataSpec, RunSpec


@dataclass(frozen=True)
class Wanted:
    """A run that is needed. options: of the command that runs all of its seeds.

    array: what it must keep in these rounds, which is no part of its key. tabled: whether the table needs it.
    """

    spec: RunSpec
    options: dict[str, Any]
    array: str | None = None
    rounds: range = range(0)
    tabled: bool = True

    @property
    def command(self) -> str:
        """The command for this run alone."""
        return command({**{k: v for k, v in self.options.items() if k != "seeds"}, "seed": self.spec.seed})

    @property
    def name(self) -> str:
        spec = self.spec
        return f"{spec.method.name} {spec.data.label} {spec.partition.label} seed {spec.seed}"


@dataclass(frozen=True)
class Goal:
    """table, figure: None if the name has none, or if only the other one is made. cells: to be run; of a figure that shows data
    alone, its settings.

    foreign: datasets that pflbench does not have. left_out: lines with more blocks than the scale's model. printed: the paper's
    table or figure, if only its cells are made. drawn: cells that only the figure shows.
    """

    name: str
    scale: Scale
    table: TableNeeds | None
    figure: FigureNeeds | None
    cells: tuple[Planned, ...]
    foreign: tuple[str, ...]
    left_out: tuple[str, ...]
    printed: str
    drawn: frozenset[Planned]

    def wanted(self, data_dir: Path, seeds: str | None = None) -> tuple[Wanted, ...]:
        """All runs without repetition, ordered by setting, so that data are read once, and by seed.

        seeds: as of `pflbench run`, instead of the scale's.
        """
        return () if self.untrained else self.planned(data_dir, seeds)

    def planned(self, data_dir: Path, seeds: str | None = None) -> tuple[Wanted, ...]:
        """As `wanted`; of a figure that needs no run, the runs that would have its data and partitions."""
        one_seed = self.table is None and self.figure is not None and self.figure.one_seed
        seeds = seeds or ("0" if one_seed or self.scale.seeds == 1 else f"0-{self.scale.seeds - 1}")
        found: dict[str, Wanted] = {}
        parsed: dict[str, DataSpec] = {}
        for cell in self.cells:
            options = {**self.scale.options(cell, self.figure.fewest if self.figure else 1), "seeds": seeds}
            keeps, array, rounds = self._kept(cell)
            for spec in plan(RunOptions(**options, data_dir=data_dir), parsed):
                found.setdefault(spec.key, Wanted(spec, options | keeps, array, rounds, cell not in self.drawn))
        settings = list(dict.fromkeys((one.spec.data, one.spec.partition) for one in found.values()))
        order = {setting: place for place, setting in enumerate(settings)}
        return tuple(sorted(found.values(), key=lambda one: (order[one.spec.data, one.spec.partition], one.spec.seed)))

    @property
    def untrained(self) -> bool:
        """Whether it needs only data and partitions."""
        return self.table is None and self.figure is not None and not self.figure.trained

    @property
    def source(self) -> str:
        """Its place in the papers."""
        if self.printed:
            return f"FedALA paper, {self.printed}"
        return " and ".join(dict.fromkeys(part.source for part in (self.table, self.figure) if part is not None))

    @property
    def note(self) -> str:
        """The note that names the scale."""
        return f"Scale {self.scale.name}: {self.scale.sentence}."

    @property
    def figure_options(self) -> dict[str, Any]:
        """Arguments of the figure's function beside the runs."""
        if self.figure is None or self.figure.client is None:
            return {}
        return {"client": min(self._client(cell, self.figure.client) for cell in self.cells)}

    def _client(self, cell: Planned, client: int) -> int:
        return min(client, self.scale.place(cell.place).clients - 1)

    def _kept(self, cell: Planned) -> tuple[dict[str, Any], str | None, range]:
        """The options of `pflbench run` that keep what the figure shows, its name, and in which rounds it is kept."""
        figure = self.figure
        if figure is None or (figure.array is None and figure.window is None):
            return {}, None, range(0)
        rounds = self.scale.place(cell.place, figure.fewest).rounds
        factor = rounds / cell.place.rounds
        if figure.window is not None and figure.client is not None:
            first, last = (proportion(t, factor) for t in figure.window)
            client = self._client(cell, figure.client)
            return {"trajectory": f"{client}:{first}-{last}"}, Follow(client, first, last).name, range(first, last + 1)
        every = proportion(figure.save_artifacts_every, factor)
        return {"save_artifacts_every": every}, figure.array, range(every, rounds + 1, every)


def goals(
    name: str, scale: str = "full", *, methods: Sequence[str] = (), datasets: Sequence[str] = (), partitions: Sequence[str] = ()
) -> tuple[Goal, ...]:
    """The goals of a name (see `papermap.resolve`), with the cells that pass the filters: methods and datasets by name or title.
    Tables without such a cell are left out.

    A dataset may be replaced by other data: "cifar10=folder:PATH". Raises UserError for unknown names, and if no cell passes.
    """
    found: list[Goal] = []
    refused: list[UserError] = []
    for part in resolve(name):
        try:
            found.append(_goal(part, SCALES[scale], methods, datasets, partitions))
        except UserError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    return tuple(found)


def _goal(part: Part, scale: Scale, methods: Sequence[str], datasets: Sequence[str], partitions: Sequence[str]) -> Goal:
    name = part.name
    table: TableNeeds | None = TABLES[name].needs if part.kind != "plot" and name in TABLES else None
    figure: FigureNeeds | None = PLOTS[name].needs if part.kind != "table" and name in PLOTS else None
    names, others = _stand_ins(datasets)
    if others and scale.embedded:
        raise UserError(f"At scale {scale.name} the digits stand in for all data.", "Name datasets without '='.")
    drawn = figure.cells if figure else ()
    if table and part.printed:
        table = table.of(part.printed)
    elif figure and part.printed:
        drawn = tuple(cell for cell in drawn if cell.place in figure.printed[part.printed])
    drawn = tuple(replace(cell, place=_in_place(others, cell.place)) for cell in drawn)
    if table:
        places, beside = (tuple(_in_place(others, place) for place in of) for of in (table.places, table.beside))
        table = replace(table, places=places, beside=beside)
    tabled = table.needed if table else ()
    # The table's cells come first: a run that both need counts as the table's.
    cells = tuple(dict.fromkeys((*tabled, *drawn)))
    cells = named("method", methods, cells, lambda x: (x.line.method, labels.method_title(x.line.method)))
    cells = named("dataset", names, cells, lambda x: x.place.names)
    cells = named("partition", partitions, cells, lambda x: (x.place.partition_label,))
    # The digits stand in for any dataset.
    known = tuple(cell for cell in cells if cell.known or scale.embedded)
    return Goal(
        name,
        scale,
        scale.table(part_of) if table and (part_of := _part(table, cells)) else None,
        figure,
        tuple(cell for cell in known if scale.allows(cell.line)),
        tuple(dict.fromkeys(cell.place.dataset for cell in cells if cell not in known)),
        tuple(dict.fromkeys(cell.line.label for cell in known if not scale.allows(cell.line))),
        part.printed,
        frozenset(cell for cell in drawn if table and cell not in tabled and cell.place not in table.beside),
    )


def by_hand(wanted: Sequence[Wanted]) -> list[str]:
    """The commands that make the same runs; methods without hyperparameters of their own share a command."""
    together: dict[str, dict[str, Any]] = {}
    for options in {command(one.options): one.options for one in wanted}.values():
        alike = command({**options, "methods": ()})
        methods = together.get(alike, {}).get("methods", ())
        together[alike] = {**options, "methods": tuple(dict.fromkeys((*methods, *options["methods"])))}
    return [command(options) for options in together.values()]


def _stand_ins(datasets: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """From "NAME" and "NAME=DATA": the names, and by name in lower case the data that replace a dataset."""
    names, others = [], {}
    for text in datasets:
        name, equals, other = text.partition("=")
        names.append(name)
        if equals and not other:
            raise UserError(f"'{text}' names no data.", f"Write '{name}', or for example '{name}=folder:PATH'.")
        if equals:
            source, _, path = other.partition(":")
            own = source in data.SOURCES and bool(path)
            others[name.casefold()] = f"{source}:{Path(path).expanduser().absolute()}" if own else other
    return names, others


def _in_place(others: dict[str, str], place: Place) -> Place:
    names = (place.dataset, labels.label_title(place.dataset))
    other = next((others[name.casefold()] for name in names if name.casefold() in others), "")
    return replace(place, stand_in=other)


def _part(table: TableNeeds, cells: Sequence[Planned]) -> TableNeeds | None:
    """The table with only the lines and places of these cells; None if there are none."""
    methods, places = {cell.line.method for cell in cells}, {cell.place for cell in cells}
    lines = tuple(line for line in table.lines if line.method in methods)
    part = replace(table, lines=lines, places=tuple(p for p in table.places if p in places or p in table.beside))
    return part if lines and part.own_places else None
