"""Accuracy over rounds, or over what they cost: a panel per setting, a line per method with a band over its seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Literal

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report import baselines, labels, render, style, web
from pflbench.report import references as pfllib
from pflbench.report.arrangement import Arranged, Row, busiest
from pflbench.report.looks import OTHER, Look
from pflbench.report.references import ReferenceLine
from pflbench.report.selection import BEST, Filters, measured
from pflbench.report.traces import GREY, Axis, Panel, Trace, lettered, run_numbers
from pflbench.report.web import Interactive
from pflbench.store import measures, rounds
from pflbench.store.rounds import Curve
from pflbench.store.runs import Budget, Measure, RoundRule

Band = Literal["minmax", "std"]
OVER: dict[Measure, tuple[str, str]] = {  # what the caption says, and the x axis, with the prefix of its unit
    "rounds": ("training rounds", "Round"),
    "seconds": ("training time, evaluation excluded", "Training time (s)"),
    "bytes": ("the bytes that all clients together sent and received", "Sent and received ({}B)"),
    "flops": ("the FLOPs of reception and update of all clients together", "Computed ({}FLOP)"),
}
BANDS: dict[Band, str] = {"minmax": "minimum to maximum", "std": "mean ± population std"}

# More cannot be seen: a panel in print is at most 1,000 dots wide, and noise between neighbours is what the band shows.
POINTS = 200
MARKERS = 6  # to a line
MARGIN = 0.05  # of the height of a panel that has limits, above the highest line
FLOOR = Look(GREY, "o", 0, 3)


def plot(
    engine: Engine,
    filters: Filters = Filters(),
    *,
    over: Measure = "rounds",
    band: Band = "minmax",
    references: bool = False,
    metric: str | None = None,
    y_min: float | None = None,
) -> style.Drawing:
    """The curves of the settings chosen by dataset or partition, else of the four settings with the most runs.

    references: with PFLlib's series on the same datasets. metric: one of `measures.TITLES` instead of accuracy. y_min: where
    the y axis begins, in percent. Raises UserError when there are no runs, series or measures, and when all is below y_min.
    """
    if references and over != "rounds":
        raise UserError("Reference series have no costs.", "Draw them over rounds: --over rounds.")
    if metric and (references or over != "rounds"):
        raise UserError(f"--metric excludes --references and --over {over}.", "Leave one of them out.")
    # Without a limit: of runs that measured what they spent.
    rule = BEST if over == "rounds" else RoundRule(at=Budget(over, math.inf))
    found = filters.select(engine, rule) if metric is None else measured(engine, filters, metric)
    found, chosen, colours = render.chosen_settings(found, filters)
    datasets = [labels.dataset_label(found.settings[j].spec) for j in chosen]
    known = pfllib.lines(engine, set(datasets), filters.methods) if references else {}
    drawn = [
        panel(engine, found, j, over, band, known.get(dataset, ()), metric=metric)
        for j, dataset in zip(chosen, datasets, strict=True)
    ]
    if y_min is not None:
        drawn = _from(y_min, drawn)
    dashed = [line for dataset in dict.fromkeys(datasets) for line in known.get(dataset, ())]
    said = caption(found, chosen, over, band, metric) + colours + _floor_said(drawn)
    if dashed:
        said += f" {pfllib.caption(dashed)}"
    return render.of_settings(found, _in_one_unit(drawn), said)


def page(engine: Engine, filters: Filters, most: int | None = None) -> list[Interactive]:
    """Curves of the `most` settings with the most runs, or of all. Raises UserError without runs."""
    found = filters.select(engine)
    made = []
    for j in busiest(found, most):
        drawn = panel(engine, found, j, seconds=True)
        said = caption(found, [j], "rounds", "minmax") + _floor_said([drawn])
        made.append(web.figure("curves", drawn, said, found.notes))
    return made


def panel(
    engine: Engine,
    found: Arranged,
    column: int,
    over: Measure = "rounds",
    band: Band = "minmax",
    references: Sequence[ReferenceLine] = (),
    *,
    seconds: bool = False,
    metric: str | None = None,
) -> Panel:
    """The curves of a setting, with the majority class. seconds: show the times on hover, if the x axis has rounds."""
    cells = found.column(column)
    ids = [run.id for _, cell in cells for run in cell]
    setting = found.settings[column]
    if metric is None:
        spent: Measure | None = over if over != "rounds" else "seconds" if seconds else None
        curves = rounds.curves(engine, ids, points=POINTS, spent=spent)
    else:
        curves = measures.curves(engine, ids, metric)
    lines = [
        line(row, {run.id: curves[run.id] for run in cell if run.id in curves}, over, band, k / len(cells))
        for k, (row, cell) in enumerate(cells)
    ]
    last = max((line.x[-1] for line in lines if len(line.x)), default=0)
    others = [line.trace(last) for line in references]
    floor = baselines.majority(engine, setting, metric)
    if floor is not None:
        hover = f"{floor:.2f} %"
        others.append(Trace([0, last], [floor, floor], FLOOR, baselines.MAJORITY, "lines", width=0.9, hover=hover))
    across = Axis(OVER[over][1], whole=over == "rounds")
    return Panel(setting.title, across, Axis(f"Test {_measured(metric)} (%)"), [*lines, *others], tuple(ids), (setting,))


def _floor_said(panels: Sequence[Panel]) -> str:
    there = any(trace.label == baselines.MAJORITY for panel in panels for trace in panel.traces)
    return f" {baselines.MAJORITY_SAID}" if there else ""


def _from(y_min: float, panels: Sequence[Panel]) -> list[Panel]:
    """The panels with one y axis that begins at y_min, without a majority class below it. Raises UserError if all is below."""
    highest = max(float(np.max(trace.y, initial=0)) for panel in panels for trace in panel.traces)
    if not -math.inf < y_min < highest:
        raise UserError(f"--y-min {y_min:g} leaves nothing to draw.", f"The highest value is {highest:.2f} %.")
    shown = (y_min, highest + MARGIN * (highest - y_min))
    return [replace(panel, y=replace(panel.y, limits=shown), traces=_without_floor(panel.traces, y_min)) for panel in panels]


def _without_floor(traces: Sequence[Trace], y_min: float) -> list[Trace]:
    return [trace for trace in traces if trace.label != baselines.MAJORITY or np.max(trace.y) >= y_min]


def _in_one_unit(panels: Sequence[Panel]) -> list[Panel]:
    """The panels with a prefix for the unit of their x axes, if it takes one."""
    largest = max(float(np.max(trace.x, initial=0)) for panel in panels for trace in panel.traces)
    prefix, factor = labels.prefix(largest) if "{}" in panels[0].x.label else ("", 1)
    return [
        replace(
            panel,
            x=replace(panel.x, label=panel.x.label.format(prefix)),
            traces=[replace(trace, x=np.asarray(trace.x) / factor) for trace in panel.traces],
        )
        for panel in panels
    ]


def line(
    row: Row, curves: dict[int, Curve], over: Measure = "rounds", band: Band = "minmax", offset: float = 0, unit: str = "round"
) -> Trace:
    """Mean over the runs of a method, accuracy in percent.

    Over the rounds at which all runs were evaluated, so that no step in the mean comes from an unfinished run's end.
    offset: of the markers, so that those of different lines stay apart where curves meet. unit: of x, where it is no time.
    """
    shared = reduce(np.intersect1d, (curve.round for curve in curves.values()))
    at = {run: np.searchsorted(curve.round, shared) for run, curve in curves.items()}
    accuracy = 100 * np.stack([curve.accuracy[at[run]] for run, curve in curves.items()])
    each = [curve.spent[at[run]] for run, curve in curves.items() if curve.spent is not None]
    spent = np.mean(each, axis=0) if each else None
    mean, std = accuracy.mean(axis=0), accuracy.std(axis=0)
    low, high = (mean - std, mean + std) if band == "std" else (accuracy.min(axis=0), accuracy.max(axis=0))
    hover, data, several = f"{unit} %{{x}}: %{{y:.2f}} %", [], len(curves) > 1
    if several:
        hover += " (%{customdata[0]:.2f} to %{customdata[1]:.2f})"
        data += [low, high]
    if over == "rounds" and spent is not None and np.isfinite(spent).all() and spent.any():
        hover += f"<br>%{{customdata[{len(data)}]:,.1f}} s of training"
        data += [spent]
    step = max(1, len(shared) // MARKERS)
    return Trace(
        shared.astype(np.float64) if over == "rounds" or spent is None else spent,
        mean,
        row.look,
        row.label,
        draws="lines" if row.look == OTHER else "lines+markers",
        low=low if several else None,
        high=high if several else None,
        every=(int(offset * step), step),
        hover=f"{hover}<br>{run_numbers(tuple(curves))}",
        data=list(zip(*data, strict=True)),
    )


def _measured(metric: str | None) -> str:
    return "accuracy" if metric is None else measures.TITLES[metric] if metric == "auc" else measures.TITLES[metric].lower()


def caption(found: Arranged, columns: Sequence[int], over: Measure, band: Band, metric: str | None = None) -> str:
    return f"Test {_measured(metric)}, pooled over clients, over {OVER[over][0]}: {settings_and_runs(found, columns, band)}"


def settings_and_runs(found: Arranged, columns: Sequence[int], band: Band = "minmax") -> str:
    """The end of a caption: the settings, how many runs they have, and what lines and bands are."""
    counts = {len(cell) for (_, j), cell in found.cells.items() if j in columns}
    shaded = f" Lines: mean; bands: {BANDS[band]} over the runs." if max(counts) > 1 else ""
    return f"{lettered([found.settings[j].title for j in columns])}. {labels.between(counts, 'run')} per method.{shaded}"
