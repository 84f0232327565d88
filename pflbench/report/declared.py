"""The tables and figures, each declared once: what makes it, which runs it needs, and what these have to keep.

`pflbench table NAME` and `pflbench plot NAME` show the runs that there are; `pflbench reproduce NAME` makes those that are
declared here. Names here, code when it is needed: `pflbench --help` imports none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from pflbench.report import needs as n
    from pflbench.report.figures import ala_convergence
    from pflbench.report.figures.trajectory import numbers as trajectory
    from pflbench.report.selection import Filters
else:

    class _Later:
        """A module that is imported at its first use."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module(self._name), name)

    n = _Later("pflbench.report.needs")
    ala_convergence = _Later("pflbench.report.figures.ala_convergence")
    trajectory = _Later("pflbench.report.figures.trajectory.numbers")

Kind = Literal["table", "plot"]


@dataclass(frozen=True)
class Report:
    """A table or a figure. module: in `pflbench.report`.

    needed: the runs of the papers' settings that it needs. refuses: which of `selection.Filters` do not belong to it.
    as_printed: whether it has the rows and places of the paper's table, run or not; printed: the table that shows its runs so.
    """

    kind: Kind
    title: str
    module: str
    needed: Callable[[], Any] | None = None
    refuses: tuple[str, ...] = ()
    as_printed: bool = False
    printed: str = ""

    def load(self, function: str = "") -> Callable[..., Any]:
        """The function that makes it: a table's `build` returns what has a `grid()`, a figure's `plot` a `style.Drawing`."""
        made = getattr(import_module(f"pflbench.report.{self.module}"), function or {"table": "build", "plot": "plot"}[self.kind])
        return partial(made, declared=self.needs) if self.as_printed else made

    def build(self, engine: Engine, filters: Filters, function: str = "", **options: Any) -> Any:
        """The report of the filtered runs."""
        return self.load(function)(engine, filters, **options)

    @cached_property
    def needs(self) -> Any:
        """`needs.TableNeeds` or `needs.FigureNeeds`; None if no paper defines its runs."""
        return None if self.needed is None else self.needed()


def _papers(title: str, needed: Callable[[], n.TableNeeds]) -> Report:
    """A table with the rows and columns of the paper's."""
    return Report("table", title, "tables.accuracy", needed, as_printed=True)


def _accuracy() -> n.TableNeeds:
    return n.TableNeeds(
        "accuracy",
        "Accuracy",
        "FedALA paper, Table 2 and Table 7 (MNIST)",
        n.lines(*n.METHODS),
        (
            n.pathological("mnist"),
            n.pathological("cifar10"),
            n.pathological("cifar100", 10),
            *(n.dirichlet(dataset) for dataset in ("mnist", "cifar10", "cifar100", "tiny")),
            n.dirichlet("tiny", model="resnet18"),
            n.dirichlet("agnews", model="fasttext"),
        ),
    )


def _partitions() -> n.TableNeeds:
    return n.TableNeeds(
        "partitions",
        "Comparison over partitions",
        "FedAMP, by a review of it",
        # The review names FedAvg and FedProx; Local and Per-FedAvg show what no and what other personalization gives.
        n.lines("local", "fedavg", "fedprox", "per-fedavg", "fedamp", "heurfedamp"),
        n.fedamp("mnist", "fashionmnist", "emnist:byclass", "cifar100"),
        leader=None,
        compared="fedamp",
        printed=False,
    )


TABLES = {
    "accuracy": Report(
        "table",
        "Accuracy of each method in each setting, mean and std over seeds",
        "tables.accuracy",
        _accuracy,
        printed="table2",
    ),
    "overhead": Report(
        "table",
        "Time, communication and memory of each method",
        "tables.overhead",
        lambda: n.TableNeeds(
            "overhead", "Overhead", "FedALA paper, Table 3", n.lines(*n.METHODS), (n.dirichlet("tiny", model="resnet18"),)
        ),
    ),
    # The papers have no table of ranks: it shows the runs of Table 2.
    "ranks": Report("table", "Average ranks of the methods over all settings", "tables.ranks", _accuracy),
    "table2": _papers("Table 2: accuracy in the paper's settings, run or not", _accuracy),
    "heterogeneity": _papers(
        "Table 4: accuracy by beta",
        lambda: n.TableNeeds(
            "heterogeneity",
            "Heterogeneity",
            "FedALA paper, Table 4",
            n.lines(*n.METHODS),
            (n.dirichlet("tiny", 0.01), n.dirichlet("tiny", 0.5), n.dirichlet("agnews", 1.0, "fasttext")),
            beside=(n.dirichlet("tiny"), n.dirichlet("agnews", model="fasttext")),
        ),
    ),
    "scalability": _papers(
        "Table 4: accuracy with 50 and 100 clients",
        lambda: n.TableNeeds(
            "scalability",
            "Scalability",
            "FedALA paper, Table 4",
            n.lines(*n.METHODS),
            tuple(n.dirichlet("cifar100", clients=clients) for clients in (50, 100)),
            same=("clients", "join_ratio"),
        ),
    ),
    "applicability": _papers(
        "Table 4: ALA plugged into other methods",
        lambda: n.TableNeeds(
            "applicability",
            "Applicability of ALA",
            "FedALA paper, Table 4",
            n.lines(*n.WITH_ALA),
            (n.dirichlet("tiny"), n.dirichlet("cifar100")),
            extra="improvement",
        ),
    ),
    "hyperparameters": _papers(
        "Table 1: FedALA's s and p",
        lambda: n.TableNeeds(
            "hyperparameters",
            "Hyperparameters of FedALA",
            "FedALA paper, Table 1",
            n.fedala(*((s, 1) for s in (5, 10, 20, 40, 60, 80, 100)), *((80, p) for p in (6, 5, 4, 3, 2))),
            (n.dirichlet("tiny", model="resnet18"),),
            leader=None,
            extra="weights",
        ),
    ),
    "range": _papers(
        "Tables 5 and 6: FedALA's p by model",
        lambda: n.TableNeeds(
            "range",
            "Range of ALA",
            "FedALA paper, Tables 5 and 6",
            n.fedala(*((80, p) for p in (4, 3, 2, 1))),
            (n.dirichlet("tiny"), n.dirichlet("agnews", model="fasttext")),
            leader=None,
            extra="weights",
        ),
    ),
    "participation": _papers(
        "Table 7: half of the clients join a round",
        lambda: n.TableNeeds(
            "participation",
            "Partial participation",
            "FedALA paper, Table 7",
            n.lines(*n.CROSS_DEVICE),
            (n.dirichlet("cifar100", clients=100, join_ratio=0.5),),
            same=("join_ratio",),
        ),
    ),
    "elastic": _papers(
        "Elastic Aggregation on a central test set",
        lambda: n.TableNeeds(
            "elastic",
            "Elastic Aggregation on a central test set",
            "Elastic Aggregation's poster",
            n.lines("fedavg", "elastic"),
            n.poster(),
            leader=None,
        ),
    ),
    "partitions": _papers("FedAMP's three partitions: accuracy, median client, Wilcoxon's test over the clients", _partitions),
    "ablation": _papers(
        "FedALA without adaptation of its weights",
        lambda: n.TableNeeds(
            "ablation",
            "ALA without adaptation",
            "FedALA paper, text and Table 2",
            (
                n.MethodLine("fedala", (("adapt", True),), "FedALA"),
                n.MethodLine("fedala", (("adapt", False),), "FedALA without adaptation"),
            ),
            (n.dirichlet("tiny"),),
        ),
    ),
}


def _distribution() -> n.FigureNeeds:
    # Data alone are drawn: no model is trained, and so none of a place's other fields counts.
    printed = {
        "Figure 6": tuple(n.dirichlet("tiny", beta) for beta in (0.01, 0.1, 0.5)),
        "Figure 7": (n.pathological("mnist"), n.pathological("cifar10"), n.pathological("cifar100", 10)),
        "Figure 8": tuple(n.dirichlet(dataset) for dataset in ("mnist", "cifar10", "cifar100")),
        "Figure 9": tuple(n.dirichlet("cifar100", clients=clients) for clients in (50, 100)),
    }
    places = (place for places in printed.values() for place in places)
    cells = n.cells(n.lines("local"), *places)
    return n.FigureNeeds("FedALA paper, Figures 6 to 9", cells, one_seed=True, trained=False, printed=printed)


def _of_table_2() -> n.FigureNeeds:
    return n.FigureNeeds("the settings of FedALA's Table 2 and Table 7 (MNIST)", TABLES["accuracy"].needs.needed)


def _of_ala(source: str, array: str) -> Callable[[], n.FigureNeeds]:
    def needed() -> n.FigureNeeds:
        cells = n.cells(n.lines("fedala"), n.pathological("mnist"))
        # Figure 5 has a dot per 60 rounds.
        return n.FigureNeeds(source, cells, one_seed=True, fewest=4, array=array, save_artifacts_every=60)

    return needed


PLOTS: Mapping[str, Report] = {
    "curves": Report("plot", "Accuracy over rounds or seconds, mean and band over seeds", "figures.curves", _of_table_2),
    "distribution": Report(
        "plot",
        "Samples per client and class of each partition",
        "figures.distribution",
        _distribution,
        refuses=("methods", "status"),
    ),
    "overhead": Report(
        "plot",
        "Accuracy over training time and over bytes sent, with the Pareto front",
        "figures.overhead",
        lambda: n.FigureNeeds("the setting of FedALA's Table 3", TABLES["overhead"].needs.needed),
    ),
    "scalability": Report(
        "plot",
        "Accuracy and seconds per round over the number of clients",
        "figures.scalability",
        lambda: n.FigureNeeds(
            "the setting of FedALA's Table 4, with more numbers of clients",
            n.cells(n.lines(*n.METHODS), *(n.dirichlet("cifar100", clients=clients) for clients in (10, 20, 50, 100))),
        ),
    ),
    "heterogeneity": Report(
        "plot",
        "Accuracy over beta of Dirichlet partitions",
        "figures.heterogeneity",
        lambda: n.FigureNeeds(
            "the settings of FedALA's Tables 2 and 4",
            n.cells(
                n.lines(*n.METHODS),
                *(n.dirichlet("tiny", beta) for beta in (0.01, 0.1, 0.5)),
                *(n.dirichlet("agnews", beta, "fasttext") for beta in (0.1, 1.0)),
            ),
        ),
        refuses=("partitions",),
    ),
    "elastic": Report(
        "plot",
        "Elastic Aggregation by partition, participation and local epochs",
        "figures.elastic",
        lambda: n.FigureNeeds(
            "Elastic Aggregation's poster, figure", n.cells(n.lines("fedavg", "elastic"), *n.around_the_poster())
        ),
    ),
    "fairness": Report(
        "plot",
        "Accuracy of the clients by method, its median and worst tenth",
        "figures.fairness",
        lambda: n.FigureNeeds(
            "four settings of FedALA's Table 2 and Table 7",
            n.cells(n.lines(*n.METHODS), *(n.dirichlet(dataset) for dataset in ("mnist", "cifar10", "cifar100", "tiny"))),
        ),
    ),
    "ranks": Report("plot", "Average ranks of the methods, joined where they do not differ", "figures.ranks", _of_table_2),
    "attention": Report(
        "plot",
        "Which client's model draws on whose, beside the clients' groups",
        "figures.attention",
        lambda: n.FigureNeeds(
            "FedAMP's setting: groups of clients with classes of their own",
            n.cells(n.lines("fedamp"), n.groups("mnist")),
            one_seed=True,
            array="attention",
            save_artifacts_every=100,
        ),
    ),
    "ala-weights": Report(
        "plot",
        "ALA's weights by layer and round",
        "figures.ala_weights",
        _of_ala("the setting of FedALA's Figure 5", "ala_weights"),
    ),
    # The initial stage is seen only where every round is observed. A whole run of that would fill the database.
    "ala-convergence": Report(
        "plot",
        "Loss of a client over ALA's weight-learning epochs",
        "figures.ala_convergence",
        lambda: n.FigureNeeds(
            "FedALA paper, Figure 3",
            n.cells(
                [n.MethodLine("fedala", (("min_epochs", 6),))],
                n.pathological("mnist", rounds=20),
                n.pathological("cifar10", rounds=20),
            ),
            one_seed=True,
            fewest=4,
            array="ala_epoch_losses",
            save_artifacts_every=1,
            client=ala_convergence.CLIENT,
        ),
    ),
    "trajectory": Report(
        "plot",
        "The way of a client's model in the plane of its principal components",
        "figures.trajectory",
        lambda: n.FigureNeeds(
            "FedALA paper, Figure 4",
            # ALA is off for 155 rounds.
            n.cells(
                [n.MethodLine("fedavg"), n.MethodLine("fedala", (("start_round", 156),))], n.pathological("mnist", rounds=200)
            ),
            one_seed=True,
            fewest=10,
            client=trajectory.CLIENT,
            window=(140, 200),
        ),
    ),
    "loss": Report(
        "plot",
        "Training loss of trained and of initialised local models",
        "figures.loss",
        _of_ala("FedALA paper, Figure 5", "ala_objective"),
    ),
}
