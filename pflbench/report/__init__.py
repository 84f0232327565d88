"""Tables and figures: a query, then a rendering.

Names here, code when it is needed: `pflbench --help` imports none of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from pflbench.report.selection import Filters


@dataclass(frozen=True)
class Entry:
    """A line of the table of contents. `target` is module:function; arguments: its first ones."""

    title: str
    target: str
    arguments: tuple[str, ...] = ()
    refuses: tuple[str, ...] = ()  # of `selection.Filters`

    def load(self) -> Callable[..., Any]:
        """The function behind the entry; tables return what has a `grid()`, plots return `style.Drawing`."""
        module, _, name = self.target.partition(":")
        function: Callable[..., Any] = getattr(import_module(module), name)
        return partial(function, *self.arguments) if self.arguments else function

    def build(self, engine: Engine, filters: Filters, **options: Any) -> Any:
        """The report of these runs."""
        return self.load()(engine, filters, **options)


TABLES = {
    "accuracy": Entry("Accuracy of each method in each setting, mean and std over seeds", "pflbench.report.accuracy:build"),
    "overhead": Entry("Time, communication and memory of each method", "pflbench.report.overhead:build"),
    "ranks": Entry("Average ranks of the methods over all settings", "pflbench.report.ranks:build"),
    "table2": Entry("Table 2: accuracy in the paper's settings, run or not", "pflbench.report.papertable:build", ("accuracy",)),
    **{
        name: Entry(title, "pflbench.report.papertable:build", (name,))
        for name, title in {
            "heterogeneity": "Table 4: accuracy by beta",
            "scalability": "Table 4: accuracy with 50 and 100 clients",
            "applicability": "Table 4: ALA plugged into other methods",
            "hyperparameters": "Table 1: FedALA's s and p",
            "range": "Tables 5 and 6: FedALA's p by model",
            "participation": "Table 7: half of the clients join a round",
            "elastic": "Elastic Aggregation on a central test set",
            "partitions": "FedAMP's three partitions: accuracy, median client, Wilcoxon's test over the clients",
            "ablation": "FedALA without adaptation of its weights",
        }.items()
    },
}
PLOTS = {
    "curves": Entry("Accuracy over rounds or seconds, mean and band over seeds", "pflbench.report.figures.curves:plot"),
    "distribution": Entry(
        "Samples per client and class of each partition",
        "pflbench.report.figures.distribution:plot",
        refuses=("methods", "status"),
    ),
    "overhead": Entry(
        "Accuracy over training time and over bytes sent, with the Pareto front", "pflbench.report.figures.overhead:plot"
    ),
    "scalability": Entry("Accuracy and seconds per round over the number of clients", "pflbench.report.figures.scalability:plot"),
    "heterogeneity": Entry(
        "Accuracy over beta of Dirichlet partitions", "pflbench.report.figures.heterogeneity:plot", refuses=("partitions",)
    ),
    "elastic": Entry("Elastic Aggregation by partition, participation and local epochs", "pflbench.report.figures.elastic:plot"),
    "fairness": Entry("Accuracy of the clients by method, its median and worst tenth", "pflbench.report.figures.fairness:plot"),
    "ranks": Entry("Average ranks of the methods, joined where they do not differ", "pflbench.report.figures.ranks:plot"),
    "attention": Entry(
        "Which client's model draws on whose, beside the clients' groups", "pflbench.report.figures.attention:plot"
    ),
    "ala-weights": Entry("ALA's weights by layer and round", "pflbench.report.figures.ala_weights:plot"),
    "ala-convergence": Entry(
        "Loss of a client over ALA's weight-learning epochs", "pflbench.report.figures.ala_convergence:plot"
    ),
    "trajectory": Entry(
        "The way of a client's model in the plane of its principal components", "pflbench.report.figures.trajectory:plot"
    ),
    "loss": Entry("Training loss of trained and of initialised local models", "pflbench.report.figures.loss:plot"),
}
