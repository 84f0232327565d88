"""The papers' tables, declared: which method with which hyperparameters, where, and the value that is printed there.

`pflbench table NAME` shows such a table from the runs that there are; the cells say which runs it needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from pflbench import methods
from pflbench.errors import UserError
from pflbench.report import blocks, labels, paper
from pflbench.report import statistics as stats
from pflbench.report.paper import Place, Reference

# The 14 methods of the paper, in the order of its tables.
METHODS = tuple(name for name in methods.METHODS if name in {r.method for r in paper.references() if r.table == "Table 2"})
WITH_ALA = tuple(f"{name}+ala" for name in METHODS if (f"{name}+ala", "tiny") in paper.improvements())

# They need all clients in every round (methods.md 6): the paper has no value for them at a join ratio below 1.
_CROSS_SILO = ("fedamp", "apple")
_SCHEMES = {"dirichlet": "beta", "pathological": "classes_per_client", "groups": "groups"}
_FLAGS = {"methods": "-m", "datasets": "-d", "partition": "-p", "settings": "--set"}
_DEFAULTS = {"join_ratio": 1.0, "rounds": 2000, "local_epochs": 1, "batch_size": 10, "lr": None}


@dataclass(frozen=True)
class Line:
    """A row: a method, and those of its hyperparameters that the table is about. title: what stands before the row."""

    method: str
    varied: tuple[tuple[str, Any], ...] = ()
    title: str = ""

    @property
    def label(self) -> str:
        return self.title or labels.method_title(self.method)


@dataclass(frozen=True)
class Planned:
    """A cell: what has to be run for it, and what the paper has there, if anything."""

    line: Line
    place: Place
    reference: Reference | None

    @property
    def known(self) -> bool:
        """Whether pflbench has the dataset."""
        return bool(self.place.stand_in) or self.place.dataset.partition(":")[0] in labels.DATASETS

    @property
    def options(self) -> dict[str, Any]:
        """What it takes to run it: options of `pflbench run`, by the names of `plan.Wish`."""
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
        """The same as a command."""
        return command(self.options)

    @property
    def _apart(self) -> Iterator[tuple[str, Any]]:
        """The varied hyperparameters that are not at the paper's usual values, which are pflbench's defaults."""
        usual = paper.hyperparameters(self.line.method)
        return ((name, value) for name, value in self.line.varied if usual.get(name) != value)


@dataclass(frozen=True)
class Declared:
    """A table. same: of a place, what must agree beside dataset, model and partition for a run to be shown there at all.

    compared: the method against which the others are tested over the clients, unless another test is asked for. printed: whether
    the source prints values. beside: places that belong to another table of the paper, and stand between the others where there
    are runs of them.
    leader: the method whose ranking counts in the verdict (methods.md 6), if any. extra: columns beside the accuracy.
    """

    title: str
    source: str
    lines: tuple[Line, ...]
    places: tuple[Place, ...]
    same: tuple[Literal["clients", "join_ratio"], ...] = ()
    leader: str | None = "fedala"
    extra: Literal["improvement", "weights"] | None = None
    beside: tuple[Place, ...] = ()
    compared: str | None = None
    printed: bool = True

    def with_beside(self) -> Declared:
        """The same with those places among its own, by dataset, partition and clients."""
        if not self.beside:
            return self
        order = list(dict.fromkeys(place.dataset for place in (*self.places, *self.beside)))
        places = sorted((*self.places, *self.beside), key=lambda p: (order.index(p.dataset), p.partition, p.clients))
        return replace(self, places=tuple(places))

    @cached_property
    def cells(self) -> tuple[Planned, ...]:
        """All cells, row by row, but for those that cannot be: a range of ALA beyond the model's blocks."""
        return tuple(self.planned(line, place) for line in self.lines for place in self.places if _possible(line, place))

    @property
    def needed(self) -> tuple[Planned, ...]:
        """All that has to be run: the cells, the leader, and for the extra columns the methods without ALA."""
        lines = [Line(line.method.removesuffix("+ala")) for line in self.lines if self.extra == "improvement"]
        if self.leader is not None:
            lines.append(Line(self.leader))
        shown = {cell.line.method for cell in self.cells}
        more = (self.planned(line, place) for line in lines if line.method not in shown for place in self.places)
        return (*more, *self.cells)

    def wanted(self, std: stats.Std, ci: float | None, test: stats.Test | None, against: str | None) -> stats.Wanted:
        """What to compute, as asked for, or else what the table is about. Raises UserError for clients that nobody tested."""
        asked = stats.Wanted(std, ci, test or (stats.OVER_CLIENTS if self.compared else None), against)
        if asked.test != stats.OVER_CLIENTS:
            return asked
        if self.places[0].central:
            raise UserError("On a central test set there are no clients to pair.", "Take --test wilcoxon, paired by seed.")
        own = next((line.label for line in self.lines if line.method == self.compared), None)
        return replace(asked, against=asked.against or own)

    def planned(self, line: Line, place: Place) -> Planned:
        return Planned(line, place, _printed(line, place) if self.printed else None)


def command(options: Mapping[str, Any]) -> str:
    """`pflbench run` with these options, which bear the names of `plan.Wish` or else of its long options."""
    words = ["pflbench run"]
    for name, value in options.items():
        flag = _FLAGS.get(name, "--" + name.replace("_", "-"))
        for one in value if isinstance(value, tuple) else (value,):
            words.append(flag if one is True else f"{flag} {_plain(one)}")
    return " ".join(words)


def _possible(line: Line, place: Place) -> bool:
    p = dict(line.varied).get("p")
    return p is None or p <= len(blocks.NAMES[place.model])


def _printed(line: Line, place: Place) -> Reference | None:
    usual = paper.hyperparameters(line.method)
    for reference in paper.references():
        same = {**usual, **dict(reference.varied)} == {**usual, **dict(line.varied)}
        if (reference.method, reference.place) == (line.method, replace(place, stand_in="")) and same:
            return reference
    return None


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _lines(*methods: str) -> tuple[Line, ...]:
    return tuple(Line(method) for method in methods)


def _ala(*pairs: tuple[int, int]) -> tuple[Line, ...]:
    """FedALA with (s, p)."""
    return tuple(Line("fedala", (("s", float(s)), ("p", p)), f"s = {s}, p = {p}") for s, p in pairs)


def _dirichlet(dataset: str, model: str, beta: float = 0.1, **more: Any) -> Place:
    return Place(dataset, model, ("dirichlet", beta), **more)


def _pathological(dataset: str, classes: int) -> Place:
    return Place(dataset, "cnn", ("pathological", float(classes)))


_TINY = _dirichlet("tiny", "cnn")
_TINY_RESNET = _dirichlet("tiny", "resnet18")
_CIFAR100 = _dirichlet("cifar100", "cnn")
_AGNEWS = _dirichlet("agnews", "fasttext")
# FedAMP's three partitions: of its third, groups, the review says no more than what they are.
_FEDAMP = (paper.EQUAL, ("pathological", 2.0), ("groups", 5.0))
_POSTER = tuple(dict.fromkeys(r.place for r in paper.references() if r.place.central))

TABLES = {
    "accuracy": Declared(
        "Accuracy",
        "FedALA paper, Table 2 and Table 7 (MNIST)",
        _lines(*METHODS),
        (
            _pathological("mnist", 2),
            _pathological("cifar10", 2),
            _pathological("cifar100", 10),
            _dirichlet("mnist", "cnn"),
            _dirichlet("cifar10", "cnn"),
            _CIFAR100,
            _TINY,
            _TINY_RESNET,
            _AGNEWS,
        ),
    ),
    "heterogeneity": Declared(
        "Heterogeneity",
        "FedALA paper, Table 4",
        _lines(*METHODS),
        (_dirichlet("tiny", "cnn", 0.01), _dirichlet("tiny", "cnn", 0.5), _dirichlet("agnews", "fasttext", 1.0)),
        beside=(_TINY, _AGNEWS),
    ),
    "scalability": Declared(
        "Scalability",
        "FedALA paper, Table 4",
        _lines(*METHODS),
        (_dirichlet("cifar100", "cnn", clients=50), _dirichlet("cifar100", "cnn", clients=100)),
        same=("clients", "join_ratio"),
    ),
    "applicability": Declared(
        "Applicability of ALA",
        "FedALA paper, Table 4",
        _lines(*WITH_ALA),
        (_TINY, _CIFAR100),
        extra="improvement",
    ),
    "overhead": Declared("Overhead", "FedALA paper, Table 3", _lines(*METHODS), (_TINY_RESNET,)),
    "hyperparameters": Declared(
        "Hyperparameters of FedALA",
        "FedALA paper, Table 1",
        _ala((5, 1), (10, 1), (20, 1), (40, 1), (60, 1), (80, 1), (100, 1), (80, 6), (80, 5), (80, 4), (80, 3), (80, 2)),
        (_TINY_RESNET,),
        leader=None,
        extra="weights",
    ),
    "range": Declared(
        "Range of ALA",
        "FedALA paper, Tables 5 and 6",
        _ala((80, 4), (80, 3), (80, 2), (80, 1)),
        (_TINY, _AGNEWS),
        leader=None,
        extra="weights",
    ),
    "participation": Declared(
        "Partial participation",
        "FedALA paper, Table 7",
        _lines(*(name for name in METHODS if name not in _CROSS_SILO)),
        (_dirichlet("cifar100", "cnn", clients=100, join_ratio=0.5),),
        same=("join_ratio",),
    ),
    "elastic": Declared(
        "Elastic Aggregation on a central test set",
        "Elastic Aggregation's poster",
        _lines("fedavg", "elastic"),
        _POSTER,
        leader=None,
    ),
    "partitions": Declared(
        "Comparison over partitions",
        "FedAMP, by a review of it",
        # The review names FedAvg and FedProx; Local and Per-FedAvg show what no and what other personalization gives.
        _lines("local", "fedavg", "fedprox", "per-fedavg", "fedamp", "heurfedamp"),
        tuple(Place(data, "cnn", kind) for data in ("mnist", "fashionmnist", "emnist:byclass", "cifar100") for kind in _FEDAMP),
        leader=None,
        compared="fedamp",
        printed=False,
    ),
    "ablation": Declared(
        "ALA without adaptation",
        "FedALA paper, text and Table 2",
        (
            Line("fedala", (("adapt", True),), "FedALA"),
            Line("fedala", (("adapt", False),), "FedALA without adaptation"),
        ),
        (_TINY,),
    ),
}


def printed(name: str, number: str) -> Declared:
    """The part of a table of ours that stands in this one of the FedALA paper: "Table 7"."""
    there = {reference.place for reference in paper.references() if reference.table == number}
    return replace(TABLES[name], places=tuple(place for place in TABLES[name].places if place in there))
