"""Accuracy over rounds or seconds: a panel per setting, a line per method with a band over its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Literal

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import UserError, unknown
from pflbench.report import labels, style, web
from pflbench.report import references as pfllib
from pflbench.report.arrangement import Arranged, Row, SharedSetting, busiest, protocol, titles
from pflbench.report.layout import Sheet, lettered
from pflbench.report.references import ReferenceLine
from pflbench.report.selection import Filters
from pflbench.report.web import Interactive, Json
from pflbench.store import rounds
from pflbench.store.arrays import Floats
from pflbench.store.rounds import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

X = Literal["round", "seconds"]
Band = Literal["minmax", "std"]
XS: dict[X, str] = {"round": "Round", "seconds": "Training time (s)"}
BANDS: dict[Band, str] = {"minmax": "minimum to maximum", "std": "mean ± population std"}

# More cannot be seen: a panel in print is at most 1,000 dots wide, and noise between neighbours is what the band shows.
POINTS = 200
MARKERS = 8  # to a line, on a page


@dataclass(frozen=True)
class MeanCurve:
    """Mean over the runs of a method, accuracy in percent; `low` and `high` bound the band. All of one length.

    seconds: training time up to each point, evaluation excluded, mean over the runs; None where it was not asked for.
    """

    row: Row
    x: Floats
    mean: Floats
    low: Floats
    high: Floats
    runs: tuple[int, ...]
    seconds: Floats | None = None


@dataclass(frozen=True)
class CurvesPanel:
    setting: SharedSetting
    lines: tuple[MeanCurve, ...]
    references: tuple[ReferenceLine, ...] = ()


def plot(
    engine: Engine, filters: Filters = Filters(), *, x: X = "round", band: Band = "minmax", references: bool = False
) -> style.Drawing:
    """The curves of the settings chosen by dataset or partition, else of the four settings with the most runs.

    references: with PFLlib's series on the same datasets. Raises UserError for unknown names, when there are no runs, and
    when there are no such series.
    """
    for kind, name, valid in (("x axis", x, XS), ("band", band, BANDS)):
        if name not in valid:
            raise unknown(kind, name, valid)
    if references and x != "round":
        raise UserError("Reference series have no times.", "Draw them over rounds: --x round.")
    found = filters.select(engine)
    most = style.PANELS_CHOSEN if filters.datasets or filters.partitions else style.PANELS_UNASKED
    drawn = panels(engine, found, x=x, band=band, most=most)
    if references:
        drawn = _with_references(engine, drawn, filters.methods)
    notes = list(found.notes)
    if len(found.settings) > len(drawn):
        notes.append(
            f"Drawn: the {len(drawn)} settings with the most runs, of {len(found.settings)}. "
            "Choose with --dataset and --partition."
        )
    shown = [panel.setting for panel in drawn]
    runs = {run.id for (_, j), cell in found.cells.items() if found.settings[j] in shown for run in cell}
    with style.context():
        figure = _draw(drawn, found.rows, x)
        return style.Drawing(figure, caption(drawn, x, band), tuple(notes), tuple(sorted(runs)), protocol(shown))


def panels(engine: Engine, found: Arranged, *, x: X, band: Band, most: int | None, seconds: bool = False) -> list[CurvesPanel]:
    """The figure's numbers, for the `most` settings with the most runs, in the order of the settings.

    seconds: whether the lines need their times, too, where they are drawn over rounds.
    """
    return [_panel(engine, found, j, x, band, seconds or x == "seconds") for j in busiest(found, most)]


def _panel(engine: Engine, found: Arranged, column: int, x: X, band: Band, seconds: bool) -> CurvesPanel:
    cells = {i: [run.id for run in runs] for (i, j), runs in sorted(found.cells.items()) if j == column}
    ids = [run for runs in cells.values() for run in runs]
    curves = rounds.curves(engine, ids, points=POINTS, seconds=seconds)
    setting = found.settings[column]
    if x == "seconds" and not any(curve.seconds is not None and curve.seconds[-1] > 0 for curve in curves.values()):
        raise UserError(f"The runs of {setting.title} have no recorded times.", "Draw them over rounds: --x round.")
    lines = [_line(found.rows[i], {run: curves[run] for run in runs if run in curves}, x, band) for i, runs in cells.items()]
    return CurvesPanel(setting, tuple(lines))


def _line(row: Row, curves: dict[int, Curve], x: X, band: Band) -> MeanCurve:
    """Over the rounds at which all runs were evaluated, so that no step in the mean comes from an unfinished run's end."""
    shared = reduce(np.intersect1d, (curve.round for curve in curves.values()))
    at = {run: np.searchsorted(curve.round, shared) for run, curve in curves.items()}
    accuracy = 100 * np.stack([curve.accuracy[at[run]] for run, curve in curves.items()])
    spent = [curve.seconds[at[run]] for run, curve in curves.items() if curve.seconds is not None]
    seconds = np.mean(spent, axis=0) if spent else None
    mean = accuracy.mean(axis=0)
    if band == "std":
        std = accuracy.std(axis=0)
        low, high = mean - std, mean + std
    else:
        low, high = accuracy.min(axis=0), accuracy.max(axis=0)
    over = shared.astype(np.float64) if x == "round" or seconds is None else seconds
    return MeanCurve(row, over, mean, low, high, tuple(curves), seconds)


def _with_references(engine: Engine, drawn: Sequence[CurvesPanel], methods: Sequence[str]) -> list[CurvesPanel]:
    on = [labels.dataset_label(panel.setting.spec) for panel in drawn]
    known = pfllib.lines(engine, set(on), methods)
    return [
        replace(panel, references=tuple(line.until(max(own.x[-1] for own in panel.lines)) for line in known.get(dataset, ())))
        for panel, dataset in zip(drawn, on, strict=True)
    ]


def _draw(drawn: Sequence[CurvesPanel], rows: Sequence[Row], x: X) -> Figure:
    columns = 1 if len(drawn) == 1 else 2 if len(drawn) in (2, 4) else 3
    shown = [row for row in rows if any(line.row == row for panel in drawn for line in panel.lines)]
    sheet = Sheet(len(drawn), columns, 1.75 if columns < 3 else 1.4)
    for k, (ax, panel) in enumerate(zip(sheet.axes, drawn, strict=True)):
        _draw_panel(ax, panel)
        if x == "round":
            style.whole(ax.xaxis)
        ax.set_xlabel(XS[x] if sheet.bottom(k) else "")
        ax.set_ylabel("Test accuracy (%)" if sheet.left(k) else "")
    sheet.name(titles([panel.setting for panel in drawn]))
    dashed = {line.label: line.look for panel in drawn for line in panel.references}
    sheet.key([*(row.look.line for row in shown), *dashed.values()], [*(row.label for row in shown), *dashed])
    return sheet.finish()


def _draw_panel(ax: Axes, panel: CurvesPanel) -> None:
    for k, line in enumerate(panel.lines):
        look = line.row.look.line
        step = max(1, len(line.x) // 6)
        # Markers of different lines sit at different places, so that they stay apart where curves meet.
        offset = (k * step) // max(1, len(panel.lines))
        ax.plot(line.x, line.mean, markevery=(offset, step), label=line.row.label, **look)
        if len(line.runs) > 1:
            ax.fill_between(line.x, line.low, line.high, color=look["color"], alpha=0.18, linewidth=0)
    for reference in panel.references:
        step = max(1, len(reference.round) // 6)
        ax.plot(reference.round, reference.accuracy, markevery=(step // 2, step), label=reference.label, **reference.look)
    ax.margins(x=0.02)


def caption(drawn: Sequence[CurvesPanel], x: X, band: Band) -> str:
    counts = {len(line.runs) for panel in drawn for line in panel.lines}
    over = "training rounds" if x == "round" else "training time, evaluation excluded"
    shaded = f" Lines: mean; bands: {BANDS[band]} over the runs." if max(counts) > 1 else ""
    settings = lettered([panel.setting.title for panel in drawn])
    dashed = [line for panel in drawn for line in panel.references]
    others = f" {pfllib.caption(dashed)}" if dashed else ""
    runs = labels.between(counts, "run")
    return f"Test accuracy, pooled over clients, over {over}: {settings}. {runs} per method.{shaded}{others}"


def page(engine: Engine, filters: Filters, most: int | None = None) -> list[Interactive]:
    """Of so many settings, those with the most runs, or of all. Raises UserError when there are no runs."""
    found = filters.select(engine)
    drawn = panels(engine, found, x="round", band="minmax", most=most, seconds=True)
    return [_page(panel, found.notes) for panel in drawn]


def _page(panel: CurvesPanel, notes: tuple[str, ...]) -> Interactive:
    bands = [_band(line) for line in panel.lines if len(line.runs) > 1]
    last = int(max((line.x[-1] for line in panel.lines if len(line.x)), default=0))
    layout = web.layout(
        web.whole(XS["round"], last, rangemode="tozero"),
        web.axis("Test accuracy (%)"),
        legend=True,
    )
    return web.make(
        "curves",
        panel.setting.title,
        f"{caption([panel], 'round', 'minmax')} {protocol([panel.setting])}",
        [*bands, *map(_trace, panel.lines)],
        layout,
        notes=notes,
        runs=[run for line in panel.lines for run in line.runs],
    )


def _trace(line: MeanCurve) -> Json:
    look = web.line(line.row)
    look["marker"]["maxdisplayed"] = MARKERS
    values, said = _beside(line)
    label = web.text(line.row.label)
    return {
        "type": "scatter",
        "name": label,
        "legendgroup": line.row.label,
        "x": web.numbers(line.x),
        "y": web.numbers(line.mean),
        "customdata": [web.numbers(point) for point in zip(*values, strict=True)],
        "hovertemplate": f"<b>{label}</b><br>round %{{x}}: %{{y:.2f}} %{said}<br>{web.of_runs(line.runs)}<extra></extra>",
        **look,
    }


def _beside(line: MeanCurve) -> tuple[list[Floats], str]:
    """What the hover text says beside round and mean: the numbers, and the text with their places."""
    values: list[Floats] = []
    said = ""
    if len(line.runs) > 1:
        said += " (%{customdata[0]:.2f} to %{customdata[1]:.2f})"
        values += [line.low, line.high]
    if line.seconds is not None and line.seconds.any():
        said += f"<br>%{{customdata[{len(values)}]:,.1f}} s of training"
        values.append(line.seconds)
    return values, said


def _band(line: MeanCurve) -> Json:
    """Along the lowest values and back along the highest."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": web.text(line.row.label),
        "legendgroup": line.row.label,
        "showlegend": False,
        "hoverinfo": "skip",
        "x": web.numbers([*line.x, *line.x[::-1]]),
        "y": web.numbers([*line.low, *line.high[::-1]]),
        "fill": "toself",
        "fillcolor": web.faint(web.colour(line.row)),
        "line": {"width": 0},
    }
