"""The way of one client's model in the plane of its principal components, as in Figure 4 of the FedALA paper.

Every round goes from the model that local training starts from to the one it ends with; the client's loss are contours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import Engine

from pflbench.report import style, web
from pflbench.report.arrangement import Arranged, protocol, short
from pflbench.report.figures.trajectory import numbers
from pflbench.report.figures.trajectory.numbers import CLIENT, Matrix, Paths, Plane
from pflbench.report.layout import Sheet, small
from pflbench.report.selection import Filters, Observed, spread
from pflbench.report.web import Interactive, Json
from pflbench.store import arrays

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 13  # rounds with an arrow: more hide each other
BOX: dict[str, Any] = {"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.5}
# Of a label and of the ways to put it, in widths of the paths.
LABEL = np.array([0.4, 0.08])
SIDES = tuple(np.array([x, y]) for x in (0.0, 0.28, -0.28) for y in (0.14, -0.14, 0.24, -0.24))
HEIGHT = 520  # on a page, pixels
WITHOUT_SURFACE = "Without the loss surface: `pflbench plot trajectory --surface` computes it, once, and keeps it."
# On a page, darker on a light one and lighter on a dark one where the loss is larger.
SHADE = [[0, "rgba(128,128,128,0.02)"], [1, "rgba(128,128,128,0.35)"]]


def plot(engine: Engine, filters: Filters = Filters(), *, client: int = CLIENT) -> style.Drawing:
    """The paths of all chosen methods in one plane, with the surface if it was computed. UserError where none were kept."""
    found = numbers.paths(engine, filters, client=client)
    flat = numbers.plane(found)
    surface = numbers.stored_surface(engine, found, flat)
    setting = found.seen[0].setting
    notes = () if surface is not None else ("Without the loss surface: add --surface to compute it, once, and keep it.",)
    with style.context():
        figure = _draw(found, flat, surface)
        return style.Drawing(figure, caption(found, flat, surface is not None), notes, found.runs, protocol([setting]))


def caption(found: Paths, flat: Plane, surface: bool) -> str:
    contours = " Contours: its mean loss on all of its training data at points of the plane." if surface else ""
    return (
        f"Local model of client {found.client} in rounds {found.rounds[0]} to {found.rounds[-1]}: {found.seen[0].setting.title}, "
        f"{' and '.join(one.row.label for one in found.seen)}, seed {found.seen[0].run.seed}. Plane: the two principal "
        f"components of all models shown ({100 * flat.explained[0]:.0f} % and {100 * flat.explained[1]:.0f} % of their "
        f"variance). Arrows: local training, from a circle to a square, {_thinned(found)}; thin lines: all of the way; numbers: "
        f"the first and the last round. Where paths coincide, the later method covers the earlier.{contours}"
    )


def _thinned(found: Paths) -> str:
    every = len(found.rounds) <= SHOWN
    return "in each round" if every else f"in {SHOWN} of the {len(found.rounds)} rounds, evenly spaced, and where ALA begins"


def shown(rounds: Sequence[int], begins: int | None) -> list[int]:
    """The places of the rounds that have arrows: at most SHOWN, evenly spaced, and that in which ALA begins."""
    places = set(spread(range(len(rounds)), SHOWN))
    return sorted(places | {rounds.index(begins)} if begins in rounds else places)


def _draw(found: Paths, flat: Plane, surface: Matrix | None) -> Figure:
    sheet = Sheet(1, 1, 2.3)
    (ax,) = sheet.axes
    if surface is not None:
        _contours(ax, surface)
    ax.update_datalim(flat.at.reshape(-1, 2))
    ax.autoscale_view()
    for one, at in zip(found.seen, flat.at, strict=True):
        _path(ax, one, found.rounds, at)
        _beginning(ax, one, found.rounds, at, flat)
    ax.set_xlabel("First principal component")
    ax.set_ylabel("Second principal component", labelpad=1)
    ax.grid(visible=False)
    sheet.name([f"{', '.join(found.seen[0].setting.head[:2])}, client {found.client}"])
    plain: dict[str, Any] = {"color": "#666666", "linestyle": "", "markersize": 3.5}
    looks = [{"color": one.row.look.colour, "linewidth": 1.1} for one in found.seen]
    start, end = {**plain, "marker": "o", "markerfacecolor": "white"}, {**plain, "marker": "s"}
    sheet.key([*looks, start, end], [*short([one.row for one in found.seen]), "start of a round", "end of a round"])
    return sheet.finish()


def _path(ax: Axes, one: Observed, rounds: Sequence[int], at: Matrix) -> None:
    """at [rounds, 2, 2]: arrows for local training; thin lines for all of it, with what aggregation and initialisation do."""
    from matplotlib.patches import FancyArrowPatch

    colour, begins = one.row.look.colour, one.row.hyperparameters.get("start_round")
    line, seen = at.reshape(-1, 2), at[shown(rounds, begins)]
    ax.plot(line[:, 0], line[:, 1], color=colour, linewidth=0.4, alpha=1 if len(seen) == len(at) else 0.4)
    look: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 6, "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0}
    for start, end in seen:
        ax.add_patch(FancyArrowPatch(start, end, color=colour, zorder=2.5, **look))
    mark: dict[str, Any] = {"color": colour, "markersize": 2.5, "linestyle": "", "zorder": 3}
    ax.plot(seen[:, 0, 0], seen[:, 0, 1], marker="o", markerfacecolor="white", **mark)
    ax.plot(seen[:, 1, 0], seen[:, 1, 1], marker="s", **mark)
    for t, where in ((rounds[0], at[0, 0]), (rounds[-1], at[-1, 1])):
        ax.annotate(f"{t}", where, xytext=(3, 3), textcoords="offset points", fontsize=small(), bbox=BOX, zorder=4)


def _beginning(ax: Axes, one: Observed, rounds: Sequence[int], at: Matrix, flat: Plane) -> None:
    """A label where ALA begins, if that is in between: on the side where it hides least of the paths."""
    begins = one.row.hyperparameters.get("start_round")
    if begins not in rounds[1:]:
        return
    here = at[rounds.index(begins), 0]
    span = np.ptp(flat.at.reshape(-1, 2), axis=0)
    between = np.linspace(0, 1, 9)[:, None]
    steps = [(a, b) for path in flat.at.reshape(len(flat.at), -1, 2) for a, b in pairwise(path)]
    drawn = np.concatenate([a + between * (b - a) for a, b in steps])
    low, high = np.array([ax.get_xlim(), ax.get_ylim()]).T

    def hidden(side: Matrix) -> tuple[bool, float]:
        """Whether the label leaves the panel, and how much of the paths it hides."""
        centre = here + side * span
        outside = bool(((centre - LABEL * span / 2 < low) | (centre + LABEL * span / 2 > high)).any())
        return outside, float((np.abs(drawn - centre) < LABEL * span / 2).all(axis=1).sum())

    x, y = here + min(SIDES, key=hidden) * span
    ax.annotate(
        f"ALA from round {begins}", here, xytext=(x, y), ha="center", va="center", fontsize=small(), bbox=BOX, zorder=4,
        arrowprops={"arrowstyle": "-", "linewidth": 0.5},
    )  # fmt: skip


def _contours(ax: Axes, surface: Matrix) -> None:
    x, y, loss = np.moveaxis(surface, -1, 0)
    levels, _ = numbers.levels(surface)
    filled = ax.contourf(x, y, loss, levels=levels, cmap="Greys", alpha=0.6)
    ax.contour(x, y, loss, levels=levels, colors="#999999", linewidths=0.3)
    bar = ax.figure.colorbar(filled, cax=ax.inset_axes((1.03, 0, 0.035, 1)))
    bar.set_ticks(levels[::3].tolist(), labels=[f"{level:.2g}" for level in levels[::3]])
    bar.set_label("Loss", labelpad=1)
    bar.ax.tick_params(labelsize=small(), pad=1)


def page(engine: Engine, filters: Filters, most: int | None = None) -> list[Interactive]:
    """Of every client that was followed; of several seeds that with the most runs. Raises UserError when there are no runs."""
    found = filters.select(engine)
    panels, left_out = web.possible(_followed(engine, found)[:most], partial(_panel, engine))
    return [_page(*panel, notes=(*found.notes, *left_out)) for panel in panels]


def _followed(engine: Engine, found: Arranged) -> list[tuple[list[Observed], int]]:
    """Runs that are drawn together, and the client."""
    runs = [run.id for cell in found.cells.values() for run in cell]
    kept = arrays.names(engine, runs, numbers.PREFIX)
    clients = sorted(int(name.removeprefix(numbers.PREFIX)) for name in kept)
    return [(seen, client) for client in clients for seen in numbers.together(engine, found, client)]


def _panel(engine: Engine, of: tuple[list[Observed], int]) -> tuple[Paths, Plane, Matrix | None]:
    """Without the models themselves, which are large."""
    paths = numbers.load(engine, *of)
    plane = numbers.plane(paths)
    return replace(paths, models=paths.models[..., :0]), plane, numbers.stored_surface(engine, paths, plane)


def _page(paths: Paths, plane: Plane, surface: Matrix | None, notes: tuple[str, ...]) -> Interactive:
    first = paths.seen[0]
    traces = [trace for one, at in zip(paths.seen, plane.at, strict=True) for trace in _traces(one, paths.rounds, at)]
    share = [f"{100 * part:.0f} % of the variance" for part in plane.explained]
    return web.make(
        "trajectory",
        f"{first.setting.title}: client {paths.client}",
        f"{caption(paths, plane, surface is not None)} {protocol([first.setting])}",
        [*([] if surface is None else [_surface(surface)]), *traces],
        web.layout(
            web.axis(f"First principal component ({share[0]})", showgrid=False),
            web.axis(f"Second principal component ({share[1]})", showgrid=False),
            legend=True,
            height=HEIGHT,
            annotations=[label for one, at in zip(paths.seen, plane.at, strict=True) for label in _note(one, paths.rounds, at)],
        ),
        notes=(*notes, WITHOUT_SURFACE if surface is None else _scale(surface)),
        runs=paths.runs,
    )


def _traces(one: Observed, rounds: tuple[int, ...], at: Matrix) -> list[Json]:
    """at [rounds, 2, 2]: thick steps for local training, thin ones for what aggregation and local initialisation do after it."""
    colour, group = web.colour(one.row), {"type": "scatter", "name": web.text(one.row.label), "legendgroup": one.row.label}
    apart = np.concatenate([at, np.full_like(at[:, :1], np.nan)], axis=1)
    return [
        {
            **group,
            **_points(at),
            "mode": "lines",
            "line": {"color": colour, "width": 1},
            "showlegend": False,
            "hoverinfo": "skip",
        },
        {**group, **_points(apart), "mode": "lines", "line": {"color": colour, "width": 2.5}, "hoverinfo": "skip"},
        _marks(group, one, rounds, at[:, 0], "start", {"symbol": "circle-open", "color": colour, "size": 7}),
        _marks(group, one, rounds, at[:, 1], "end", {"symbol": "square", "color": colour, "size": 6}),
        _ends(group, rounds, at),
    ]


def _marks(group: Json, one: Observed, rounds: tuple[int, ...], at: Matrix, what: str, marker: Json) -> Json:
    said = f"<b>{group['name']}</b>, round %{{customdata}}<br>{what} of local training<br>run {one.run.id}<extra></extra>"
    more = {"mode": "markers", "marker": marker, "customdata": list(rounds), "hovertemplate": said, "showlegend": False}
    return {**group, **_points(at), **more}


def _ends(group: Json, rounds: tuple[int, ...], at: Matrix) -> Json:
    """The first and the last round."""
    texts = [str(rounds[0]), str(rounds[-1])]
    more = {"mode": "text", "text": texts, "textposition": "top right", "showlegend": False, "hoverinfo": "skip"}
    return {**group, **_points(at[[0, -1], [0, 1]]), **more}


def _note(one: Observed, rounds: tuple[int, ...], at: Matrix) -> list[Json]:
    """A label where ALA begins, if that is in between."""
    begins = one.row.hyperparameters.get("start_round")
    if begins not in rounds[1:]:
        return []
    x, y = web.numbers(at[rounds.index(begins), 0])
    look = {"arrowcolor": web.GREY, "arrowwidth": 1, "arrowhead": 0, "ax": 60, "ay": -40}
    return [{"x": x, "y": y, "text": f"ALA from round {begins}", **look}]


def _points(at: Matrix) -> Json:
    """at [..., 2]"""
    x, y = at.reshape(-1, 2).T
    return {"x": web.numbers(x), "y": web.numbers(y)}


def _surface(surface: Matrix) -> Json:
    """Without a colour bar: Plotly's has no room for colours that let the page through."""
    loss = surface[..., 2]
    levels, logarithmic = numbers.levels(surface)
    drawn, at = (np.log10(loss), np.log10(levels)) if logarithmic else (loss, levels)
    return {
        "type": "contour",
        "x": web.numbers(surface[0, :, 0]),
        "y": web.numbers(surface[:, 0, 1]),
        "z": [web.numbers(row) for row in drawn],
        "customdata": [web.numbers(row) for row in loss],
        "contours": {"start": float(at[0]), "end": float(at[-1]), "size": float(at[1] - at[0])},
        "colorscale": SHADE,
        "showscale": False,
        "line": {"color": web.GREY, "width": 0.5},
        "hovertemplate": "loss %{customdata:.4g}<extra></extra>",
    }


def _scale(surface: Matrix) -> str:
    """The contours' values in words."""
    levels, logarithmic = numbers.levels(surface)
    apart = f"{levels[1] / levels[0]:.3g} times" if logarithmic else f"{levels[1] - levels[0]:.3g} more than"
    return f"Contours: loss from {levels[0]:.3g} to {levels[-1]:.3g}, each {apart} the one before."
