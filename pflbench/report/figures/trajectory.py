"""The way of one client's model in the plane of its principal components, as in Figure 4 of the FedALA paper.

Every round goes from the model that local training starts from to the one it ends with; the client's loss are contours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report import render, style, web
from pflbench.report.arrangement import Arranged, short
from pflbench.report.looks import PLUGGED, Look, with_distinct_colours
from pflbench.report.selection import Filters, Observed, spread, with_arrays
from pflbench.report.style import small
from pflbench.report.traces import GREY, Axis, Panel, Trace
from pflbench.report.web import Interactive, Json
from pflbench.store import arrays

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Matrix = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

CLIENT = 4
PREFIX = "trajectory_"  # of the arrays' names, before the client: [2, P], where a round's local training starts and ends
COMMAND = (
    "pflbench run -m fedavg -m fedala --set fedala.start_round=156 -d mnist --partition pathological --rounds 200 "
    "--trajectory {}:140-200"
)
GRID = 21  # points to a side of the surface
MARGIN = 0.12  # of the plane around the paths, in widths of theirs
LEVELS = 13  # of the surface's contours
BLOCK = 1 << 16  # columns in float64 at once
SHOWN = 13  # rounds with an arrow: more hide each other
BOX: dict[str, Any] = {"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.5}
END = "s"  # the marker of a round's end
HEIGHT = 520  # on a page, pixels
# On a page, darker on a light one and lighter on a dark one where the loss is larger.
SHADE = [[0, "rgba(128,128,128,0.02)"], [1, "rgba(128,128,128,0.35)"]]


@dataclass(frozen=True)
class Paths:
    """Runs of one setting and one seed that kept this client's models: models [runs, rounds, 2, P], start and end of a round."""

    seen: tuple[Observed, ...]
    client: int
    rounds: tuple[int, ...]
    models: np.ndarray[Any, np.dtype[np.float32]]

    @property
    def runs(self) -> tuple[int, ...]:
        return tuple(one.run.id for one in self.seen)


@dataclass(frozen=True)
class Plane:
    """The principal components of all models of the paths: a model is origin + x * axes[0] + y * axes[1], axes orthonormal."""

    origin: Matrix  # [P]
    axes: Matrix  # [2, P]
    at: Matrix  # [runs, rounds, 2, 2] the models of the paths in the plane
    explained: tuple[float, float]  # share of the variance

    def grid(self) -> Matrix:
        """Points of the plane [GRID, GRID, 2]: the paths and a margin."""
        flat = self.at.reshape(-1, 2)
        low, high = flat.min(axis=0), flat.max(axis=0)
        margin = MARGIN * (high - low)
        x, y = np.linspace(low - margin, high + margin, GRID, axis=1)
        return np.stack(np.meshgrid(x, y), axis=-1)

    def models(self, points: Matrix) -> Matrix:
        """The models [g, P] at points [g, 2]."""
        made: Matrix = self.origin + points @ self.axes
        return made


def plot(engine: Engine, filters: Filters = Filters(), *, client: int = CLIENT) -> style.Drawing:
    """The paths of the chosen methods in one plane, with the surface if it was computed. Raises UserError without paths."""
    found = paths(engine, filters, client=client)
    flat = plane(found)
    surface = stored_surface(engine, found, flat)
    notes = () if surface is not None else ("Without the loss surface: add --surface to compute it, once, and keep it.",)
    title = f"{', '.join(found.seen[0].setting.head[:2])}, client {found.client}"
    panel = _panel(found, flat)
    # Squares would hide the heads of the arrows.
    traces = [trace for trace in panel.traces if trace.look.marker != END]
    panel = replace(panel, traces=traces, draw=partial(_draw, found, flat, surface))
    said = caption(found, flat, surface is not None, "an arrow head")
    return render.drawing([panel], [title], said, notes, columns=1, height=2.3)


def page(engine: Engine, filters: Filters, most: int | None = None) -> list[Interactive]:
    """Of every client that was followed; of several seeds that with the most runs. Raises UserError when there are no runs."""
    found = filters.select(engine)
    stored = arrays.rounds(engine, [run.id for run in found.runs])
    clients = sorted({int(name.removeprefix(PREFIX)) for _, name in stored if name.startswith(PREFIX)})
    drawn_together = [(seen, client) for client in clients for seen in together(engine, found, client)]
    made, left_out = web.possible(drawn_together[:most], partial(_page, engine))
    return [replace(one, notes=(*found.notes, *left_out, *one.notes)) for one in made]


def paths(engine: Engine, filters: Filters = Filters(), *, client: int = CLIENT) -> Paths:
    """Of the setting and seed with the most such runs, those of each method, in the rounds that all of them kept."""
    found = filters.select(engine)
    return load(engine, max(together(engine, found, client), key=len), client)


def together(engine: Engine, found: Arranged, client: int) -> list[list[Observed]]:
    """The runs that kept this client's models, by setting: of each the seed with the most of them.

    Raises UserError where none did.
    """
    by_seed: dict[tuple[str, str | None], dict[int, list[Observed]]] = defaultdict(lambda: defaultdict(list))
    for one in with_arrays(engine, found, [f"{PREFIX}{client}"], COMMAND.format(client)):
        by_seed[one.setting.protocol, one.setting.partition][one.run.seed].append(one)
    return [max(seeds.values(), key=len) for seeds in by_seed.values()]


def load(engine: Engine, seen: Sequence[Observed], client: int) -> Paths:
    """The models of runs in the rounds that all of them kept. Raises UserError where there is no such round."""
    rounds = sorted(set.intersection(*(set(one.rounds) for one in seen)))
    if not rounds:
        raise UserError("These runs kept no round in common.", f"Make them with one command: {COMMAND.format(client)}.")
    held = [arrays.read(engine, one.run.id, one.name, rounds) for one in seen]
    looks = with_distinct_colours([one.row.look for one in seen])
    seen = [replace(one, row=replace(one.row, look=look)) for one, look in zip(seen, looks, strict=True)]
    return Paths(tuple(seen), client, tuple(rounds), np.stack([np.stack(list(of.values())) for of in held]))


def plane(found: Paths) -> Plane:
    """Principal components by the Gram matrix of the models, which is small where the models are large."""
    models = found.models.reshape(-1, found.models.shape[-1])
    blocks = [slice(start, start + BLOCK) for start in range(0, models.shape[1], BLOCK)]
    origin = np.concatenate([models[:, block].mean(axis=0, dtype=np.float64) for block in blocks])
    gram = np.zeros((len(models), len(models)))
    for block in blocks:
        centred = models[:, block] - origin[block]
        gram += centred @ centred.T
    values, vectors = np.linalg.eigh(gram)
    values, vectors = values[::-1].clip(min=0), vectors[:, ::-1]
    if values[1] <= 1e-12 * values[0]:
        raise UserError("These models lie on one line or do not move: there is no plane.", "Follow them for more rounds.")
    # A principal component has no sign of its own: its largest coordinate is positive, on every machine.
    largest = vectors[np.abs(vectors).argmax(axis=0), np.arange(len(vectors))]
    at = (vectors * np.sign(largest))[:, :2] * np.sqrt(values[:2])
    axes = np.concatenate([(at / values[:2]).T @ (models[:, block] - origin[block]) for block in blocks], axis=1)
    share = values / values.sum()
    return Plane(origin, axes, at.reshape(*found.models.shape[:3], 2), (share[0], share[1]))


def surface_name(client: int) -> str:
    """Of the array [GRID, GRID, 3]: points of the plane and the loss there."""
    return f"surface_{client}"


def stored_surface(engine: Engine, found: Paths, flat: Plane) -> Matrix | None:
    """The stored surface, if it is that of this plane: with other runs or rounds the plane is another."""
    t = found.rounds[-1]
    stored = arrays.read(engine, found.runs[0], surface_name(found.client), [t]).get(t)
    grid = flat.grid()
    if stored is None or stored.shape[:2] != grid.shape[:2]:
        return None
    return stored if np.allclose(stored[..., :2], grid, rtol=1e-4, atol=1e-6 * np.abs(grid).max()) else None


def levels(surface: Matrix) -> Matrix:
    """The loss at the contours, ascending; at equal ratios, as losses differ by orders of magnitude, unless one is 0."""
    low, high = surface[..., 2].min(), surface[..., 2].max()
    return np.geomspace(low, high, LEVELS) if low > 0 else np.linspace(low, high, LEVELS)


def caption(found: Paths, flat: Plane, surface: bool, end: str = "a square") -> str:
    """end: what stands where a round ends."""
    contours = " Contours: its mean loss on all of its training data at points of the plane." if surface else ""
    every = len(found.rounds) <= SHOWN
    *others, last = (one.row.label for one in found.seen)
    methods = f"{', '.join(others)} and {last}" if others else last
    some = "each round" if every else f"{SHOWN} of the {len(found.rounds)} rounds, evenly spaced, and where ALA begins"
    return (
        f"Local model of client {found.client} in rounds {found.rounds[0]} to {found.rounds[-1]}: {found.seen[0].setting.title}, "
        f"{methods}, seed {found.seen[0].run.seed}. Plane: the two principal "
        f"components of all models shown ({100 * flat.explained[0]:.0f} % and {100 * flat.explained[1]:.0f} % of their "
        f"variance). Arrows: local training, from a circle to {end}, in {some}; thin lines: all of the way; numbers: "
        f"the first and the last round. Where paths coincide, the later method covers the earlier.{contours}"
    )


def _start_of_ala(one: Observed, rounds: Sequence[int]) -> int | None:
    """The index of the round in which ALA starts, if it is one of these."""
    start = one.row.hyperparameters.get("start_round")
    return rounds.index(start) if start in rounds else None


def _with_arrows(one: Observed, rounds: Sequence[int]) -> list[int]:
    """The indices of rounds with arrows: up to SHOWN, evenly spaced, and the round in which ALA starts."""
    start = _start_of_ala(one, rounds)
    return sorted({*spread(range(len(rounds)), SHOWN), *([] if start is None else [start])})


def _panel(found: Paths, flat: Plane) -> Panel:
    """The paths; thick steps are local training, thin ones what aggregation and local initialisation do after it."""
    first = found.seen[0]
    named = short([one.row for one in found.seen])
    traces = [
        trace for one, name, at in zip(found.seen, named, flat.at, strict=True) for trace in _path(one, name, found.rounds, at)
    ]
    return Panel(
        f"{first.setting.title}: client {found.client}",
        Axis("First principal component", grid=False),
        Axis("Second principal component", grid=False),
        [
            *traces,
            Trace((), (), Look(GREY, "o", PLUGGED, 0), "start of a round", "markers"),
            Trace((), (), Look(GREY, END, 0, 0), "end of a round", "markers"),
        ],
        found.runs,
        (first.setting,),
        HEIGHT,
    )


def _path(one: Observed, name: str, rounds: Sequence[int], at: Matrix) -> list[Trace]:
    """at [rounds, 2, 2]. The arrows of local training are thick lines on a page, where all rounds are seen by zooming in."""
    colour, places = one.row.look.colour, _with_arrows(one, rounds)
    whole, seen = at.reshape(-1, 2), at[places]
    steps = np.concatenate([seen, np.full_like(seen[:, :1], np.nan)], axis=1).reshape(-1, 2)  # with a gap after each
    hover = f"{name}, round %{{customdata[0]}}<br>%{{customdata[1]}} of local training<br>run {one.run.id}"

    def marks(side: int, marker: str, fill: int, what: str) -> Trace:
        data = [(rounds[place], what) for place in places]
        look = Look(colour, marker, fill, 0)
        return Trace(seen[:, side, 0], seen[:, side, 1], look, draws="markers", size=2.5, hover=hover, data=data, group=name)

    line = Look(colour, "o", 0, 0)
    return [
        Trace(whole[:, 0], whole[:, 1], line, draws="lines", width=0.4, opacity=1 if len(seen) == len(at) else 0.4, group=name),
        Trace(steps[:, 0], steps[:, 1], line, name, "lines"),
        marks(0, "o", PLUGGED, "start"),
        marks(1, END, 0, "end"),
    ]


def _draw(found: Paths, flat: Plane, surface: Matrix | None, ax: Axes) -> None:
    """Contours, arrows and labels, which stay inside the frame."""
    if surface is not None:
        _contours(ax, surface)
    ax.margins(MARGIN)
    rounds, flat_at = found.rounds, flat.at.reshape(-1, 2)
    middle = (flat_at.min(axis=0) + flat_at.max(axis=0)) / 2
    # An arrow that is shorter than its head is a smaller head.
    arrow: dict[str, Any] = {"angles": "xy", "scale_units": "xy", "scale": 1, "units": "inches", "width": 1.1 / 72, "zorder": 3}
    label: dict[str, Any] = {"textcoords": "offset points", "fontsize": small(), "bbox": BOX, "zorder": 4}
    for one, at in zip(found.seen, flat.at, strict=True):
        start, end = np.moveaxis(at[_with_arrows(one, rounds)], 1, 0)
        ax.quiver(*start.T, *(end - start).T, color=one.row.look.colour, headwidth=5, minlength=0.1, **arrow)
        for t, where in ((rounds[0], at[0, 0]), (rounds[-1], at[-1, 1])):
            ax.annotate(f"{t}", where, xytext=(0, 4), ha="center", **label)
        if begins := _start_of_ala(one, rounds):
            here = at[begins, 0]
            right, up = np.sign(here - middle)
            ax.annotate(
                f"ALA from round {rounds[begins]}", here, xytext=(-18 * right, 10 * up), va="center",
                ha="right" if right > 0 else "left", arrowprops={"arrowstyle": "-", "linewidth": 0.5}, **label,
            )  # fmt: skip


def _contours(ax: Axes, surface: Matrix) -> None:
    x, y, loss = np.moveaxis(surface, -1, 0)
    at = levels(surface)
    filled = ax.contourf(x, y, loss, levels=at, cmap="Greys", alpha=0.6)
    ax.contour(x, y, loss, levels=at, colors="#999999", linewidths=0.3)
    bar = ax.figure.colorbar(filled, cax=ax.inset_axes((1.03, 0, 0.035, 1)))
    bar.set_ticks(at[::3].tolist(), labels=[f"{level:.2g}" for level in at[::3]])
    bar.set_label("Loss", labelpad=1)
    bar.ax.tick_params(labelsize=small(), pad=1)


def _page(engine: Engine, of: tuple[Sequence[Observed], int]) -> Interactive:
    """of: runs that are drawn together, and the client."""
    found = load(engine, *of)
    flat = plane(found)
    surface = stored_surface(engine, found, flat)
    if surface is None:
        said = "Without the loss surface: `pflbench plot trajectory --surface` computes it, once, and keeps it."
    else:
        at = levels(surface)
        apart = f"{at[1] / at[0]:.3g} times" if at[0] > 0 else f"{at[1] - at[0]:.3g} more than"
        said = f"Contours: loss from {at[0]:.3g} to {at[-1]:.3g}, each {apart} the one before."
    return web.figure(
        "trajectory",
        _panel(found, flat),
        caption(found, flat, surface is not None),
        [said],
        data=[] if surface is None else [_surface(surface)],
        annotations=[label for one, at in zip(found.seen, flat.at, strict=True) for label in _labels(one, found.rounds, at)],
    )


def _labels(one: Observed, rounds: Sequence[int], at: Matrix) -> list[Json]:
    """The first and the last round, and where ALA begins, if that is in between."""
    said = [(str(rounds[0]), *at[0, 0], 8, -8), (str(rounds[-1]), *at[-1, 1], 8, -8)]
    if begins := _start_of_ala(one, rounds):
        said.append((f"ALA from round {rounds[begins]}", *at[begins, 0], 60, -40))
    look = {"arrowcolor": GREY, "arrowwidth": 1, "arrowhead": 0}
    return [{"x": float(x), "y": float(y), "text": text, "ax": right, "ay": down, **look} for text, x, y, right, down in said]


def _surface(surface: Matrix) -> Json:
    """Without a colour bar: Plotly's has no room for colours that let the page through."""
    loss = surface[..., 2]
    at = levels(surface)
    z, contours = (np.log10(loss), np.log10(at)) if at[0] > 0 else (loss, at)
    return {
        "type": "contour",
        "x": web.numbers(surface[0, :, 0]),
        "y": web.numbers(surface[:, 0, 1]),
        "z": [web.numbers(row) for row in z],
        "customdata": [web.numbers(row) for row in loss],
        "contours": {"start": float(contours[0]), "end": float(contours[-1]), "size": float(contours[1] - contours[0])},
        "colorscale": SHADE,
        "showscale": False,
        "line": {"color": GREY, "width": 0.5},
        "hovertemplate": "loss %{customdata:.4g}<extra></extra>",
    }
