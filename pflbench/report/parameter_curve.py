"""Accuracy over one number, such as clients or beta, in settings that differ in nothing else."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import NothingYet
from pflbench.report import labels, render, style, web
from pflbench.report.arrangement import Arranged, short_titles
from pflbench.report.selection import Filters
from pflbench.report.traces import Axis, Panel, Trace, axis_at_values, lettered, run_numbers
from pflbench.report.web import Interactive
from pflbench.store.runs import Result

MOST = 3  # sweeps side by side in print
APART, BROADEST = 3.0, 14.0  # points: between bars of two methods at the same value, of all such bars


@dataclass(frozen=True)
class Parameter:
    """key: in a run's flat specification; label: of the x axis; title: of a panel, else it says what its settings share."""

    key: str
    label: str
    title: str = ""


@dataclass(frozen=True)
class Sweep:
    """values[k]: the parameter in the setting columns[k]; parts: what the settings share, dataset and partition first."""

    parameter: Parameter
    parts: tuple[str, ...]
    values: tuple[float, ...]
    columns: tuple[int, ...]

    @property
    def title(self) -> str:
        return ", ".join(self.parts)


@dataclass(frozen=True)
class Measure:
    """What the y axis shows. values: by run; without those that have none."""

    label: str
    values: Mapping[int, float]
    from_zero: bool = False


def rows(found: Arranged, sweep: Sweep) -> list[int]:
    """The methods with runs at two values or more."""
    return [i for i in range(len(found.rows)) if sum((i, j) in found.cells for j in sweep.columns) > 1]


def accuracy(runs: Iterable[Result]) -> Measure:
    """The best accuracy of these runs."""
    return Measure("Test accuracy (%)", {run.id: 100 * run.value for run in runs if run.value is not None})


@dataclass(frozen=True)
class ParameterFigure:
    """The figure of a parameter. said: how its caption begins; command: makes its runs; second: a measure beside accuracy."""

    name: str
    parameter: Parameter
    said: str
    command: str
    second: Callable[[Engine, Arranged], Measure] | None = None

    def plot(self, engine: Engine, filters: Filters = Filters()) -> style.Drawing:
        """Up to three groups of settings that differ only in the parameter. Raises UserError if there is none."""
        found = filters.select(engine)
        drawn = self.sweeps(found)[:MOST]
        return drawing(found, drawn, self._measures(engine, found), self._caption(found, drawn))

    def page(self, engine: Engine, filters: Filters, most: int | None = None) -> list[Interactive]:
        """A figure per measure for each group of settings that differ only in the parameter. Raises UserError if none do."""
        found = filters.select(engine)
        measures = self._measures(engine, found)
        return [
            web.figure(self.name, panel(found, one, measure), self._caption(found, [one]), found.notes)
            for one in self.sweeps(found)[:most]
            for measure in measures
        ]

    def sweeps(self, found: Arranged) -> list[Sweep]:
        """The longest come first. Raises UserError where no two settings differ in the parameter alone."""
        if made := sweeps(found, self.parameter):
            return sorted(made, key=lambda sweep: -len(sweep.columns))
        raise NothingYet(
            f"No method has runs in two settings that differ in {self.parameter.key.rpartition('.')[2]} and in nothing else.",
            f"Make them: {self.command}.",
        )

    def _measures(self, engine: Engine, found: Arranged) -> list[Measure]:
        return [accuracy(found.runs), *([self.second(engine, found)] if self.second else [])]

    def _caption(self, found: Arranged, drawn: Sequence[Sweep]) -> str:
        return f"{self.said}: {lettered([sweep.title for sweep in drawn])}. {remarks(found, drawn)}"


def sweeps(found: Arranged, parameter: Parameter) -> list[Sweep]:
    """Of the settings those that differ in the parameter and in nothing else, by ascending value; none where no two do."""
    groups: dict[str, dict[float, int]] = defaultdict(dict)
    for j, setting in enumerate(found.settings):
        spec = labels.flat(setting.shared)
        if spec.get("train.join_ratio") == 1:
            spec["train.evaluate"] = "participants"  # who are all clients here, and the specification says so
        value = spec.pop(parameter.key, None)
        if value is not None:
            groups[json.dumps(spec, sort_keys=True)].setdefault(float(value), j)
    made = []
    for group in groups.values():
        values, columns = zip(*sorted(group.items()), strict=True)
        heads = [found.settings[j].head for j in columns]
        parts = tuple(part for part in heads[0] if all(part in head for head in heads))
        made.append(Sweep(parameter, parts, values, columns))
    return [sweep for sweep in made if rows(found, sweep)]


def drawing(
    found: Arranged, drawn: Sequence[Sweep], measures: Sequence[Measure], caption: str, notes: Sequence[str] = ()
) -> style.Drawing:
    """A column of panels per sweep, a row of panels per measure."""
    heads = [[part for part in found.settings[sweep.columns[0]].head[:2] if part in sweep.parts] for sweep in drawn]
    titles = short_titles([(head, sweep.parts) for head, sweep in zip(heads, drawn, strict=True)])
    return render.drawing(
        [panel(found, sweep, measure) for measure in measures for sweep in drawn],
        [sweep.parameter.title or title for sweep, title in zip(drawn, titles, strict=True)],
        f"{caption} Methods stand side by side at each value.",
        (*found.notes, *notes),
        columns=len(drawn),
        height=1.5,
        measures=len(measures),
        order=[row.label for row in found.rows],
    )


def panel(found: Arranged, of: Sweep, measure: Measure) -> Panel:
    """A line per method with runs at two values or more: the mean over its runs, bars from minimum to maximum."""
    shown = rows(found, of)
    step = min(APART, BROADEST / len(shown))
    runs = tuple(run.id for i in shown for j in of.columns for run in found.cells.get((i, j), ()))
    # A parameter with a title of its own is one of several of the same setting.
    over = f" by {of.parameter.label.lower()}" if of.parameter.title else ""
    return Panel(
        f"{of.title}: {measure.label.partition(' (')[0].lower()}{over}",
        axis_at_values(of.parameter.label, of.values),
        Axis(measure.label, zero=measure.from_zero),
        [
            replace(line, aside=step * (k - (len(shown) - 1) / 2))
            for k, i in enumerate(shown)
            if (line := _line(found, i, of, measure)) is not None
        ],
        runs,
        tuple(found.settings[j] for j in of.columns),
    )


def _line(found: Arranged, i: int, of: Sweep, measure: Measure) -> Trace | None:
    """None if no run has a value."""
    at = {}
    for value, j in zip(of.values, of.columns, strict=True):
        measured = {run.id: measure.values[run.id] for run in found.cells.get((i, j), ()) if run.id in measure.values}
        if measured:
            each = list(measured.values())
            at[value] = (float(np.mean(each)), min(each), max(each), run_numbers(tuple(measured)))
    if not at:
        return None
    mean, low, high, runs = zip(*at.values(), strict=True)
    places = ".2f" if measure.label.endswith("(%)") else ".3f"
    return Trace(
        tuple(at),
        mean,
        found.rows[i].look,
        found.rows[i].label,
        low=low,
        high=high,
        bars=True,
        hover=(
            f"%{{xaxis.title.text}}: %{{x}}<br>%{{yaxis.title.text}}: %{{y:{places}}} "
            f"(%{{customdata[0]:{places}}} to %{{customdata[1]:{places}}})<br>%{{customdata[2]}}"
        ),
        data=list(zip(low, high, runs, strict=True)),
    )


def remarks(found: Arranged, drawn: Sequence[Sweep]) -> str:
    """The caption's explanation of lines and bars, and of methods that are left out."""
    shown = {i for sweep in drawn for i in rows(found, sweep)}
    columns = {j for sweep in drawn for j in sweep.columns}
    once = {i for i, j in found.cells if j in columns} - shown
    left_out = f" At one value only, and left out: {', '.join(found.rows[i].label for i in sorted(once))}." if once else ""
    return f"Lines: mean over runs; bars: minimum to maximum.{left_out}"
