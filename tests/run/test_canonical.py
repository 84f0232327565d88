"""One experiment has one key, however it is typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from support.command import Shell, write
from support.runs import numbers, rows, run

from pflbench.run.options import RunOptions
from pflbench.run.plan import plan
from pflbench.spec import RunSpec
from pflbench.store.database import connect, to_url

CLASSES = {"partition": "pathological", "clients": 5}
ALIKE = {  # what is typed beside what is left out; all of 10 clients, with MLP, on 1,797 digits
    "least": ({"min_samples": 40}, {}),
    # int(1797 / 30 / 2)
    "fewest of few samples": ({"clients": 30, "beta": 10.0, "min_samples": 29}, {"clients": 30, "beta": 10.0}),
    "least of pathological": ({**CLASSES, "min_samples": 40}, CLASSES),
    "least of balanced": ({**CLASSES, "balanced": True, "min_samples": 7}, {**CLASSES, "balanced": True}),
    "average": ({"bn_buffers": "average"}, {}),
    "reset": ({"bn_buffers": "reset"}, {}),
    "fedfomo.M": ({"methods": "fedfomo", "settings": "fedfomo.M=10"}, {"methods": "fedfomo"}),
    "apple.M": ({"methods": "apple", "settings": "apple.M=10"}, {"methods": "apple"}),
    "xi_ii": ({"methods": "heurfedamp", "settings": "heurfedamp.xi_ii=0.1"}, {"methods": "heurfedamp"}),
    "with ALA": ({"methods": "heurfedamp+ala", "settings": "heurfedamp+ala.xi_ii=0.1"}, {"methods": "heurfedamp+ala"}),
    "alpha": ({"methods": "per-fedavg", "settings": "per-fedavg.alpha=0.1"}, {"methods": "per-fedavg"}),
    "beta": ({"methods": "per-fedavg", "settings": "per-fedavg.beta=0.1"}, {"methods": "per-fedavg"}),
    "head_lr": ({"methods": "fedpac", "settings": "fedpac.head_lr=0.1"}, {"methods": "fedpac"}),
}  # fmt: skip
APART = {
    "least": ({"min_samples": 41}, {}),
    "M": ({"methods": "fedfomo", "settings": "fedfomo.M=9"}, {"methods": "fedfomo"}),
    "of those who join": (
        {"methods": "heurfedamp", "settings": ("heurfedamp.xi_ii=0.1", "heurfedamp.partial=true"), "join_ratio": 0.5},
        {"methods": "heurfedamp", "settings": "heurfedamp.partial=true", "join_ratio": 0.5},
    ),
    "beta that follows a schedule": (
        {"methods": "per-fedavg", "settings": "per-fedavg.beta=0.1", "lr_schedule": "cosine"},
        {"methods": "per-fedavg", "lr_schedule": "cosine"},
    ),
    "head_lr that follows a schedule": (
        {"methods": "fedpac", "settings": "fedpac.head_lr=0.1", "lr_schedule": "step", "lr_step_every": 1},
        {"methods": "fedpac", "lr_schedule": "step", "lr_step_every": 1},
    ),
    "buffers": ({"bn_buffers": "average", "model": "norms.py:norms"}, {"model": "norms.py:norms"}),
}
NORMS = """
from torch import nn


def norms(input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, classes))
"""


def planned(typed: dict[str, Any]) -> RunSpec:
    several = {name: (value,) for name, value in typed.items() if name in ("methods", "settings") and isinstance(value, str)}
    usual = {"methods": ("fedavg",), "datasets": ("digits",), "clients": 10, "rounds": 2, "batch_size": 100}
    (spec,) = plan(RunOptions(**{**usual, **typed, **several}))
    return spec


@pytest.mark.parametrize("name", ALIKE)
def test_one_experiment_has_one_key(name: str, tmp_path: Path) -> None:
    """What was typed, and what is run in its place, give the same bits."""
    typed, plain = map(planned, ALIKE[name])
    assert (typed.model_dump_json(), typed.key) == (plain.model_dump_json(), plain.key)
    with mock.patch("pflbench.run.plan.canonical", lambda spec, _: spec):
        given = planned(ALIKE[name][0])
    assert given.key != plain.key
    for engine in ("loop", "batched") if "settings" in ALIKE[name][0] else ("loop",):
        store = connect(to_url(str(tmp_path / f"{engine}.db")))
        for spec in (given, plain):
            run(spec, store, engine=engine)
        assert rows(store, "SELECT status FROM run") == [("finished",)] * 2
        assert numbers(store, 1) == numbers(store, 2)
        store.dispose()


@pytest.mark.parametrize("name", APART)
def test_other_experiments_have_other_keys(name: str, shell: Shell) -> None:
    write("norms.py", NORMS)
    typed, plain = map(planned, APART[name])
    assert typed.key != plain.key
