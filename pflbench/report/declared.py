"""The tables and figures, each declared once; the runs that they need are in `needed`.

`pflbench table NAME` and `pflbench plot NAME` show the runs that there are; `pflbench reproduce NAME` makes those that are
needed. Names here, code when it is needed: `pflbench --help` imports none of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from typing import Any, Literal

Kind = Literal["table", "plot"]


@dataclass(frozen=True)
class Report:
    """A table or a figure. module: in `pflbench.report`.

    refuses: which of `selection.Filters` do not belong to it. as_printed: whether it has the rows and places of the paper's
    table, run or not; printed: the table that shows its runs so. reproducible: whether `needed` says which runs it is made of.
    """

    kind: Kind
    name: str
    title: str
    module: str
    refuses: tuple[str, ...] = ()
    as_printed: bool = False
    printed: str = ""
    reproducible: bool = True

    def load(self, function: str = "") -> Callable[..., Any]:
        """The function that makes it of a database and `selection.Filters`.

        A table's `build` returns what has a `grid()`, a figure's `plot` a `style.Drawing`.
        """
        made = getattr(import_module(f"pflbench.report.{self.module}"), function or {"table": "build", "plot": "plot"}[self.kind])
        return partial(made, declared=self.needs) if self.as_printed else made

    @cached_property
    def needs(self) -> Any:
        """`needed.TableNeeds` or `needed.FigureNeeds`: the runs of the papers' settings that it needs."""
        needed = import_module("pflbench.report.needed")
        return {"table": needed.TABLES, "plot": needed.PLOTS}[self.kind][self.name]


def _table(name: str, title: str, **more: Any) -> Report:
    return Report("table", name, title, f"tables.{name.replace('-', '_')}", **more)


def _printed(name: str, title: str) -> Report:
    """A table with the rows and columns of the paper's."""
    return Report("table", name, title, "tables.accuracy", as_printed=True)


def _plot(name: str, title: str, **more: Any) -> Report:
    return Report("plot", name, title, f"figures.{name.replace('-', '_')}", **more)


_TABLES = (
    _table("accuracy", "Accuracy of each method in each setting, mean and std over seeds", printed="table2"),
    _table("overhead", "Time, communication and memory of each method"),
    _table("clients", "Clients that are worse off than with Local or FedAvg, by how much, and the worst tenth"),
    _table("time-to-accuracy", "Rounds, bytes and seconds until a method reaches an accuracy"),
    _table("ranks", "Average ranks of the methods over all settings"),
    _table("evidence", "What the papers claim of the methods' order, and which of it the runs confirm"),
    _table("new-clients", "Accuracy of clients that never joined, over the epochs that they adapt"),
    _table("tuned", "Studies of `tune`: default and best hyperparameters of each method, and the budget", reproducible=False),
    _printed("table2", "Table 2: accuracy in the paper's settings, run or not"),
    _printed("heterogeneity", "Table 4: accuracy by beta"),
    _printed("scalability", "Table 4: accuracy with 50 and 100 clients"),
    _printed("applicability", "Table 4: ALA plugged into other methods"),
    _printed("hyperparameters", "Table 1: FedALA's s and p"),
    _printed("range", "Tables 5 and 6: FedALA's p by model"),
    _printed("participation", "Table 7: half of the clients join a round"),
    _printed("elastic", "Elastic Aggregation on a central test set"),
    _printed("leaderboard", "PFLlib's leaderboard: 18 of its 20 methods in 13 settings"),
    _printed("partitions", "FedAMP's three partitions: accuracy, median client, Wilcoxon's test over the clients"),
    _printed("ablation", "FedALA without adaptation of its weights"),
)

_PLOTS = (
    _plot("curves", "Accuracy over rounds, or over seconds, bytes or FLOPs, mean and band over seeds"),
    _plot("distribution", "Samples per client and class of each partition", refuses=("methods", "status")),
    _plot("overhead", "Accuracy over training time and over bytes sent, with the Pareto front"),
    _plot("new-clients", "Accuracy of clients that never joined, over the epochs that they adapt"),
    _plot("scalability", "Accuracy and seconds per round over the number of clients"),
    _plot("heterogeneity", "Accuracy over beta of Dirichlet partitions", refuses=("partitions",)),
    _plot("elastic", "Elastic Aggregation by partition, participation and local epochs"),
    _plot("fairness", "Accuracy of the clients by method, its median and worst tenth"),
    _plot("clients", "Difference of each client's accuracy to Local or FedAvg, by method"),
    _plot("ranks", "Average ranks of the methods, joined where they do not differ"),
    _plot("attention", "Which client's model draws on whose, beside the clients' groups"),
    _plot("ala-weights", "ALA's weights by layer and round"),
    _plot("ala-convergence", "Loss of a client over ALA's weight-learning epochs"),
    _plot("trajectory", "The way of a client's model in the plane of its principal components"),
    _plot("loss", "Training loss of trained and of initialised local models"),
)
TABLES = {report.name: report for report in _TABLES}
PLOTS = {report.name: report for report in _PLOTS}
