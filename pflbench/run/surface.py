"""The loss of a client at untrained models, for the contours in Figure 4 of the FedALA paper."""

from __future__ import annotations

from collections.abc import Iterable
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
from pflbench.run import trusted
from pflbench.run.arithmetic import exact_arithmetic
from pflbench.run.device import find_device
from pflbench.run.execution import Execution
from pflbench.run.federation_data import load_federation_data
from pflbench.run.prepared import prepare
from pflbench.spec import RunSpec
from pflbench.store import paths, runs


def losses(
    store: sqlalchemy.Engine, run: int, client: int, models: Iterable[NDArray[np.float64]], data_root: Path, device: str = "auto"
) -> NDArray[np.float64]:
    """Mean losses [g] of models on all training data of a run's client. models: parts [., P] of them.

    Raises UserError for a model with BatchNorm, of which parameters are no whole model, and for code that was not run here.
    """
    stored = paths.in_spec(runs.find(store, run).spec, lambda path: paths.found(path, store.url))
    spec, place = RunSpec.model_validate(stored), find_device(device)
    trusted.require_typed(f"Run {run}", trusted.python_files([spec]), hint="Draw it where the run was made.")
    with exact_arithmetic(place, spec.train.dtype):
        fed = prepare(spec, load_federation_data(spec, data_root), place, Execution()).federation()
        try:
            if fed.flat.buffer_size:
                raise UserError(
                    f"The loss of {spec.model} depends on BatchNorm's buffers, which a trajectory does not have.",
                    "Draw it without --surface.",
                )
            return np.concatenate([_losses(fed, some, client) for some in models])
        finally:
            fed.executor.close()


def _losses(fed: Federation, models: NDArray[np.float64], client: int) -> NDArray[np.float64]:
    """Mean losses [g] of models [g, P] on all training data of a client."""
    mine, rows = fed.train_indices[client], torch.from_numpy(models).to(fed.device, fed.dtype)
    plan = Plan.through([mine] * len(rows), EVALUATION_BATCH)
    summed = fed.executor.do(Evaluate(plan, rows, rows[:, :0])).loss
    losses: NDArray[np.float64] = summed.double().cpu().numpy() / len(mine)
    return losses
