"""Elastic Aggregation beside FedAvg by partition, participation and local epochs, one varied at a time.

The figure of its poster compares them over these three, but neither its settings nor its values are printed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Engine

from pflbench.errors import NothingYet
from pflbench.report import labels, parameter_curve, style, web
from pflbench.report.arrangement import Arranged
from pflbench.report.parameter_curve import Measure, Parameter, Sweep
from pflbench.report.selection import Filters
from pflbench.report.traces import lettered
from pflbench.report.web import Interactive
from pflbench.store.rounds import CENTRAL, by_series
from pflbench.store.runs import RoundRule, distinct

METHOD, BASELINE = "elastic", "fedavg"
COMMAND = "pflbench run -m fedavg -m elastic --local-epochs 1, and again with --local-epochs 5"


# A setting has one of the first two: its partition is pathological or by a Dirichlet draw.
VARIED = (
    Parameter("partition.classes_per_client", "Classes per client", "Partition"),
    Parameter("partition.beta", "β", "Partition"),
    Parameter("train.join_ratio", "Join ratio", "Participation"),
    Parameter("train.local_epochs", "Local epochs", "Local epochs"),
)


def plot(engine: Engine, filters: Filters = Filters()) -> style.Drawing:
    """A panel for each value that is varied around one setting. Raises UserError without two settings of Elastic Aggregation."""
    found = collected(engine, filters)
    centre, drawn = around_one(found, varied(found))
    titles = {one.parameter.title for one in drawn}
    missing = dict.fromkeys(one.title for one in VARIED if one.title not in titles)
    notes = [f"No panel: {', '.join(missing)}. `pflbench reproduce plot:elastic` has all three."] if missing else []
    return parameter_curve.drawing(found, drawn, [measure(engine, found)], caption(found, drawn, centre), notes)


def page(engine: Engine, filters: Filters, most: int | None = None) -> list[Interactive]:
    """A figure for each group of settings that differ only in one of the three. Raises UserError if there is none."""
    found = collected(engine, filters)
    accuracy = measure(engine, found)
    return [
        web.figure("elastic", parameter_curve.panel(found, one, accuracy), caption(found, [one], one.columns[0]), found.notes)
        for one in varied(found)[:most]
    ]


def collected(engine: Engine, filters: Filters) -> Arranged:
    """The filtered runs; without a filter for methods, those of Elastic Aggregation and FedAvg."""
    if not filters.methods:
        there = [name for name in (BASELINE, METHOD) if name in distinct(engine, filters.among(engine), "method")]
        if METHOD not in there:
            raise NothingYet("There are no runs of Elastic Aggregation in this database yet.", f"Make some: {COMMAND}.")
        filters = replace(filters, methods=there)
    return filters.select(engine)


def varied(found: Arranged) -> list[Sweep]:
    """All sweeps of Elastic Aggregation, around any setting. Raises UserError if there are none."""
    made = [
        sweep
        for parameter in VARIED
        for sweep in parameter_curve.sweeps(found, parameter)
        if any(found.rows[i].method == METHOD for i in parameter_curve.rows(found, sweep))
    ]
    if not made:
        raise NothingYet(
            "Elastic Aggregation has no runs in two settings that differ in partition, join ratio or local epochs alone.",
            f"Make them: {COMMAND}.",
        )
    return made


def around_one(found: Arranged, made: Sequence[Sweep]) -> tuple[int, list[Sweep]]:
    """The setting with the most varied values, preferably with a central test set, and its sweeps."""
    around: dict[int, list[Sweep]] = defaultdict(list)
    for sweep in made:
        for j in sweep.columns:
            around[j].append(sweep)

    def worth(j: int) -> tuple[int, bool, int, int]:
        return len(around[j]), _central(found, j), sum(len(sweep.columns) for sweep in around[j]), -j

    centre = max(around, key=worth)
    return centre, around[centre]


def measure(engine: Engine, found: Arranged) -> Measure:
    """A run's best accuracy on the central test set; without one, its best pooled accuracy."""
    central = {run.id: run for run in by_series(engine, found.runs, CENTRAL, RoundRule("best"))}
    return parameter_curve.accuracy(central.get(run.id, run) for run in found.runs)


def caption(found: Arranged, drawn: Sequence[Sweep], centre: int) -> str:
    spec = labels.flat(found.settings[centre].spec)
    over = lettered([one.parameter.label for one in drawn])
    kept = ", ".join(f"{one.parameter.label.lower()} {spec[one.parameter.key]:g}" for one in drawn)
    where = "of the global model on the central test set" if _central(found, centre) else "pooled over the clients' test data"
    return (
        f"Best accuracy {where} of {labels.dataset_title(found.settings[centre].spec)}, one thing varied at a time: {over}. "
        f"What is not varied: {kept}. {parameter_curve.remarks(found, drawn)} "
        "The poster of Elastic Aggregation prints neither settings nor values of its figure: these settings are chosen here."
    )


def _central(found: Arranged, j: int) -> bool:
    return bool(found.settings[j].spec["partition"].get("central_test"))
