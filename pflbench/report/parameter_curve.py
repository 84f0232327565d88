"""Settings that differ only in one number, such as clients or beta, and accuracy over this number."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pflbench.errors import NothingYet
from pflbench.report import labels, render, style
from pflbench.report.arrangement import Arranged
from pflbench.report.traces import Axis, Panel, Trace, at_values, lettered, of_runs
from pflbench.store.runs import Result

MOST = 3  # sweeps side by side on a page


@dataclass(frozen=True)
class Sweep:
    """values[k]: the number in the setting columns[k]; parts: what the settings have in common, dataset and partition first."""

    parts: tuple[str, ...]
    values: tuple[float, ...]
    columns: tuple[int, ...]

    @property
    def title(self) -> str:
        return ", ".join(self.parts)


@dataclass(frozen=True)
class Measure:
    """A measure of a run: the axis label, the run's value or None, and whether the axis starts at 0."""

    label: str
    of: Callable[[Result], float | None]
    from_zero: bool = False


def sweeps(found: Arranged, key: str, command: str) -> list[Sweep]:
    """Of the settings those that differ in `key` (as "partition.beta") and in nothing else, by ascending value.

    The longest come first. Raises UserError where no two settings do; command: what makes them.
    """
    made = every(found, key)
    if not made:
        raise NothingYet(
            f"No method has runs in two settings that differ in {key.rpartition('.')[2]} and in nothing else.",
            f"Make them: {command}.",
        )
    return sorted(made, key=lambda sweep: -len(sweep.columns))


def every(found: Arranged, key: str) -> list[Sweep]:
    """By setting; empty if no two settings differ only in that number."""
    groups: dict[str, dict[float, int]] = defaultdict(dict)
    for j, setting in enumerate(found.settings):
        spec = labels.flat({k: v for k, v in setting.spec.items() if k not in ("method", "seed")})
        if spec.get("train.join_ratio") == 1:
            spec["train.evaluate"] = "participants"  # who are all clients here, and the specification says so
        value = spec.pop(key, None)
        if value is not None:
            groups[json.dumps(spec, sort_keys=True)].setdefault(float(value), j)
    made = [_sweep(found, group) for group in groups.values() if len(group) > 1]
    return [sweep for sweep in made if rows(found, sweep)]


def _sweep(found: Arranged, group: dict[float, int]) -> Sweep:
    values, columns = zip(*sorted(group.items()), strict=True)
    heads = [found.settings[j].head for j in columns]
    return Sweep(tuple(part for part in heads[0] if all(part in head for head in heads)), values, columns)


def rows(found: Arranged, sweep: Sweep) -> list[int]:
    """The methods with runs at two values or more."""
    return [i for i in range(len(found.rows)) if sum((i, j) in found.cells for j in sweep.columns) > 1]


def best(run: Result) -> float | None:
    """The run's best accuracy in percent."""
    return None if run.value is None else 100 * run.value


ACCURACY = Measure("Test accuracy (%)", best)


def drawing(
    found: Arranged,
    drawn: Sequence[Sweep],
    measures: Sequence[Measure],
    caption: str,
    x: str | Sequence[str],
    titles: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> style.Drawing:
    """A column of panels per sweep, a row of panels per measure. x: one label, or one for each sweep. titles: other ones."""
    across = [x] * len(drawn) if isinstance(x, str) else x
    return render.drawing(
        [panel(found, sweep, measure, label) for measure in measures for sweep, label in zip(drawn, across, strict=True)],
        titles or [_short(found, sweep, drawn) for sweep in drawn],
        caption,
        (*found.notes, *notes),
        columns=len(drawn),
        height=1.5,
        measures=len(measures),
        order=[row.label for row in found.rows],
    )


def panel(found: Arranged, of: Sweep, measure: Measure, x: str, over: str = "") -> Panel:
    """A line per method with runs at two values or more: the mean over its runs, bars from minimum to maximum.

    over: for the title, where one setting may have several panels.
    """
    shown = rows(found, of)
    runs = tuple(run.id for i in shown for j in of.columns for run in found.cells.get((i, j), ()))
    return Panel(
        f"{of.title}: {measure.label.partition(' (')[0].lower()}{over}",
        at_values(x, of.values),
        Axis(measure.label, zero=measure.from_zero),
        [line for i in shown if (line := _line(found, i, of, measure)) is not None],
        runs,
        tuple(found.settings[j] for j in of.columns),
    )


def _line(found: Arranged, i: int, of: Sweep, measure: Measure) -> Trace | None:
    """None if no run has a value."""
    at = {}
    for value, j in zip(of.values, of.columns, strict=True):
        measured = {run.id: m for run in found.cells.get((i, j), ()) if (m := measure.of(run)) is not None}
        if measured:
            each = list(measured.values())
            at[value] = (float(np.mean(each)), min(each), max(each), of_runs(tuple(measured)))
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


def _short(found: Arranged, sweep: Sweep, drawn: Sequence[Sweep]) -> str:
    """Titles: dataset and partition, and how groups with the same ones differ."""

    def head(of: Sweep) -> list[str]:
        return [part for part in found.settings[of.columns[0]].head[:2] if part in of.parts]

    same = [other for other in drawn if head(other) == head(sweep)]
    rest = [part for part in sweep.parts if not all(part in other.parts for other in same)]
    return ", ".join((*head(sweep), *rest))


def caption(found: Arranged, drawn: Sequence[Sweep]) -> str:
    return f"{lettered([sweep.title for sweep in drawn])}. {remarks(found, drawn)}"


def remarks(found: Arranged, drawn: Sequence[Sweep]) -> str:
    """The caption's explanation of lines and bars, and of methods that are left out."""
    shown = {i for sweep in drawn for i in rows(found, sweep)}
    columns = {j for sweep in drawn for j in sweep.columns}
    once = {i for i, j in found.cells if j in columns} - shown
    left_out = f" At one value only, and left out: {', '.join(found.rows[i].label for i in sorted(once))}." if once else ""
    return f"Lines: mean over runs; bars: minimum to maximum.{left_out}"
