"""Small runs on the digits, and what they have left in the database."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from sqlalchemy import text
from torch import nn

from pflbench import methods
from pflbench.contract import small
from pflbench.run.execution import Execution
from pflbench.run.training import execute
from pflbench.spec import DataSpec, Dirichlet, RunSpec, TrainSpec
from pflbench.store import database as db
from pflbench.store import runs

COLUMNS = "round, accuracy, accuracy_mean, accuracy_std, test_loss, train_loss, participants, params_up, params_down, bytes_up"


class BatchNormOnDigits(small.BatchNormNet):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.output = nn.Linear(64, 6), nn.Linear(6, 10)

    def features(self, x):
        return super().features(x.flatten(1))


def spec(method="fedala", *, seed=0, set=None, clients=5, **train) -> RunSpec:
    settings = {"rounds": 6, "lr": 0.1, "batch_size": 32, "dtype": "float64", **train}
    return RunSpec(
        data=DataSpec(name="digits"),
        partition=Dirichlet(clients=clients, beta=0.5),
        model="mlp",
        train=TrainSpec(**settings),
        method=methods.spec(method, set or {}),
        seed=seed,
    )


def hasty(method) -> dict[str, object]:
    """Hyperparameters with which what it begins a round with, fine-tuning or ALA's initial stage, is over soon."""
    if method.endswith("-c"):
        return {"finetune_epochs": 2}
    return {"max_init_epochs": 2} if "ala" in method else {}


def short(method="fedala", **more) -> RunSpec:
    """Four rounds of few steps."""
    return spec(method, set=hasty(method), **{"rounds": 4, "batch_size": 100, **more})


def run(spec, store, *, force=False, engine="loop", **how):
    return list(execute(spec, store, Path("data"), Execution(engine=engine, workers=1, **how), force=force))


def interrupted(spec, store, reached, how=Execution(workers=1), *, force=False):
    """The steps of a run that is interrupted after this round."""
    steps = []
    with closing(execute(spec, store, Path("data"), how, force=force)) as made:
        while not steps or steps[-1].round < reached:
            steps.append(next(made))
    return steps


def count_reached(url, last):
    """How many runs have come to this round, in a database that another process writes."""
    if "://" not in url and not Path(url).exists():
        return 0
    store = db.connect(db.to_url(url))
    found = sum((run.last_round or 0) >= last for run in runs.stored(store, runs.ALL))
    store.dispose()
    return found


def environments(store):
    """Of every run, what its record says."""
    return [json.loads(found) for (found,) in rows(store, "SELECT environment FROM run ORDER BY id")]


def rows(store, query):
    with store.connect() as connection:
        return [tuple(row) for row in connection.execute(text(query))]


def by_key(store):
    """Of every run of a database its status and `numbers`, by key."""
    found = rows(store, "SELECT key, id, status FROM run ORDER BY key, attempt")
    return {key: (status, numbers(store, run_id)) for key, run_id, status in found}


def numbers(store, run_id):
    """All that must not depend on when, where and how often a run was interrupted."""
    return (
        rows(store, f"SELECT {COLUMNS} FROM round WHERE run_id = {run_id} ORDER BY round"),
        rows(store, f"SELECT round, client, correct, total, loss FROM client_round WHERE run_id = {run_id} ORDER BY 1, 2"),
        rows(store, f"SELECT name, round, accuracy, test_loss FROM series WHERE run_id = {run_id} ORDER BY 1, 2"),
        rows(store, f"SELECT round, name, dtype, shape, data FROM artifact WHERE run_id = {run_id} ORDER BY 1, 2"),
    )
