"""The way of a client's model in the plane of its principal components, a figure for each setting and client."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from sqlalchemy import Engine

from pflbench.report import trajectory, web
from pflbench.report.chosen import Filters, Observed, protocol
from pflbench.report.collect import Arranged
from pflbench.report.trajectory import Matrix, Paths, Plane
from pflbench.report.web import Interactive, Json
from pflbench.store import observed

HEIGHT = 520  # pixels
LEVELS = 13
WITHOUT_SURFACE = "Without the loss surface: `pflbench plot trajectory --surface` computes it, once, and keeps it."
# Darker on a light page and lighter on a dark one where the loss is larger.
SHADE = [[0, "rgba(128,128,128,0.02)"], [1, "rgba(128,128,128,0.35)"]]


def figures(engine: Engine, filters: Filters) -> list[Interactive]:
    """Of every client that was followed; of several seeds that with the most runs. Raises UserError when there are no runs."""
    found = filters.collect(engine)
    panels, left_out = web.possible(_followed(engine, found), partial(_panel, engine))
    return [_figure(*panel, notes=(*found.notes, *left_out)) for panel in panels]


def _followed(engine: Engine, found: Arranged) -> list[tuple[list[Observed], int]]:
    """Runs that are drawn together, and the client."""
    runs = [run.id for cell in found.cells.values() for run in cell]
    kept = observed.names(engine, runs, trajectory.PREFIX)
    clients = sorted(int(name.removeprefix(trajectory.PREFIX)) for name in kept)
    return [(seen, client) for client in clients for seen in trajectory.together(engine, found, client)]


def _panel(engine: Engine, of: tuple[list[Observed], int]) -> tuple[Paths, Plane, Matrix | None]:
    """Without the models themselves, which are large."""
    paths = trajectory.load(engine, *of)
    plane = trajectory.plane(paths)
    return replace(paths, models=paths.models[..., :0]), plane, trajectory.stored_surface(engine, paths, plane)


def _figure(paths: Paths, plane: Plane, surface: Matrix | None, notes: tuple[str, ...]) -> Interactive:
    first = paths.seen[0]
    traces = [trace for one, at in zip(paths.seen, plane.at, strict=True) for trace in _path(one, paths.rounds, at)]
    share = [f"{100 * part:.0f} % of the variance" for part in plane.explained]
    return web.make(
        "trajectory",
        f"{first.setting.title}: client {paths.client}",
        f"{trajectory.caption(paths, plane, surface is not None)} {protocol([first.setting])}",
        [*([] if surface is None else [_contours(surface)]), *traces],
        web.layout(
            web.axis(f"First principal component ({share[0]})", showgrid=False),
            web.axis(f"Second principal component ({share[1]})", showgrid=False),
            legend=True,
            height=HEIGHT,
            annotations=[
                label for one, at in zip(paths.seen, plane.at, strict=True) for label in _beginning(one, paths.rounds, at)
            ],
        ),
        notes=(*notes, WITHOUT_SURFACE if surface is None else _scale(surface)),
        runs=paths.runs,
    )


def _path(one: Observed, rounds: tuple[int, ...], at: Matrix) -> list[Json]:
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
        _labels(group, rounds, at),
    ]


def _marks(group: Json, one: Observed, rounds: tuple[int, ...], at: Matrix, what: str, marker: Json) -> Json:
    said = f"<b>{group['name']}</b>, round %{{customdata}}<br>{what} of local training<br>run {one.run.id}<extra></extra>"
    more = {"mode": "markers", "marker": marker, "customdata": list(rounds), "hovertemplate": said, "showlegend": False}
    return {**group, **_points(at), **more}


def _labels(group: Json, rounds: tuple[int, ...], at: Matrix) -> Json:
    """The first and the last round."""
    texts = [str(rounds[0]), str(rounds[-1])]
    more = {"mode": "text", "text": texts, "textposition": "top right", "showlegend": False, "hoverinfo": "skip"}
    return {**group, **_points(at[[0, -1], [0, 1]]), **more}


def _beginning(one: Observed, rounds: tuple[int, ...], at: Matrix) -> list[Json]:
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


def _levels(surface: Matrix) -> tuple[Matrix, bool]:
    """The loss at the contours, ascending; at equal ratios, as losses differ by orders of magnitude, unless one is 0."""
    low, high = surface[..., 2].min(), surface[..., 2].max()
    return (np.geomspace(low, high, LEVELS), True) if low > 0 else (np.linspace(low, high, LEVELS), False)


def _contours(surface: Matrix) -> Json:
    """Without a colour bar: Plotly's has no room for colours that let the page through."""
    loss = surface[..., 2]
    levels, logarithmic = _levels(surface)
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
    levels, logarithmic = _levels(surface)
    apart = f"{levels[1] / levels[0]:.3g} times" if logarithmic else f"{levels[1] - levels[0]:.3g} more than"
    return f"Contours: loss from {levels[0]:.3g} to {levels[-1]:.3g}, each {apart} the one before."
