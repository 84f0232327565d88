"""`plot trajectory`: the way of one client's model in the plane of its principal components, as in Figure 4 of the FedALA paper.

Every round goes from the model that local training starts from to the one it ends with; the client's loss are contours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report import style
from pflbench.report.chosen import Filters, Observed, protocol, short, spread, with_arrays
from pflbench.report.collect import Arranged
from pflbench.report.layout import Sheet, small
from pflbench.store import observed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Matrix = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

CLIENT = 4
PREFIX = "trajectory_"  # of the arrays' names, before the client
COMMAND = (
    "pflbench run -m fedavg -m fedala --set fedala.start_round=156 -d mnist --partition pathological --rounds 200 "
    "--trajectory {}:140-200"
)
SHOWN = 13  # rounds with an arrow: more hide each other
BOX: dict[str, Any] = {"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.5}
# Of a label and of the ways to put it, in widths of the paths.
LABEL = np.array([0.4, 0.08])
SIDES = tuple(np.array([x, y]) for x in (0.0, 0.28, -0.28) for y in (0.14, -0.14, 0.24, -0.24))
GRID = 21  # points to a side of the surface
MARGIN = 0.12  # of the plane around the paths, in widths of theirs
BLOCK = 1 << 16  # columns in float64 at once


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
        x, y = (np.linspace(a - MARGIN * (b - a), b + MARGIN * (b - a), GRID) for a, b in zip(low, high, strict=True))
        return np.stack(np.meshgrid(x, y), axis=-1)

    def models(self, points: Matrix) -> Matrix:
        """The models [g, P] at points [g, 2]."""
        made: Matrix = self.origin + points @ self.axes
        return made


def plot(
    engine: Engine,
    *,
    methods: Collection[str] = (),
    datasets: Collection[str] = (),
    partitions: Collection[str] = (),
    status: Collection[str] = ("finished",),
    client: int = CLIENT,
) -> style.Drawing:
    """The paths of all chosen methods in one plane, with the surface if it was computed. UserError where none were kept."""
    found = paths(engine, methods=methods, datasets=datasets, partitions=partitions, status=status, client=client)
    flat = plane(found)
    surface = stored_surface(engine, found, flat)
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


def paths(
    engine: Engine,
    *,
    methods: Collection[str] = (),
    datasets: Collection[str] = (),
    partitions: Collection[str] = (),
    status: Collection[str] = ("finished",),
    client: int = CLIENT,
) -> Paths:
    """Of the setting and seed with the most such runs, those of each method, in the rounds that all of them kept."""
    found = Filters(tuple(methods), tuple(datasets), tuple(partitions), status).collect(engine)
    return load(engine, max(together(engine, found, client), key=len), client)


def together(engine: Engine, found: Arranged, client: int) -> list[list[Observed]]:
    """The runs that kept this client's models, by setting: of each the seed with the most of them.

    Raises UserError where none did.
    """
    by_seed: dict[tuple[str, str | None], dict[int, list[Observed]]] = defaultdict(lambda: defaultdict(list))
    for one in with_arrays(engine, found, [array_name(client)], COMMAND.format(client)):
        by_seed[one.setting.protocol, one.setting.partition][one.run.seed].append(one)
    return [max(seeds.values(), key=len) for seeds in by_seed.values()]


def load(engine: Engine, seen: Sequence[Observed], client: int) -> Paths:
    """The models of runs in the rounds that all of them kept. Raises UserError where there is no such round."""
    rounds = sorted(set.intersection(*(set(one.rounds) for one in seen)))
    if not rounds:
        raise UserError("These runs kept no round in common.", f"Make them with one command: {COMMAND.format(client)}.")
    held = [observed.arrays(engine, one.run.id, array_name(client), rounds) for one in seen]
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


def array_name(client: int) -> str:
    """Of the arrays [2, P]: where a round's local training starts and ends."""
    return f"{PREFIX}{client}"


def surface_name(client: int) -> str:
    """Of the array [GRID, GRID, 3]: points of the plane and the loss there."""
    return f"surface_{client}"


def stored_surface(engine: Engine, found: Paths, flat: Plane) -> Matrix | None:
    """The stored surface, if it is that of this plane: with other runs or rounds the plane is another."""
    t = found.rounds[-1]
    stored = observed.arrays(engine, found.runs[0], surface_name(found.client), [t]).get(t)
    grid = flat.grid()
    if stored is None or stored.shape[:2] != grid.shape[:2]:
        return None
    return stored if np.allclose(stored[..., :2], grid, rtol=1e-4, atol=1e-6 * np.abs(grid).max()) else None


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
    low, high = loss.min(), loss.max()
    levels = np.geomspace(low, high, 13) if low > 0 else np.linspace(low, high, 13)
    filled = ax.contourf(x, y, loss, levels=levels, cmap="Greys", alpha=0.6)
    ax.contour(x, y, loss, levels=levels, colors="#999999", linewidths=0.3)
    bar = ax.figure.colorbar(filled, cax=ax.inset_axes((1.03, 0, 0.035, 1)))
    bar.set_ticks(levels[::3].tolist(), labels=[f"{level:.2g}" for level in levels[::3]])
    bar.set_label("Loss", labelpad=1)
    bar.ax.tick_params(labelsize=small(), pad=1)
