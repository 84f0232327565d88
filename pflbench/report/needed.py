"""The runs that each table and figure needs, in the papers' settings: which method with which hyperparameters, where, and the
value that is printed there.

`pflbench table NAME` shows a table from the runs that there are; its cells here say which it needs.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
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
LEADER = "fedala"
_FLAGS = {"methods": "-m", "datasets": "-d", "partition": "-p", "settings": "--set"}
_GROUPS = ("groups", 5.0)
_DEFAULTS = {"join_ratio": 1.0, "rounds": 2000, "local_epochs": 1, "batch_size": 10, "new_clients": 0, "val_share": 0.0}


@dataclass(frozen=True)
class MethodLine:
    """A row: a method with the hyperparameters that the table varies. title: the label of the row."""

    method: str
    varied: tuple[tuple[str, Any], ...] = ()
    title: str = ""

    @property
    def label(self) -> str:
        return self.title or labels.method_title(self.method)

    def fits(self, place: Place) -> bool:
        """Whether the place's model has enough blocks for the line's range of ALA."""
        p: int = dict(self.varied).get("p", 1)
        return p <= len(MODELS[place.model].blocks)


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
        """The options of `pflbench run` for its run, as fields of `run.options.RunOptions`."""
        place, method = self.place, self.line.method
        # Of the poster's partitions only the balance is known: any client count and dataset allows this scheme.
        kind, parameter = ("pathological", None) if place.partition == paper.UNKNOWN else place.partition
        usual = paper.hyperparameters(method)
        varied = [(name, value) for name, value in self.line.varied if usual.get(name) != value]
        found: dict[str, Any] = {"methods": (method,), "datasets": (place.data,), "model": place.model}
        if kind != "dirichlet":
            found["partition"] = kind
        if parameter is not None and kind in paper.PARAMETERS:
            found[paper.PARAMETERS[kind]] = parameter if kind == "dirichlet" else int(parameter)
        if place.balanced:
            found["balanced"] = True
        found["clients"] = place.clients
        found |= {name: value for name, default in _DEFAULTS.items() if (value := getattr(place, name)) != default}
        if place.stand_in or place.lr is not None:  # the usual learning rate depends on the dataset
            found["lr"] = place.rate
        if place.central:
            found["central_test"] = True
        if varied:
            found["settings"] = tuple(f"{method}.{name}={_plain(value)}" for name, value in varied)
        return found

    @property
    def command(self) -> str:
        return command(self.options)


@dataclass(frozen=True)
class TableNeeds:
    """A table. name: as in `declared.TABLES`.

    same: of a place, what must agree beside dataset, model and partition for a run to be shown there at all.
    ranked: whether the ranking against FedALA counts in the verdict (methods.md 6). extra: columns beside the accuracy.
    beside: those of the places that belong to another table of the paper, and are shown where there are runs of them.
    compared: the method against which the others are tested over the clients, unless another test is asked for.
    prints_values: whether the source does. remark: among the table's notes.
    """

    name: str
    title: str
    source: str
    lines: tuple[MethodLine, ...]
    places: tuple[Place, ...]
    same: tuple[Literal["clients", "join_ratio"], ...] = ()
    ranked: bool = True
    extra: Literal["improvement", "weights"] | None = None
    beside: tuple[Place, ...] = ()
    compared: str | None = None
    prints_values: bool = True
    remark: str = ""

    @property
    def own_places(self) -> tuple[Place, ...]:
        """Without those that belong to another table."""
        return tuple(place for place in self.places if place not in self.beside)

    @cached_property
    def cells(self) -> tuple[Planned, ...]:
        """All possible cells, row by row: a range of ALA beyond the model's blocks is impossible."""
        return tuple(self.planned(line, place) for line in self.lines for place in self.own_places if line.fits(place))

    @property
    def needed(self) -> tuple[Planned, ...]:
        """All runs: of the cells, of the leader, and for extra columns those of methods without ALA."""
        lines = [MethodLine(line.method.removesuffix("+ala")) for line in self.lines if self.extra == "improvement"]
        if self.ranked:
            lines.append(MethodLine(LEADER))
        shown = {cell.line.method for cell in self.cells}
        more = (self.planned(line, place) for line in lines if line.method not in shown for place in self.own_places)
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
        """The cell with the paper's value for the line's hyperparameters there."""
        usual, printed_at = paper.hyperparameters(line.method), replace(place, stand_in="")
        of_table = (one for one in paper.references() if (one.table == paper.LEADERBOARD) == (self.name == paper.LEADERBOARD))
        here = (one for one in of_table if (one.method, one.place) == (line.method, printed_at))
        same = (one for one in here if {**usual, **dict(one.varied)} == {**usual, **dict(line.varied)})
        return Planned(line, place, next(same, None) if self.prints_values else None)


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
    """The `pflbench run` command with these options, named as fields of `run.options.RunOptions` or as long options."""
    words = ["pflbench run"]
    for name, value in options.items():
        flag = _FLAGS.get(name, "--" + name.replace("_", "-"))
        for one in value if isinstance(value, tuple) else (value,):
            words.append(flag if one is True else f"{flag} {shlex.quote(_plain(one))}")
    return " ".join(words)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _lines(*names: str) -> tuple[MethodLine, ...]:
    return tuple(MethodLine(name) for name in names)


def _fedala(*pairs: tuple[int, int]) -> tuple[MethodLine, ...]:
    """FedALA with (s, p)."""
    return tuple(MethodLine("fedala", (("s", float(s)), ("p", p)), f"s = {s}, p = {p}") for s, p in pairs)


def _dirichlet(dataset: str, beta: float = 0.1, model: str = "cnn", **more: Any) -> Place:
    return Place(dataset, model, ("dirichlet", beta), **more)


def _pathological(dataset: str, classes: int = 2, **more: Any) -> Place:
    return Place(dataset, "cnn", ("pathological", float(classes)), **more)


def _cells(lines: Iterable[MethodLine], *places: Place) -> tuple[Planned, ...]:
    """Of a figure, which has no printed values."""
    return tuple(Planned(line, place, None) for line in lines for place in places)


_EVERY_METHOD = _lines(*METHODS)
_AGNEWS, _TINY_RESNET = _dirichlet("agnews", model="fasttext"), _dirichlet("tiny", model="resnet18")
_PATHOLOGICAL = (_pathological("mnist"), _pathological("cifar10"), _pathological("cifar100", 10))
_IMAGES = tuple(_dirichlet(dataset) for dataset in ("mnist", "cifar10", "cifar100", "tiny"))
_CIFAR100, _TINY = _IMAGES[2:]
_TINY_BETAS = tuple(_dirichlet("tiny", beta) for beta in (0.01, 0.1, 0.5))
_BETAS = (*_TINY_BETAS, _AGNEWS, _dirichlet("agnews", 1.0, "fasttext"))
_MORE_CLIENTS = tuple(_dirichlet("cifar100", clients=clients) for clients in (50, 100))
# Where Elastic Aggregation's poster has values; and, as it does not print the settings of its figure, its MNIST setting with one
# value varied at a time.
_POSTER = tuple(dict.fromkeys(value.place for value in paper.references() if value.place.central))
_POSTER_MNIST = next(replace(place, partition=("pathological", 2.0)) for place in _POSTER if place.dataset == "mnist")
_AROUND_POSTER = (
    _POSTER_MNIST,
    *(replace(_POSTER_MNIST, partition=("pathological", classes)) for classes in (5.0, 10.0)),
    *(replace(_POSTER_MNIST, join_ratio=ratio) for ratio in (0.01, 1.0)),
    *(replace(_POSTER_MNIST, local_epochs=epochs) for epochs in (5, 10)),
)
# FedAMP's three partitions. The review describes the third one only as groups.
_FEDAMP = tuple(
    place
    for data in ("mnist", "fashionmnist", "emnist:byclass", "cifar100")
    for place in (Place(data, "cnn", paper.EQUAL), _pathological(data), Place(data, "cnn", _GROUPS))
)

_LEADERBOARD = tuple(value for value in paper.references() if value.table == paper.LEADERBOARD)

_ACCURACY = TableNeeds(
    "accuracy",
    "Accuracy",
    "FedALA paper, Table 2 and Table 7 (MNIST)",
    _EVERY_METHOD,
    (*_PATHOLOGICAL, *_IMAGES, _TINY_RESNET, _AGNEWS),
)
_OVERHEAD = TableNeeds("overhead", "Overhead", "FedALA paper, Table 3", _EVERY_METHOD, (_TINY_RESNET,))

# Of the methods that say what a new client gets (methods.md 2.13), one of each kind.
_NEW_CLIENTS = TableNeeds(
    "new-clients",
    "New clients",
    "the setting of FedALA's Table 2 on Cifar10, with 5 of its 20 clients set aside",
    _lines("local", "fedavg", "per-fedavg", "fedrep", "pfedme", "ditto", "fedala", "lg-fedavg", "fedbabu", "fedrod"),
    (_dirichlet("cifar10", new_clients=5),),
    ranked=False,
    prints_values=False,
)

# Small enough for a CPU (docs/evidence.md).
_EVIDENCE = TableNeeds(
    "evidence",
    "Evidence",
    "claims of the FedALA paper, Elastic Aggregation's poster and PFLlib's leaderboard, in settings for a CPU",
    _lines(*methods.METHODS, *(name for name in WITH_ALA if name != "fedavg+ala")),  # which is FedALA
    (
        _dirichlet("agnews:test", model="fasttext", rounds=60, val_share=0.1),
        _dirichlet("cifar10", rounds=60, val_share=0.1),
    ),
    ranked=False,
    prints_values=False,
)

_TABLES = (
    _ACCURACY,
    _OVERHEAD,
    TableNeeds("clients", "Clients that are hurt", _ACCURACY.source, _lines("local", *METHODS), _IMAGES, ranked=False),
    TableNeeds("heterogeneity", "Heterogeneity", "FedALA paper, Table 4", _EVERY_METHOD, _BETAS, beside=(_TINY, _AGNEWS)),
    TableNeeds(
        "scalability", "Scalability", "FedALA paper, Table 4", _EVERY_METHOD, _MORE_CLIENTS, same=("clients", "join_ratio")
    ),
    TableNeeds(
        "applicability",
        "Applicability of ALA",
        "FedALA paper, Table 4",
        _lines(*WITH_ALA),
        (_TINY, _CIFAR100),
        extra="improvement",
    ),
    TableNeeds(
        "hyperparameters",
        "Hyperparameters of FedALA",
        "FedALA paper, Table 1",
        _fedala(*((s, 1) for s in (5, 10, 20, 40, 60, 80, 100)), *((80, p) for p in (6, 5, 4, 3, 2))),
        (_TINY_RESNET,),
        ranked=False,
        extra="weights",
    ),
    TableNeeds(
        "range",
        "Range of ALA",
        "FedALA paper, Tables 5 and 6",
        _fedala(*((80, p) for p in (4, 3, 2, 1))),
        (_TINY, _AGNEWS),
        ranked=False,
        extra="weights",
    ),
    TableNeeds(
        "participation",
        "Partial participation",
        "FedALA paper, Table 7",
        _lines(*CROSS_DEVICE),
        (_dirichlet("cifar100", clients=100, join_ratio=0.5),),
        same=("join_ratio",),
    ),
    TableNeeds(
        "elastic",
        "Elastic Aggregation on a central test set",
        "Elastic Aggregation's poster",
        _lines("fedavg", "elastic"),
        _POSTER,
        ranked=False,
    ),
    TableNeeds(
        paper.LEADERBOARD,
        "Leaderboard",
        "PFLlib's leaderboard (docs/benchmark.html at d832e76, November 2025)",
        _lines(*(name for name in methods.METHODS if name in {value.method for value in _LEADERBOARD})),
        tuple(dict.fromkeys(value.place for value in _LEADERBOARD)),
        ranked=False,
        remark="The leaderboard also has FedDistill and FedGen. It prints no learning rates or hyperparameters; where it has two "
        "values for one cell, the first stands here (methods.md 6).",
    ),
    TableNeeds(
        "partitions",
        "Comparison over partitions",
        "FedAMP, by a review of it",
        # The review names FedAvg and FedProx; Local and Per-FedAvg show what no and what other personalization gives.
        _lines("local", "fedavg", "fedprox", "per-fedavg", "fedamp", "heurfedamp"),
        _FEDAMP,
        ranked=False,
        compared="fedamp",
        prints_values=False,
    ),
    _NEW_CLIENTS,
    _EVIDENCE,
    TableNeeds(
        "ablation",
        "ALA without adaptation",
        "FedALA paper, text and Table 2",
        (
            MethodLine("fedala", (("adapt", True),), "FedALA"),
            MethodLine("fedala", (("adapt", False),), "FedALA without adaptation"),
        ),
        (_TINY,),
    ),
)
# The papers have no table of ranks, for which Table 2 has the runs, and none of the time to an accuracy, for which Table 3 has.
_OTHERS = {"ranks": _ACCURACY, "table2": replace(_ACCURACY, name="table2"), "time-to-accuracy": _OVERHEAD}
TABLES = {table.name: table for table in _TABLES} | _OTHERS

_OF_TABLE_2 = FigureNeeds("the settings of FedALA's Table 2 and Table 7 (MNIST)", _ACCURACY.needed)
_DISTRIBUTION = {"Figure 6": _TINY_BETAS, "Figure 7": _PATHOLOGICAL, "Figure 8": _IMAGES[:3], "Figure 9": _MORE_CLIENTS}
_ALA = _cells(_lines("fedala"), _pathological("mnist"))

PLOTS = {
    "curves": _OF_TABLE_2,
    # Data alone are drawn: no model is trained, and so none of a place's other fields counts.
    "distribution": FigureNeeds(
        "FedALA paper, Figures 6 to 9",
        _cells(_lines("local"), *(place for places in _DISTRIBUTION.values() for place in places)),
        one_seed=True,
        trained=False,
        printed=_DISTRIBUTION,
    ),
    "overhead": FigureNeeds("the setting of FedALA's Table 3", _OVERHEAD.needed),
    "scalability": FigureNeeds(
        "the setting of FedALA's Table 4, with more numbers of clients",
        _cells(_EVERY_METHOD, *(_dirichlet("cifar100", clients=clients) for clients in (10, 20, 50, 100))),
    ),
    "heterogeneity": FigureNeeds("the settings of FedALA's Tables 2 and 4", _cells(_EVERY_METHOD, *_BETAS)),
    "elastic": FigureNeeds("Elastic Aggregation's poster, figure", _cells(_lines("fedavg", "elastic"), *_AROUND_POSTER)),
    "new-clients": FigureNeeds(_NEW_CLIENTS.source, _NEW_CLIENTS.needed),
    "fairness": FigureNeeds("four settings of FedALA's Table 2 and Table 7", _cells(_EVERY_METHOD, *_IMAGES)),
    "clients": FigureNeeds(_ACCURACY.source, TABLES["clients"].cells),
    "ranks": _OF_TABLE_2,
    "attention": FigureNeeds(
        "FedAMP's setting: groups of clients with classes of their own",
        _cells(_lines("fedamp"), Place("mnist", "cnn", _GROUPS)),
        one_seed=True,
        array="attention",
        save_artifacts_every=100,
    ),
    # Figure 5 has a dot per 60 rounds.
    "ala-weights": FigureNeeds(
        "the setting of FedALA's Figure 5", _ALA, one_seed=True, fewest=4, array="ala_weights", save_artifacts_every=60
    ),
    "loss": FigureNeeds("FedALA paper, Figure 5", _ALA, one_seed=True, fewest=4, array="ala_objective", save_artifacts_every=60),
    # The initial stage is seen only where every round is observed. A whole run of that would fill the database.
    "ala-convergence": FigureNeeds(
        "FedALA paper, Figure 3",
        _cells(
            [MethodLine("fedala", (("min_epochs", 6),))], _pathological("mnist", rounds=20), _pathological("cifar10", rounds=20)
        ),
        one_seed=True,
        fewest=4,
        array="ala_epoch_losses",
        save_artifacts_every=1,
        client=8,
    ),
    "trajectory": FigureNeeds(
        "FedALA paper, Figure 4",
        # ALA is off for 155 rounds.
        _cells([MethodLine("fedavg"), MethodLine("fedala", (("start_round", 156),))], _pathological("mnist", rounds=200)),
        one_seed=True,
        fewest=10,
        client=4,
        window=(140, 200),
    ),
}
