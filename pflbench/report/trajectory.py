"""`plot trajectory`: the way of one client's model in the plane of its principal components, as in Figure 4 of the FedALA paper.

Every round goes from the model that local training starts from to the one it ends with; the client's loss are contours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report import style
from pflbench.report.chosen import Filters, Observed, protocol, with_arrays
from pflbench.report.collect import Arranged
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
        "variance). Circles: where a round's local training starts; squares: where it ends; numbers: the first and the last "
        f"round. Where paths coincide, the later method covers the earlier.{contours}"
    )


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


def _draw(found: Paths, flat: Plane, surface: Matrix | None) -> Figure:
    texts, per_line, below = style.legend(
        [*(one.row.label for one in found.seen), "start of a round", "end of a round"], style.COLUMN
    )
    figure, (ax,) = style.grid(1, 1, style.COLUMN, 2.3, titles=2, below=below, left=0.6, right=0.14 if surface is None else 0.75)
    if surface is not None:
        _contours(ax, surface)
    for one, at in zip(found.seen, flat.at, strict=True):
        _path(ax, one, found.rounds, at)
    ax.set_title(f"{found.seen[0].setting.title}\nclient {found.client}")
    ax.set_xlabel("First principal component")
    ax.set_ylabel("Second principal component", labelpad=1)
    ax.grid(visible=False)
    plain: dict[str, Any] = {"color": "#666666", "linestyle": "", "markersize": 3.5}
    looks = [{"color": one.row.look.colour, "linewidth": 1.1} for one in found.seen]
    start, end = {**plain, "marker": "o", "markerfacecolor": "white"}, {**plain, "marker": "s"}
    style.key(figure, [*looks, start, end], texts, per_line)
    return figure


def _path(ax: Axes, one: Observed, rounds: Sequence[int], at: Matrix) -> None:
    """at [rounds, 2, 2]: thick steps for local training, thin ones for what aggregation and local initialisation do after it."""
    colour = one.row.look.colour
    line = at.reshape(-1, 2)
    ax.plot(line[:, 0], line[:, 1], color=colour, linewidth=0.5)
    ax.plot(*at.transpose(2, 1, 0), color=colour, linewidth=1.2)
    ax.plot(at[:, 0, 0], at[:, 0, 1], color=colour, marker="o", markerfacecolor="white", markersize=2.5, linestyle="", zorder=3)
    ax.plot(at[:, 1, 0], at[:, 1, 1], color=colour, marker="s", markersize=2.5, linestyle="", zorder=3)
    for t, where in ((rounds[0], at[0, 0]), (rounds[-1], at[-1, 1])):
        ax.annotate(f"{t}", where, xytext=(3, 3), textcoords="offset points", fontsize=6)
    begins = one.row.hyperparameters.get("start_round")
    if begins in rounds[1:]:
        ax.annotate(
            f"ALA from round {begins}", at[rounds.index(begins), 0], xytext=(12, 12), textcoords="offset points", fontsize=6,
            arrowprops={"arrowstyle": "-", "linewidth": 0.5}, bbox={"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 1},
        )  # fmt: skip


def _contours(ax: Axes, surface: Matrix) -> None:
    x, y, loss = np.moveaxis(surface, -1, 0)
    low, high = loss.min(), loss.max()
    levels = np.geomspace(low, high, 13) if low > 0 else np.linspace(low, high, 13)
    filled = ax.contourf(x, y, loss, levels=levels, cmap="Greys", alpha=0.6)
    ax.contour(x, y, loss, levels=levels, colors="#999999", linewidths=0.3)
    box = ax.get_position()
    beside = ax.figure.add_axes((box.x1 + 0.02, box.y0, 0.02, box.height))
    bar = ax.figure.colorbar(filled, cax=beside)
    bar.set_ticks(levels[::3].tolist(), labels=[f"{level:.2g}" for level in levels[::3]])
    bar.set_label("Loss", labelpad=1)
    bar.ax.tick_params(labelsize=6, pad=1)
