"""The way of one client's model in the plane of its principal components, as in Figure 4 of the FedALA paper.

Every round goes from the model that local training starts from to the one it ends with; the client's loss are contours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import Engine

from pflbench.report import render, style, web
from pflbench.report.arrangement import Arranged, short
from pflbench.report.figures.trajectory import numbers
from pflbench.report.figures.trajectory.numbers import CLIENT, Matrix, Paths, Plane
from pflbench.report.looks import PLUGGED, Look
from pflbench.report.selection import Filters, Observed, spread
from pflbench.report.style import small
from pflbench.report.traces import GREY, Axis, Panel, Trace
from pflbench.report.web import Interactive, Json
from pflbench.store import arrays

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = 13  # rounds with an arrow: more hide each other
BOX: dict[str, Any] = {"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.5}
HEIGHT = 520  # on a page, pixels
WITHOUT_SURFACE = "Without the loss surface: `pflbench plot trajectory --surface` computes it, once, and keeps it."
# On a page, darker on a light one and lighter on a dark one where the loss is larger.
SHADE = [[0, "rgba(128,128,128,0.02)"], [1, "rgba(128,128,128,0.35)"]]


def plot(engine: Engine, filters: Filters = Filters(), *, client: int = CLIENT) -> style.Drawing:
    """The paths of the chosen methods in one plane, with the surface if it was computed. Raises UserError without paths."""
    found = numbers.paths(engine, filters, client=client)
    flat = numbers.plane(found)
    surface = numbers.stored_surface(engine, found, flat)
    notes = () if surface is not None else ("Without the loss surface: add --surface to compute it, once, and keep it.",)
    title = f"{', '.join(found.seen[0].setting.head[:2])}, client {found.client}"
    panel = _panel(found, flat, partial(_draw, found, flat, surface))
    return render.drawing([panel], [title], caption(found, flat, surface is not None), notes, columns=1, height=2.3)


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
    """The indices of rounds with arrows: up to SHOWN, evenly spaced, and the round in which ALA starts."""
    places = set(spread(range(len(rounds)), SHOWN))
    return sorted(places | {rounds.index(begins)} if begins in rounds else places)


def _panel(found: Paths, flat: Plane, draw: Callable[[Axes], None] | None = None) -> Panel:
    """The paths; thick steps are local training, thin ones what aggregation and local initialisation do after it."""
    first = found.seen[0]
    named = short([one.row for one in found.seen])
    return Panel(
        f"{first.setting.title}: client {found.client}",
        Axis("First principal component", grid=False),
        Axis("Second principal component", grid=False),
        [
            *(
                trace
                for one, name, at in zip(found.seen, named, flat.at, strict=True)
                for trace in _path(one, name, found.rounds, at)
            ),
            Trace((), (), Look(GREY, "o", PLUGGED, 0), "start of a round", "markers"),
            Trace((), (), Look(GREY, "s", 0, 0), "end of a round", "markers"),
        ],
        found.runs,
        (first.setting,),
        HEIGHT,
        draw,
    )


def _path(one: Observed, name: str, rounds: Sequence[int], at: Matrix) -> list[Trace]:
    """at [rounds, 2, 2]. The arrows of local training are thick lines on a page, where all rounds are seen by zooming in."""
    colour, places = one.row.look.colour, shown(rounds, one.row.hyperparameters.get("start_round"))
    whole, seen = at.reshape(-1, 2), at[places]
    steps = np.concatenate([seen, np.full_like(seen[:, :1], np.nan)], axis=1).reshape(-1, 2)  # with a gap after each
    hover = f"round %{{customdata[0]}}<br>%{{customdata[1]}} of local training<br>run {one.run.id}"

    def marks(side: int, marker: str, fill: int, what: str) -> Trace:
        data = [(rounds[place], what) for place in places]
        look = Look(colour, marker, fill, 0)
        return Trace(
            seen[:, side, 0], seen[:, side, 1], look, draws="markers", size=2.5, hover=f"{name}, {hover}", data=data, group=name
        )

    line = Look(colour, "o", 0, 0)
    return [
        Trace(whole[:, 0], whole[:, 1], line, draws="lines", width=0.4, opacity=1 if len(seen) == len(at) else 0.4, group=name),
        Trace(steps[:, 0], steps[:, 1], line, name, "lines"),
        marks(0, "o", PLUGGED, "start"),
        marks(1, "s", 0, "end"),
    ]


def _draw(found: Paths, flat: Plane, surface: Matrix | None, ax: Axes) -> None:
    """Contours, heads of arrows and labels."""
    if surface is not None:
        _contours(ax, surface)
    for one, at in zip(found.seen, flat.at, strict=True):
        _arrows(ax, one, found.rounds, at)
        _beginning(ax, one, found.rounds, at, flat)


def _arrows(ax: Axes, one: Observed, rounds: Sequence[int], at: Matrix) -> None:
    from matplotlib.patches import FancyArrowPatch

    look: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 6, "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0}
    for start, end in at[shown(rounds, one.row.hyperparameters.get("start_round"))]:
        ax.add_patch(FancyArrowPatch(start, end, color=one.row.look.colour, zorder=1.9, **look))
    for t, where in ((rounds[0], at[0, 0]), (rounds[-1], at[-1, 1])):
        ax.annotate(f"{t}", where, xytext=(3, 3), textcoords="offset points", fontsize=small(), bbox=BOX, zorder=4)


def _beginning(ax: Axes, one: Observed, rounds: Sequence[int], at: Matrix, flat: Plane) -> None:
    """A label where ALA begins, if that is in between: away from the middle of the paths."""
    begins = one.row.hyperparameters.get("start_round")
    if begins not in rounds[1:]:
        return
    here = at[rounds.index(begins), 0]
    right, up = np.sign(here - flat.at.reshape(-1, 2).mean(axis=0))
    ax.annotate(
        f"ALA from round {begins}", here, xytext=(18 * right, 24 * up), textcoords="offset points", va="center",
        ha="left" if right > 0 else "right", fontsize=small(), bbox=BOX, zorder=4,
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
    panels, left_out = web.possible(_followed(engine, found)[:most], partial(_in_plane, engine))
    return [_page(*panel, notes=(*found.notes, *left_out)) for panel in panels]


def _followed(engine: Engine, found: Arranged) -> list[tuple[list[Observed], int]]:
    """Runs that are drawn together, and the client."""
    runs = [run.id for cell in found.cells.values() for run in cell]
    kept = arrays.names(engine, runs, numbers.PREFIX)
    clients = sorted(int(name.removeprefix(numbers.PREFIX)) for name in kept)
    return [(seen, client) for client in clients for seen in numbers.together(engine, found, client)]


def _in_plane(engine: Engine, of: tuple[list[Observed], int]) -> tuple[Paths, Plane, Matrix | None]:
    """Without the models themselves, which are large."""
    paths = numbers.load(engine, *of)
    plane = numbers.plane(paths)
    return replace(paths, models=paths.models[..., :0]), plane, numbers.stored_surface(engine, paths, plane)


def _page(paths: Paths, plane: Plane, surface: Matrix | None, notes: tuple[str, ...]) -> Interactive:
    return web.figure(
        "trajectory",
        _panel(paths, plane),
        caption(paths, plane, surface is not None),
        (*notes, WITHOUT_SURFACE if surface is None else _scale(surface)),
        data=[] if surface is None else [_surface(surface)],
        annotations=[label for one, at in zip(paths.seen, plane.at, strict=True) for label in _labels(one, paths.rounds, at)],
    )


def _labels(one: Observed, rounds: tuple[int, ...], at: Matrix) -> list[Json]:
    """The first and the last round, and where ALA begins, if that is in between."""
    begins = one.row.hyperparameters.get("start_round")
    said = [(str(rounds[0]), at[0, 0], 8, -8), (str(rounds[-1]), at[-1, 1], 8, -8)]
    if begins in rounds[1:]:
        said.append((f"ALA from round {begins}", at[rounds.index(begins), 0], 60, -40))
    look = {"arrowcolor": GREY, "arrowwidth": 1, "arrowhead": 0}
    return [
        {"x": x, "y": y, "text": text, "ax": right, "ay": down, **look}
        for text, where, right, down in said
        for x, y in [web.numbers(where)]
    ]


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
        "line": {"color": GREY, "width": 0.5},
        "hovertemplate": "loss %{customdata:.4g}<extra></extra>",
    }


def _scale(surface: Matrix) -> str:
    """The contours' values in words."""
    levels, logarithmic = numbers.levels(surface)
    apart = f"{levels[1] / levels[0]:.3g} times" if logarithmic else f"{levels[1] - levels[0]:.3g} more than"
    return f"Contours: loss from {levels[0]:.3g} to {levels[-1]:.3g}, each {apart} the one before."
