"""Settings that differ in one number alone, as the clients or beta: which there are, and accuracy over that number."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pflbench.errors import NothingYet
from pflbench.report import labels, style, web
from pflbench.report.arrangement import Arranged, Row, protocol
from pflbench.report.layout import Sheet, lettered
from pflbench.report.web import Interactive, Json
from pflbench.store.runs import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST = 3  # sweeps side by side on a page


@dataclass(frozen=True)
class Sweep:
    """values[k] is the number in the setting columns[k]; `title` is what all settings of the sweep have in common."""

    title: str
    values: tuple[float, ...]
    columns: tuple[int, ...]


@dataclass(frozen=True)
class Measure:
    """What is drawn over a sweep: the axis label; what a run counts for, None for nothing; whether the axis begins at 0."""

    label: str
    of: Callable[[Result], float | None]
    from_zero: bool = False


@dataclass(frozen=True)
class SweepLine:
    """One method over a sweep: mean, minimum and maximum over its runs at each x, and which these are."""

    row: Row
    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    runs: tuple[tuple[int, ...], ...]


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
    """The same, by setting; none where no two differ in that alone."""
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
    return Sweep(", ".join(part for part in heads[0] if all(part in head for head in heads)), values, columns)


def rows(found: Arranged, sweep: Sweep) -> list[int]:
    """The methods with runs at two values or more: one is no line."""
    return [i for i in range(len(found.rows)) if sum((i, j) in found.cells for j in sweep.columns) > 1]


def lines(found: Arranged, sweep: Sweep, measure: Measure) -> list[SweepLine]:
    """A line per method that has two values or more."""
    made = []
    for i in rows(found, sweep):
        at = {}
        for value, j in zip(sweep.values, sweep.columns, strict=True):
            measured = {run.id: m for run in found.cells.get((i, j), ()) if (m := measure.of(run)) is not None}
            if measured:
                each = measured.values()
                at[value] = (float(np.mean(list(each))), min(each), max(each), tuple(measured))
        if at:
            mean, low, high, runs = zip(*at.values(), strict=True)
            made.append(SweepLine(found.rows[i], tuple(at), mean, low, high, runs))
    return made


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
    runs, protocol = of_all(found, drawn)
    with style.context():
        made = [[lines(found, sweep, measure) for sweep in drawn] for measure in measures]
        shown = [row for row in found.rows if any(line.row == row for panels in made for panel in panels for line in panel)]
        sheet = Sheet(len(measures) * len(drawn), len(drawn), 1.5, measures=len(measures))
        for k, ax in enumerate(sheet.axes):
            which, column = divmod(k, len(drawn))
            _draw_panel(ax, made[which][column], drawn[column].values)
            label = x if isinstance(x, str) else x[column]
            ax.set_xlabel(label if which == len(measures) - 1 else "")
            ax.set_ylabel(measures[which].label if sheet.left(k) else "")
            if measures[which].from_zero:
                ax.set_ylim(bottom=0)
        sheet.name(titles or [_short(found, sweep, drawn) for sweep in drawn])
        sheet.key([row.look.line for row in shown], [row.label for row in shown])
        return style.Drawing(sheet.finish(), caption, (*found.notes, *notes), runs, protocol)


def _short(found: Arranged, sweep: Sweep, drawn: Sequence[Sweep]) -> str:
    """Dataset and partition, where all have the same, and what tells apart sweeps that share them."""
    parts = {other.title: other.title.split(", ") for other in drawn}

    def head(of: Sweep) -> list[str]:
        return [part for part in found.settings[of.columns[0]].head[:2] if part in parts[of.title]]

    same = [other for other in drawn if head(other) == head(sweep)]
    rest = [part for part in parts[sweep.title] if not all(part in parts[other.title] for other in same)]
    return ", ".join((*head(sweep), *rest))


def _draw_panel(ax: Axes, drawn: Sequence[SweepLine], values: Sequence[float]) -> None:
    for line in drawn:
        look = line.row.look.line
        ax.plot(line.x, line.mean, label=line.row.label, **look)
        if line.low != line.high:
            ax.vlines(line.x, line.low, line.high, color=look["color"], linewidth=0.8)
    style.values(ax, values)


def of_all(found: Arranged, drawn: Sequence[Sweep]) -> tuple[tuple[int, ...], str]:
    """The runs that these sweeps show, and what all of their settings have in common."""
    cells = {(i, j) for sweep in drawn for i in rows(found, sweep) for j in sweep.columns}
    runs = sorted(run.id for place in cells for run in found.cells.get(place, ()))
    return tuple(runs), protocol([found.settings[j] for j in sorted({j for sweep in drawn for j in sweep.columns})])


def caption(found: Arranged, drawn: Sequence[Sweep]) -> str:
    return f"{lettered([sweep.title for sweep in drawn])}. {remarks(found, drawn)}"


def remarks(found: Arranged, drawn: Sequence[Sweep]) -> str:
    """What lines and bars are, and which methods are left out."""
    shown = {i for sweep in drawn for i in rows(found, sweep)}
    columns = {j for sweep in drawn for j in sweep.columns}
    once = {i for i, j in found.cells if j in columns} - shown
    left_out = f" At one value only, and left out: {', '.join(found.rows[i].label for i in sorted(once))}." if once else ""
    return f"Lines: mean over runs; bars: minimum to maximum.{left_out}"


def page(found: Arranged, of: Sweep, measure: Measure, *, name: str, x: str, caption: str, over: str = "") -> Interactive:
    """A sweep as a figure for a page. over: for the title, where one setting may have several figures."""
    runs, common = of_all(found, [of])
    ticks = web.numbers(of.values)
    across = web.axis(x, type="log", tickmode="array", tickvals=ticks, ticktext=[f"{value:g}" for value in of.values])
    up = web.axis(measure.label, rangemode="tozero" if measure.from_zero else "normal")
    return web.make(
        name,
        f"{of.title}: {web.without_unit(measure.label)}{over}",
        f"{caption} {common}",
        [_trace(line, measure) for line in lines(found, of, measure)],
        web.layout(across, up, legend=True),
        notes=found.notes,
        runs=runs,
    )


def _trace(line: SweepLine, measure: Measure) -> Json:
    label = web.text(line.row.label)
    places = ".2f" if measure.label.endswith("(%)") else ".3f"
    between = f"%{{customdata[0]:{places}}} to %{{customdata[1]:{places}}}"
    told = [
        [*web.numbers([low, high]), web.of_runs(runs)] for low, high, runs in zip(line.low, line.high, line.runs, strict=True)
    ]
    return {
        "type": "scatter",
        "name": label,
        "legendgroup": line.row.label,
        "x": web.numbers(line.x),
        "y": web.numbers(line.mean),
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": web.numbers(high - mean for high, mean in zip(line.high, line.mean, strict=True)),
            "arrayminus": web.numbers(mean - low for low, mean in zip(line.low, line.mean, strict=True)),
            "thickness": 1.2,
            "width": 0,
        },
        "customdata": told,
        "hovertemplate": (
            f"<b>{label}</b><br>%{{xaxis.title.text}}: %{{x}}<br>%{{yaxis.title.text}}: %{{y:{places}}} ({between})"
            "<br>%{customdata[2]}<extra></extra>"
        ),
        **web.line(line.row),
    }
