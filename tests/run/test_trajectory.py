"""The trajectory: what a run keeps are the client's models, their plane is that of an SVD, the surface is the client's loss."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sqlalchemy import Engine
from support.command import Shell
from torch.nn import functional as F

from pflbench import methods
from pflbench.contract.small import federation
from pflbench.models import build
from pflbench.report.figures import trajectory
from pflbench.report.selection import Filters
from pflbench.run.federation_data import load_federation_data
from pflbench.run.follow import parse
from pflbench.spec import MethodSpec, RunSpec
from pflbench.store import arrays, runs
from pflbench.store import database as db

RUN = (
    "run -m fedavg -m fedala --set fedala.start_round=5 -d digits --partition pathological --clients 5 --rounds 6 --lr 0.05 "
    "--quiet --trajectory 2:3-6"
)


@pytest.fixture
def engine(shell: Shell) -> Engine:
    done = shell(*RUN.split())
    assert done.code == 0, done
    assert "stores up to 153.9 kB" in done.err
    return db.connect(db.to_url("pflbench.db"))


def models(engine: Engine, run: int) -> np.ndarray:
    return np.stack([arrays.read_one(engine, run, "trajectory_2", t) for t in (3, 4, 5, 6)])


@pytest.mark.slow
def test_the_figure_and_its_surface(engine: Engine, shell: Shell) -> None:
    assert arrays.rounds(engine, [1], ["trajectory_2"]) == {(1, "trajectory_2"): [3, 4, 5, 6]}
    fedavg, fedala = models(engine, 1), models(engine, 2)
    np.testing.assert_array_equal(fedavg[:2], fedala[:2], err_msg="until ALA begins, FedALA is FedAvg")
    assert (fedavg[2, 0] != fedala[2, 0]).any(), "in round 5 the client starts from what ALA made"
    head = slice(64 * 64 + 64, None)
    np.testing.assert_array_equal(fedavg[2, 0, : head.start], fedala[2, 0, : head.start], err_msg="ALA mixes the head alone")

    assert shell("plot", "trajectory", "--client", "2").code == 0
    assert "--surface" in Path("trajectory.caption.txt").read_text()
    assert shell("plot", "trajectory", "--client", "2", "--surface").code == 0
    caption = Path("trajectory.caption.txt").read_text()
    assert "Contours" in caption
    assert "from runs 1, 2." in caption

    surface = arrays.read_one(engine, 1, "surface_2", 6)
    marked = surface.copy()
    marked[..., 2] += 1
    arrays.keep(engine, 1, "surface_2", 6, marked)
    assert shell("plot", "trajectory", "--client", "2", "--surface").code == 0
    np.testing.assert_array_equal(arrays.read_one(engine, 1, "surface_2", 6), marked, err_msg="it is computed once")
    plane = trajectory.plane(trajectory.paths(engine, client=2))
    spec = RunSpec.model_validate(runs.find(engine, 1).spec)
    setting = load_federation_data(spec, Path("data"))
    mine = setting.partition.train[2]
    module = build("mlp", tuple(setting.arrays.x.shape[1:]), 10)
    x = torch.from_numpy(setting.arrays.x[mine])
    x = (x / 255 - 0.5) / 0.5 if x.dtype == torch.uint8 else x.float()
    for i, j in ((0, 0), (7, 12), (20, 20)):
        row = torch.from_numpy(plane.origin + surface[i, j, :2] @ plane.axes).float()
        torch.nn.utils.vector_to_parameters(row, module.parameters())
        expected = F.cross_entropy(module(x), torch.from_numpy(setting.arrays.y[mine]).long())
        assert surface[i, j, 2] == pytest.approx(float(expected.detach()), rel=1e-4)

    drawn = trajectory.plot(engine, client=2)
    alone = trajectory.plot(engine, Filters(methods=["fedavg"]), client=2)
    assert "Contours" not in alone.caption, "of one run the plane is another"
    starts = [line for line in drawn.figure.axes[0].lines if line.get_marker() == "o"]
    np.testing.assert_allclose(starts[1].get_xydata(), plane.at[1, :, 0], rtol=1e-9)
    assert [text.get_text() for text in drawn.figure.axes[0].texts] == ["3", "6", "3", "6", "ALA from round 5"]


def test_what_is_impossible_is_refused_before_anything_runs(shell: Shell) -> None:
    run = ["run", "-m", "fedavg", "-d", "digits", "--clients", "5", "--rounds", "6", "--quiet", "--trajectory"]
    assert "CLIENT:FROM-TO" in shell.refused(*run, "2")
    assert "CLIENT:FROM-TO" in shell.refused(*run, "2:5-3")
    assert "Clients that train are 0 to 4" in shell.refused(*run, "5:1-2")
    assert "Clients that train are 0 to 3" in shell.refused(*run, "4:1-2", "--new-clients", "1")
    assert "The run has 6 rounds" in shell.refused(*run, "2:1-7")
    assert not Path("pflbench.db").exists()
    assert parse("4:140-200").bytes(582_026, "float32") == 61 * 2 * 4 * 582_026
    assert parse("4:140-200").bytes(582_026, "float64") == 61 * 2 * 8 * 582_026


def test_without_models_the_command_is_named(shell: Shell) -> None:
    assert shell(*["run", "-m", "fedavg", "-d", "digits", "--clients", "5", "--rounds", "1", "--quiet"]).code == 0
    assert "--trajectory 4:140-200" in shell.refused("plot", "trajectory")
    assert "--surface does not belong" in shell.refused("plot", "curves", "--surface")


@pytest.mark.parametrize("name", methods.names(with_ala=True))
def test_every_method_s_client_can_be_followed(name: str) -> None:
    """From what its local training began with to what it ended with, once a round."""
    method = methods.make(MethodSpec(name=name))
    fed = federation(around=method.model)
    fed.followed = 1
    now = fed.at(1)
    received = method.receive(now, method.init(now), now.cohort(1))
    assert not now.ledger.artifacts.keys() & {"trajectory_1"}, "adaptation for a test is no local training"
    method.update(now, received, now.cohort(1))
    first, last = now.ledger.artifacts["trajectory_1"]
    assert first.shape == (fed.flat.size,)
    assert not np.array_equal(first, last)
