"""Runs whose clients fail, are slow or compress their uploads (methods.md 2.14)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.runs import interrupted, numbers, rows, run, short

from pflbench.engine import rng
from pflbench.errors import UserError
from pflbench.run.execution import Execution
from pflbench.run.federation_data import load_federation_data
from pflbench.run.options import RunOptions
from pflbench.run.plan import plan

SIZE = 64 * 64 + 64 + 64 * 10 + 10  # parameters of the MLP on the digits
# Multiplications and additions of a sample: forward, and backward for the weights of both layers and the input of the second.
SAMPLE = 2 * (2 * 64 * 64 + 3 * 64 * 10)
CLOCK = {"flops_per_second": 1e6, "slowest": 8.0, "bandwidth": 1e5, "latency": 0.5}
SIMULATED = "SELECT round, seconds_simulated FROM round WHERE run_id = {} ORDER BY round"


@pytest.mark.parametrize(("deadline", "engine"), [(None, "loop"), (20.0, "loop"), (20.0, "batched")])
def test_simulated_seconds_are_those_by_hand(store, deadline, engine):
    """Batches of 100, the last one dropped unless it is the only one; float64; FedAvg's model travels both ways."""
    spec = short("fedavg", rounds=2, local_epochs=2, deadline=deadline, **CLOCK)
    run_id = run(spec, store, engine=engine)[-1].run_id
    n = np.array([len(of) for of in load_federation_data(spec, Path("data")).partition.train])
    visited = 2 * np.where(n < 100, n, n // 100 * 100)
    seconds = 2 * 0.5 + 2 * 8 * SIZE / 1e5 + visited * SAMPLE / (1e6 * rng.speeds(spec.partition.seed, 5, 8.0))
    late = seconds > (deadline or np.inf)
    assert late.any() == (deadline is not None)
    assert not late.all()
    expected = deadline if deadline else seconds.max()
    assert rows(store, SIMULATED.format(run_id)) == [(0, None), *((t, pytest.approx(expected, rel=1e-12)) for t in (1, 2))]
    sent = "SELECT participants, params_up, params_down, bytes_up FROM round WHERE run_id = {} AND round > 0"
    left = int((~late).sum())
    assert set(rows(store, sent.format(run_id))) == {(5, left * SIZE, 5 * SIZE, left * SIZE * 8)}
    lost = rows(store, f"SELECT DISTINCT data FROM artifact WHERE run_id = {run_id} AND name = 'survivors'")
    assert bool(lost) == (deadline is not None)


@pytest.mark.parametrize("name", ["fedavg", "ditto"])
def test_an_interrupted_run_loses_the_same_clients_and_owes_the_same(store, name):
    wished = short(name, dropout=0.3, upload="topk:0.05", join_ratio_low=0.5, deadline=15.0, **CLOCK)
    whole = run(wished, store)[-1].run_id
    interrupted(wished, store, 2, Execution(workers=1, checkpoint_every=1e9), force=True)
    resumed = run(wished, store, force=True)
    assert (resumed[0].kind, resumed[0].round) == ("resumed", 2)
    assert numbers(store, resumed[-1].run_id) == numbers(store, whole)
    assert rows(store, SIMULATED.format(resumed[-1].run_id)) == rows(store, SIMULATED.format(whole))
    plain = run(short(name, dropout=0.3, join_ratio_low=0.5, deadline=15.0, **CLOCK), store)[-1].run_id
    assert numbers(store, plain) != numbers(store, whole)


@pytest.mark.parametrize("options", [
    {"dropout": 1.0}, {"upload": "int4"}, {"upload": "topk:0"}, {"upload": "topk"}, {"upload": "topk:2"}, {"deadline": 1.0},
    {"slowest": 3.0}, {"join_ratio": 0.5, "join_ratio_low": 0.6}, {"bandwidth": 0.0}, {"flops_per_second": 1.0, "slowest": 0.5},
    {"methods": ("fedamp",), "upload": "int8"}, {"methods": ("fedfomo",), "upload": "topk:0.1"},
    {"methods": ("apple",), "upload": "int8"}, {"methods": ("fedamp+ala",), "upload": "int8"},
    {"methods": ("apple",), "join_ratio_low": 0.5}, {"methods": ("fedamp",), "join_ratio_low": 0.5},
])  # fmt: skip
def test_what_cannot_be_is_refused(options):
    with pytest.raises(UserError) as refused:
        plan(RunOptions(**{"methods": ("fedavg",), **options}))
    *_, option = (name for name in options if name != "methods")
    assert f"--{option.replace('_', '-')}" in refused.value.message or "join ratio is 0.5" in refused.value.message


def test_an_upload_that_is_no_change_is_said(store):
    """The sensitivities of Elastic Aggregation."""
    told = run(short("elastic", rounds=1, upload="int8"), store)
    assert any(f"{SIZE:,} numbers of each upload are sent in full" in text for step in told for text in step.news)
    assert rows(store, "SELECT bytes_up FROM round WHERE round = 1") == [(5 * (SIZE + 8 + 8 * SIZE),)]
