"""`plot trajectory`, in print and on a page: the plane is that of a singular value decomposition."""

from __future__ import annotations

import numpy as np
import pytest
from sqlalchemy import Engine
from support.pages import only
from support.report_database import spec
from support.store_samples import write_round

from pflbench.errors import UserError
from pflbench.report.figures import trajectory
from pflbench.store import arrays, write
from pflbench.store.write import RoundRecord


def test_the_plane_is_that_of_a_singular_value_decomposition() -> None:
    rng = np.random.default_rng(0)
    kept = rng.normal(size=(2, 5, 2, 300)).astype(np.float32) * np.linspace(3, 0.1, 300, dtype=np.float32)
    plane = trajectory.plane(trajectory.Paths((), 0, tuple(range(5)), kept))
    rows = kept.reshape(-1, 300).astype(np.float64)
    _, s, axes = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    np.testing.assert_allclose(np.abs(np.sum(plane.axes * axes[:2], axis=1)), 1, rtol=1e-6)
    np.testing.assert_allclose(plane.axes @ plane.axes.T, np.eye(2), atol=1e-6)
    np.testing.assert_allclose(plane.explained, s[:2] ** 2 / (s**2).sum(), rtol=1e-6)
    np.testing.assert_allclose(plane.at.reshape(-1, 2), (rows - rows.mean(axis=0)) @ plane.axes.T, atol=1e-5)
    grid = plane.grid().reshape(-1, 2)
    assert (grid.min(axis=0) < plane.at.min(axis=(0, 1, 2))).all()
    assert (grid.max(axis=0) > plane.at.max(axis=(0, 1, 2))).all()


def test_models_on_a_line_have_no_plane() -> None:
    kept = np.arange(10, dtype=np.float32).reshape(1, 5, 2, 1) * np.ones(8, dtype=np.float32)
    with pytest.raises(UserError, match="no plane"):
        trajectory.plane(trajectory.Paths((), 0, tuple(range(5)), kept))


def test_the_trajectory_is_in_the_plane_of_an_svd_with_its_surface(engine: Engine) -> None:
    models = np.random.default_rng(0).normal(size=(2, 4, 2, 50)).astype(np.float32) * np.linspace(3, 0.1, 50, dtype=np.float32)
    for method, kept in zip(("fedavg", "fedala"), models, strict=True):
        run = write.create_run(engine, spec(method, hyperparameters={"start_round": 2} if method == "fedala" else {}), {})
        write.update_run(engine, run, status="finished")
        for t, pair in enumerate(kept):
            write_round(engine, run, RoundRecord(round=t, accuracy=0.5, artifacts={"trajectory_4": pair}))
    without = only("trajectory", engine)
    assert "Without the loss surface" in without.notes[-1]
    rows = models.reshape(-1, 50).astype(np.float64)
    u, s, _ = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    expected = np.abs(u[:, :2] * s[:2]).reshape(2, 4, 2, 2)
    for k, name in enumerate(("FedAvg", "FedALA")):
        starts, ends = (trace for trace in without.spec["data"] if trace["legendgroup"] == name and "customdata" in trace)
        assert (starts["marker"]["symbol"], ends["marker"]["symbol"]) == ("circle-open", "square")
        for which, marks in enumerate((starts, ends)):
            assert marks["customdata"] == [[t, ("start", "end")[which]] for t in range(4)]
            np.testing.assert_allclose(np.abs([marks["x"], marks["y"]]), expected[k, :, which].T, rtol=1e-4)
    assert [note["text"] for note in without.spec["layout"]["annotations"]] == ["0", "3", "0", "3", "ALA from round 2"]

    grid = trajectory.plane(trajectory.paths(engine)).grid()
    loss = 10 ** np.linspace(-2, 1, 21 * 21).reshape(21, 21, 1)
    arrays.keep(engine, 1, "surface_4", 3, np.concatenate([grid, loss], axis=2))
    drawn = only("trajectory", engine)
    contours = drawn.spec["data"][0]
    assert drawn.notes[-1] == "Contours: loss from 0.01 to 10, each 1.78 times the one before."  # 12 steps, 1000 times in all
    assert (contours["contours"]["start"], contours["contours"]["end"]) == (pytest.approx(-2), pytest.approx(1))
    assert contours["type"] == "contour"
    np.testing.assert_allclose(np.array(contours["z"]).ravel(), np.linspace(-2, 1, 21 * 21), rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(np.array(contours["customdata"]), loss[..., 0], rtol=1e-4)
    np.testing.assert_allclose((contours["x"], contours["y"]), (grid[0, :, 0], grid[:, 0, 1]), rtol=1e-4)
