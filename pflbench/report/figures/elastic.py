"""Elastic Aggregation beside FedAvg by partition, participation and local epochs, one varied at a time.

The figure of its poster compares them over these three, but neither its settings nor its values are printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Engine

from pflbench.errors import NothingYet
from pflbench.report import labels, parameter_curve, style, web
from pflbench.report.arrangement import Arranged
from pflbench.report.parameter_curve import Measure, Sweep
from pflbench.report.selection import Filters
from pflbench.report.traces import lettered
from pflbench.report.web import Interactive
from pflbench.store.rounds import CENTRAL, by_series
from pflbench.store.runs import Result, RoundRule, distinct

METHOD, BASELINE = "elastic", "fedavg"
COMMAND = "pflbench run -m fedavg -m elastic --local-epochs 1, and again with --local-epochs 5"


@dataclass(frozen=True)
class Varied:
    """The varied value of a panel. key: in a run's specification; label: of the x axis."""

    title: str
    key: str
    label: str


# A setting has one of the first two: its partition is pathological or by a Dirichlet draw.
VARIED = (
    Varied("Partition", "partition.classes_per_client", "Classes per client"),
    Varied("Partition", "partition.beta", "β"),
    Varied("Participation", "train.join_ratio", "Join ratio"),
    Varied("Local epochs", "train.local_epochs", "Local epochs"),
)


@dataclass(frozen=True)
class VariedPanel:
    varied: Varied
    sweep: Sweep


def plot(engine: Engine, filters: Filters = Filters()) -> style.Drawing:
    """A panel for each value that is varied around one setting. Raises UserError without two settings of Elastic Aggregation."""
    found = collected(engine, filters)
    centre, drawn = around_one(found, panels(found))
    missing = dict.fromkeys(one.title for one in VARIED if one.title not in {panel.varied.title for panel in drawn})
    notes = [f"No panel: {', '.join(missing)}. `pflbench reproduce plot:elastic` has all three."] if missing else []
    x, titles, sweeps = zip(*((panel.varied.label, panel.varied.title, panel.sweep) for panel in drawn), strict=True)
    said = caption(found, drawn, centre)
    return parameter_curve.drawing(found, sweeps, [measure(engine, found)], said, x, titles, notes)


def collected(engine: Engine, filters: Filters) -> Arranged:
    """The filtered runs; without a filter for methods, those of Elastic Aggregation and FedAvg."""
    if not filters.methods:
        there = [name for name in (BASELINE, METHOD) if name in distinct(engine, filters.among(engine), "method")]
        if METHOD not in there:
            raise NothingYet("There are no runs of Elastic Aggregation in this database yet.", f"Make some: {COMMAND}.")
        filters = replace(filters, methods=there)
    return filters.select(engine)


def panels(found: Arranged) -> list[VariedPanel]:
    """All figures of Elastic Aggregation, in any setting. Raises UserError if there are none."""
    made = [
        VariedPanel(varied, one)
        for varied in VARIED
        for one in parameter_curve.every(found, varied.key)
        if any(found.rows[i].method == METHOD for i in parameter_curve.rows(found, one))
    ]
    if not made:
        raise NothingYet(
            "Elastic Aggregation has no runs in two settings that differ in partition, join ratio or local epochs alone.",
            f"Make them: {COMMAND}.",
        )
    return made


def around_one(found: Arranged, made: Sequence[VariedPanel]) -> tuple[int, list[VariedPanel]]:
    """The setting with the most varied values, preferably with a central test set, and its panels."""

    def of(j: int) -> list[VariedPanel]:
        return [panel for panel in made if j in panel.sweep.columns]

    def worth(j: int) -> tuple[int, bool, int, int]:
        return len(of(j)), _central(found, j), sum(len(panel.sweep.columns) for panel in of(j)), -j

    centre = max({j for panel in made for j in panel.sweep.columns}, key=worth)
    return centre, of(centre)


def measure(engine: Engine, found: Arranged) -> Measure:
    """A run's best accuracy on the central test set; without one, its best pooled accuracy."""
    every = [run for cell in found.cells.values() for run in cell]
    central = {run.id: run for run in by_series(engine, every, CENTRAL, RoundRule("best"))}

    def best(run: Result) -> float | None:
        return parameter_curve.best(central.get(run.id, run))

    return Measure("Test accuracy (%)", best)


def caption(found: Arranged, drawn: Sequence[VariedPanel], centre: int) -> str:
    spec = labels.flat(found.settings[centre].spec)
    over = lettered([panel.varied.label for panel in drawn])
    kept = ", ".join(f"{panel.varied.label.lower()} {spec[panel.varied.key]:g}" for panel in drawn)
    where = "of the global model on the central test set" if _central(found, centre) else "pooled over the clients' test data"
    return (
        f"Best accuracy {where} of {labels.dataset_title(found.settings[centre].spec)}, one thing varied at a time: {over}. "
        f"What is not varied: {kept}. {parameter_curve.remarks(found, [panel.sweep for panel in drawn])} "
        "The poster of Elastic Aggregation prints neither settings nor values of its figure: these settings are chosen here."
    )


def _central(found: Arranged, j: int) -> bool:
    return bool(found.settings[j].spec["partition"].get("central_test"))


def page(engine: Engine, filters: Filters, most: int | None = None) -> list[Interactive]:
    """A figure for each group of settings that differ only in one of the three. Raises UserError if there is none."""
    found = collected(engine, filters)
    accuracy = measure(engine, found)
    made = []
    for one in panels(found)[:most]:
        label = one.varied.label
        drawn = parameter_curve.panel(found, one.sweep, accuracy, label, f" by {label.lower()}")
        made.append(web.figure("elastic", drawn, caption(found, [one], one.sweep.columns[0]), found.notes))
    return made
