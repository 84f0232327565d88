"""What a table or figure needs: which method with which hyperparameters, where, and the value that is printed there.

These are the words of `declared`. `pflbench table NAME` shows a table from the runs that there are; the cells say which it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from pflbench import methods
from pflbench.errors import UserError
from pflbench.models import MODELS
from pflbench.report import labels, paper
from pflbench.report import statistics as stats
from pflbench.report.paper import Place, PrintedValue

# The 14 methods of the paper, in the order of its tables.
METHODS = tuple(name for name in methods.METHODS if name in {r.method for r in paper.references() if r.table == "Table 2"})
WITH_ALA = tuple(f"{name}+ala" for name in METHODS if (f"{name}+ala", "tiny") in paper.improvements())

# FedAMP and APPLE need all clients in every round (methods.md 6): the paper has no value for them at a join ratio below 1.
CROSS_DEVICE = tuple(name for name in METHODS if name not in ("fedamp", "apple"))
_SCHEMES = {"dirichlet": "beta", "pathological": "classes_per_client", "groups": "groups"}
_FLAGS = {"methods": "-m", "datasets": "-d", "partition": "-p", "settings": "--set"}
_DEFAULTS = {"join_ratio": 1.0, "rounds": 2000, "local_epochs": 1, "batch_size": 10, "lr": None}


@dataclass(frozen=True)
class MethodLine:
    """A row: a method with the hyperparameters that the table varies. title: the label of the row."""

    method: str
    varied: tuple[tuple[str, Any], ...] = ()
    title: str = ""

    @property
    def label(self) -> str:
        return self.title or labels.method_title(self.method)


@dataclass(frozen=True)
class Planned:
    """A cell: its run, and the paper's value, if any."""

    line: MethodLine
    place: Place
    reference: PrintedValue | None

    @property
    def known(self) -> bool:
        """Whether pflbench has the dataset."""
        return bool(self.place.stand_in) or self.place.dataset.partition(":")[0] in labels.DATASETS

    @property
    def options(self) -> dict[str, Any]:
        """The options of `pflbench run` for its run, as fields of `plan.RunOptions`."""
        place, method = self.place, self.line.method
        given = {name: getattr(place, name) for name, usual in _DEFAULTS.items() if getattr(place, name) != usual}
        found: dict[str, Any] = {"methods": (method,), "datasets": (place.data,), "model": place.model}
        # Of the poster's partitions only the balance is known: any client count and dataset allows this scheme.
        kind, parameter = ("pathological", None) if place.partition == paper.UNKNOWN else place.partition
        found |= {"partition": kind} if kind != "dirichlet" else {}
        if parameter is not None and kind in _SCHEMES:
            found[_SCHEMES[kind]] = parameter if kind == "dirichlet" else int(parameter)
        found |= {"balanced": True} if place.balanced else {}
        # The usual learning rate hangs on the dataset.
        given |= {"lr": place.rate} if place.stand_in else {}
        found |= {"clients": place.clients, **given}
        found |= {"central_test": True} if place.central else {}
        settings = tuple(f"{method}.{name}={_plain(value)}" for name, value in self._apart)
        return found | ({"settings": settings} if settings else {})

    @property
    def command(self) -> str:
        """Its command."""
        return command(self.options)

    @property
    def _apart(self) -> Iterator[tuple[str, Any]]:
        """The varied hyperparameters without those at their defaults, the paper's usual values."""
        usual = paper.hyperparameters(self.line.method)
        return ((name, value) for name, value in self.line.varied if usual.get(name) != value)


@dataclass(frozen=True)
class TableNeeds:
    """A table. name: as in `declared.TABLES`.

    same: of a place, what must agree beside dataset, model and partition for a run to be shown there at all.
    compared: the method against which the others are tested over the clients, unless another test is asked for. printed: whether
    the source prints values. beside: places that belong to another table of the paper, and stand between the others where there
    are runs of them.
    leader: the method whose ranking counts in the verdict (methods.md 6), if any. extra: columns beside the accuracy.
    """

    name: str
    title: str
    source: str
    lines: tuple[MethodLine, ...]
    places: tuple[Place, ...]
    same: tuple[Literal["clients", "join_ratio"], ...] = ()
    leader: str | None = "fedala"
    extra: Literal["improvement", "weights"] | None = None
    beside: tuple[Place, ...] = ()
    compared: str | None = None
    printed: bool = True

    def with_beside(self) -> TableNeeds:
        """The table with only these of its places, by dataset, partition and clients."""
        if not self.beside:
            return self
        order = list(dict.fromkeys(place.dataset for place in (*self.places, *self.beside)))
        places = sorted((*self.places, *self.beside), key=lambda p: (order.index(p.dataset), p.partition, p.clients))
        return replace(self, places=tuple(places))

    @cached_property
    def cells(self) -> tuple[Planned, ...]:
        """All possible cells, row by row: a range of ALA beyond the model's blocks is impossible."""
        return tuple(self.planned(line, place) for line in self.lines for place in self.places if can_be(line, place))

    @property
    def needed(self) -> tuple[Planned, ...]:
        """All runs: of the cells, of the leader, and for extra columns those of methods without ALA."""
        lines = [MethodLine(line.method.removesuffix("+ala")) for line in self.lines if self.extra == "improvement"]
        if self.leader is not None:
            lines.append(MethodLine(self.leader))
        shown = {cell.line.method for cell in self.cells}
        more = (self.planned(line, place) for line in lines if line.method not in shown for place in self.places)
        return (*more, *self.cells)

    def wanted(self, std: stats.Std, ci: float | None, test: stats.Test | None, against: str | None) -> stats.Statistics:
        """The statistics to compute: as asked for, else the table's own. Raises UserError without results by client."""
        asked = stats.Statistics(std, ci, test or (stats.OVER_CLIENTS if self.compared else None), against)
        if asked.test != stats.OVER_CLIENTS:
            return asked
        if self.places[0].central:
            raise UserError("On a central test set there are no clients to pair.", "Take --test wilcoxon, paired by seed.")
        own = next((line.label for line in self.lines if line.method == self.compared), None)
        return replace(asked, against=asked.against or own)

    def of(self, number: str) -> TableNeeds:
        """The part of it that stands in this table of the FedALA paper: "Table 7"."""
        there = {reference.place for reference in paper.references() if reference.table == number}
        return replace(self, places=tuple(place for place in self.places if place in there))

    def planned(self, line: MethodLine, place: Place) -> Planned:
        return Planned(line, place, _printed(line, place) if self.printed else None)


@dataclass(frozen=True)
class FigureNeeds:
    """A figure and its runs.

    one_seed: it draws the first seed alone. trained: whether it needs runs at all, or data and partition alone. fewest: rounds,
    below which there is nothing to see. array: what a method observes, in every
    `save_artifacts_every`th round. client, window: whose models are kept, and in which rounds. printed: the places of each of
    the FedALA paper's figures that it is.
    """

    source: str
    cells: tuple[Planned, ...]
    one_seed: bool = False
    trained: bool = True
    fewest: int = 1
    array: str | None = None
    save_artifacts_every: int = 0
    client: int | None = None
    window: tuple[int, int] | None = None
    printed: Mapping[str, tuple[Place, ...]] = field(default_factory=dict)


def command(options: Mapping[str, Any]) -> str:
    """The `pflbench run` command with these options, named as fields of `plan.RunOptions` or as long options."""
    words = ["pflbench run"]
    for name, value in options.items():
        flag = _FLAGS.get(name, "--" + name.replace("_", "-"))
        for one in value if isinstance(value, tuple) else (value,):
            words.append(flag if one is True else f"{flag} {_plain(one)}")
    return " ".join(words)


def can_be(line: MethodLine, place: Place) -> bool:
    """Whether the place's model has enough blocks for the line's range of ALA."""
    p = dict(line.varied).get("p")
    return p is None or p <= len(MODELS[place.model].blocks)


def _printed(line: MethodLine, place: Place) -> PrintedValue | None:
    usual, printed = paper.hyperparameters(line.method), replace(place, stand_in="")
    here = (one for one in paper.references() if (one.method, one.place) == (line.method, printed))
    return next((one for one in here if {**usual, **dict(one.varied)} == {**usual, **dict(line.varied)}), None)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def lines(*methods: str) -> tuple[MethodLine, ...]:
    return tuple(MethodLine(method) for method in methods)


def fedala(*pairs: tuple[int, int]) -> tuple[MethodLine, ...]:
    """FedALA with (s, p)."""
    return tuple(MethodLine("fedala", (("s", float(s)), ("p", p)), f"s = {s}, p = {p}") for s, p in pairs)


def dirichlet(dataset: str, beta: float = 0.1, model: str = "cnn", **more: Any) -> Place:
    return Place(dataset, model, ("dirichlet", beta), **more)


def pathological(dataset: str, classes: int = 2, **more: Any) -> Place:
    return Place(dataset, "cnn", ("pathological", float(classes)), **more)


def groups(dataset: str) -> Place:
    """FedAMP's third partition, which the review describes only as groups."""
    return Place(dataset, "cnn", ("groups", 5.0))


def fedamp(*datasets: str) -> tuple[Place, ...]:
    """FedAMP's three partitions."""
    return tuple(place for data in datasets for place in (Place(data, "cnn", paper.EQUAL), pathological(data), groups(data)))


def poster() -> tuple[Place, ...]:
    """Where Elastic Aggregation's poster has values."""
    return tuple(dict.fromkeys(r.place for r in paper.references() if r.place.central))


def around_the_poster() -> tuple[Place, ...]:
    """The poster's MNIST setting with one value varied at a time; the poster does not print the settings of its figure."""
    (mnist,) = (place for place in poster() if place.dataset == "mnist")
    centre = replace(mnist, partition=("pathological", 2.0))
    varied = [replace(centre, partition=("pathological", classes)) for classes in (5.0, 10.0)]
    varied += [replace(centre, join_ratio=ratio) for ratio in (0.01, 1.0)]
    varied += [replace(centre, local_epochs=epochs) for epochs in (5, 10)]
    return (centre, *varied)


def cells(lines: Iterable[MethodLine], *places: Place) -> tuple[Planned, ...]:
    """Of a figure, which has no printed values."""
    return tuple(Planned(line, place, None) for line in lines for place in places)
