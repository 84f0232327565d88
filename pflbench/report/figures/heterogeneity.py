"""Accuracy over beta, the parameter of Dirichlet partitions: the smaller, the more the clients differ."""

from __future__ import annotations

from pflbench.report.parameter_curve import Parameter, ParameterFigure

FIGURE = ParameterFigure(
    "heterogeneity",
    Parameter("partition.beta", "β (heterogeneous → homogeneous)"),
    "Best test accuracy over beta of the partition Dir(beta)",
    "pflbench run -m fedavg -m fedala --beta 0.1, and again with --beta 1",
)
plot, page = FIGURE.plot, FIGURE.page
