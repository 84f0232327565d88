"""The models of a client over the rounds, as runs kept them, in the plane of their principal components."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report.arrangement import Arranged
from pflbench.report.selection import Filters, Observed, with_arrays
from pflbench.store import arrays

Matrix = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

CLIENT = 4
PREFIX = "trajectory_"  # of the arrays' names, before the client
COMMAND = (
    "pflbench run -m fedavg -m fedala --set fedala.start_round=156 -d mnist --partition pathological --rounds 200 "
    "--trajectory {}:140-200"
)
GRID = 21  # points to a side of the surface
MARGIN = 0.12  # of the plane around the paths, in widths of theirs
LEVELS = 13  # of the surface's contours
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


def paths(engine: Engine, filters: Filters = Filters(), *, client: int = CLIENT) -> Paths:
    """Of the setting and seed with the most such runs, those of each method, in the rounds that all of them kept."""
    found = filters.select(engine)
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
    held = [arrays.read(engine, one.run.id, array_name(client), rounds) for one in seen]
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
    stored = arrays.read(engine, found.runs[0], surface_name(found.client), [t]).get(t)
    grid = flat.grid()
    if stored is None or stored.shape[:2] != grid.shape[:2]:
        return None
    return stored if np.allclose(stored[..., :2], grid, rtol=1e-4, atol=1e-6 * np.abs(grid).max()) else None


def levels(surface: Matrix) -> tuple[Matrix, bool]:
    """The loss at the contours, ascending; at equal ratios, as losses differ by orders of magnitude, unless one is 0."""
    low, high = surface[..., 2].min(), surface[..., 2].max()
    return (np.geomspace(low, high, LEVELS), True) if low > 0 else (np.linspace(low, high, LEVELS), False)
