"""The figures, declared: which runs each of them draws, and what these runs have to keep while they train.

`pflbench plot NAME` draws from the runs that there are; `pflbench reproduce NAME` makes those that are declared here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pflbench.report.figures import ala_convergence
from pflbench.report.figures.trajectory import numbers as trajectory
from pflbench.report.paper import Place
from pflbench.report.tables import METHODS, TABLES, Line, Planned


@dataclass(frozen=True)
class DeclaredFigure:
    """A figure and its runs.

    one_seed: it draws the first seed alone. trained: whether it needs runs at all, or data and partition alone. fewest: rounds,
    below which there is nothing to see. array: what a method observes, in every `observe_every`th round. client, window: whose
    models are kept, and in which rounds.
    """

    source: str
    cells: tuple[Planned, ...]
    one_seed: bool = False
    trained: bool = True
    fewest: int = 1
    array: str | None = None
    observe_every: int = 0
    client: int | None = None
    window: tuple[int, int] | None = None


def _cells(methods: tuple[str, ...] | tuple[Line, ...], *places: Place) -> tuple[Planned, ...]:
    lines = [Line(method) if isinstance(method, str) else method for method in methods]
    return tuple(Planned(line, place, None) for line in lines for place in places)


def _place(dataset: str, beta: float = 0.1, model: str = "cnn", **more: Any) -> Place:
    return Place(dataset, model, ("dirichlet", beta), **more)


def _pathological(dataset: str, classes: int = 2, **more: Any) -> Place:
    return Place(dataset, "cnn", ("pathological", float(classes)), **more)


def _around_the_poster() -> tuple[Place, ...]:
    """The poster's MNIST, as `table elastic` has it, one thing varied at a time: the settings of its figure are not printed."""
    (mnist,) = (place for place in TABLES["elastic"].places if place.dataset == "mnist")
    centre = replace(mnist, partition=("pathological", 2.0))
    varied = [replace(centre, partition=("pathological", classes)) for classes in (5.0, 10.0)]
    varied += [replace(centre, join_ratio=ratio) for ratio in (0.01, 1.0)]
    varied += [replace(centre, local_epochs=epochs) for epochs in (5, 10)]
    return (centre, *varied)


# By the figure of the FedALA paper. Data alone are drawn: no model is trained, and so none of its fields counts.
DISTRIBUTIONS = {
    "Figure 6": tuple(_place("tiny", beta) for beta in (0.01, 0.1, 0.5)),
    "Figure 7": tuple(_pathological(dataset, classes) for dataset, classes in (("mnist", 2), ("cifar10", 2), ("cifar100", 10))),
    "Figure 8": tuple(_place(dataset) for dataset in ("mnist", "cifar10", "cifar100")),
    "Figure 9": tuple(_place("cifar100", clients=clients) for clients in (50, 100)),
}
_OBSERVED_ALA: dict[str, Any] = {"one_seed": True, "fewest": 4, "observe_every": 60}  # Figure 5 has a dot per 60 rounds

FIGURES = {
    "curves": DeclaredFigure("the settings of FedALA's Table 2 and Table 7 (MNIST)", TABLES["accuracy"].needed),
    "ranks": DeclaredFigure("the settings of FedALA's Table 2 and Table 7 (MNIST)", TABLES["accuracy"].needed),
    "distribution": DeclaredFigure(
        "FedALA paper, Figures 6 to 9",
        _cells(("local",), *(place for places in DISTRIBUTIONS.values() for place in places)),
        one_seed=True,
        trained=False,
    ),
    "overhead": DeclaredFigure("the setting of FedALA's Table 3", TABLES["overhead"].needed),
    "scalability": DeclaredFigure(
        "the setting of FedALA's Table 4, with more numbers of clients",
        _cells(METHODS, *(_place("cifar100", clients=clients) for clients in (10, 20, 50, 100))),
    ),
    "heterogeneity": DeclaredFigure(
        "the settings of FedALA's Tables 2 and 4",
        _cells(
            METHODS,
            *(_place("tiny", beta) for beta in (0.01, 0.1, 0.5)),
            *(_place("agnews", beta, "fasttext") for beta in (0.1, 1.0)),
        ),
    ),
    "elastic": DeclaredFigure("Elastic Aggregation's poster, figure", _cells(("fedavg", "elastic"), *_around_the_poster())),
    "fairness": DeclaredFigure(
        "four settings of FedALA's Table 2 and Table 7",
        _cells(METHODS, *(_place(dataset) for dataset in ("mnist", "cifar10", "cifar100", "tiny"))),
    ),
    "attention": DeclaredFigure(
        "FedAMP's setting: groups of clients with classes of their own",
        _cells(("fedamp",), Place("mnist", "cnn", ("groups", 5.0))),
        one_seed=True,
        array="attention",
        observe_every=100,
    ),
    "ala-weights": DeclaredFigure(
        "the setting of FedALA's Figure 5", _cells(("fedala",), _pathological("mnist")), array="ala_weights", **_OBSERVED_ALA
    ),
    # The initial stage is seen only where every round is observed. A whole run of that would fill the database.
    "ala-convergence": DeclaredFigure(
        "FedALA paper, Figure 3",
        _cells((Line("fedala", (("min_epochs", 6),)),), _pathological("mnist", rounds=20), _pathological("cifar10", rounds=20)),
        one_seed=True,
        fewest=4,
        array="ala_epoch_losses",
        observe_every=1,
        client=ala_convergence.CLIENT,
    ),
    # ALA is off for 155 rounds.
    "trajectory": DeclaredFigure(
        "FedALA paper, Figure 4",
        _cells((Line("fedavg"), Line("fedala", (("start_round", 156),))), _pathological("mnist", rounds=200)),
        one_seed=True,
        fewest=10,
        client=trajectory.CLIENT,
        window=(140, 200),
    ),
    "loss": DeclaredFigure(
        "FedALA paper, Figure 5", _cells(("fedala",), _pathological("mnist")), array="ala_objective", **_OBSERVED_ALA
    ),
}
