"""The loss of one client around the path of its model: what the contours of Figure 4 of the FedALA paper are made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import sqlalchemy
import torch
from numpy.typing import NDArray

from pflbench.engine.batches import Plan
from pflbench.engine.evaluation import EVALUATION_BATCH
from pflbench.engine.federation import Federation
from pflbench.engine.requests import Evaluate
from pflbench.errors import UserError
from pflbench.report.figures.trajectory import numbers as trajectory
from pflbench.run.execution import Execution, exact_arithmetic, federation, find_device
from pflbench.run.setting import load_setting
from pflbench.spec import RunSpec
from pflbench.store import arrays, runs

AT_ONCE = 16  # models in memory


def compute(store: sqlalchemy.Engine, paths: trajectory.Paths, data_root: Path, device: str = "auto") -> None:
    """Stores the client's mean training loss on a grid in the plane of these paths, with the first of their runs.

    Raises UserError for a model with BatchNorm, of which a point of the plane is no whole model.
    """
    run, client, plane = paths.runs[0], paths.client, trajectory.plane(paths)
    spec, place = RunSpec.model_validate(runs.find(store, run).spec), find_device(device)
    with exact_arithmetic(place, spec.train.dtype):
        fed = federation(spec, load_setting(spec, data_root), place, Execution())
        try:
            if fed.flat.buffer_size:
                raise UserError(
                    f"The loss of {spec.model} depends on BatchNorm's buffers, which a trajectory does not have.",
                    "Draw it without --surface.",
                )
            at = plane.grid()
            points = at.reshape(-1, 2)
            found = [_losses(fed, plane.models(points[k : k + AT_ONCE]), client) for k in range(0, len(points), AT_ONCE)]
        finally:
            fed.executor.close()
    surface = np.concatenate([at, np.concatenate(found).reshape(*at.shape[:2], 1)], axis=2)
    arrays.keep(store, run, trajectory.surface_name(client), paths.rounds[-1], surface)


def _losses(fed: Federation, models: NDArray[np.float64], client: int) -> NDArray[np.float64]:
    """Mean losses [g] of models [g, P] on all training data of a client."""
    mine = fed.train_indices[client]
    sizes = np.diff(np.append(np.arange(0, len(mine), EVALUATION_BATCH), len(mine)))
    rows = torch.from_numpy(models).to(fed.device, fed.dtype)
    plan = Plan((mine,) * len(rows), (sizes,) * len(rows))
    summed = fed.executor.do(Evaluate(plan, rows, rows[:, :0])).loss
    losses: NDArray[np.float64] = summed.double().cpu().numpy() / len(mine)
    return losses
