"""Runs and commands on PyTorch's CUDA build."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from support.command import assert_refused, finish, start
from support.runs import rows, short

from pflbench import methods
from pflbench.contract import device as checks
from pflbench.run.device import find_device
from pflbench.run.execution import Execution
from pflbench.run.training import execute

TOO_OLD = {"STAND_IN_DRIVER": "12040"}  # for CUDA 13


@pytest.mark.parametrize("device", ["auto", "cuda", "cuda:1"])
def test_a_run(device, store):
    spec = short("fedala", rounds=2, clients=4)
    *_, last = execute(spec, store, Path("data"), Execution(device))
    ((engine, environment),) = rows(store, f"SELECT engine, environment FROM run WHERE id = {last.run_id}")
    steps = json.loads(environment)["steps"]
    assert last.kind == "finished"
    assert engine == "batched"
    assert steps["capture"] == "graph"
    assert steps["programs"]
    assert not steps["apart"]
    ((peak,),) = rows(store, f"SELECT MAX(peak_memory) FROM round WHERE run_id = {last.run_id}")
    assert peak == torch.cuda.max_memory_reserved(find_device(device)), "with what captured steps keep"


# Of models and methods test_rounds.py makes rounds.
OTHERS = {one.what: one for one in checks.whole() if one.what not in (*checks.MODELS, *methods.METHODS)}


@pytest.mark.parametrize("check", OTHERS.values(), ids=OTHERS)
def test_what_the_doctor_checks_ends_in_numbers(check):
    """Wrong ones, as all are here; but nothing that the check does is refused."""
    ((_, found),) = checks.check([check], find_device("cuda"))
    assert not re.match(r"\w+(Error|Exception): ", found.why), found


def test_a_driver_that_is_too_old_is_named(tmp_path):
    """Both versions, instead of a quiet run on the CPU."""
    doctor, on_gpu, on_any = (
        finish(start(*words.split(), folder=tmp_path, **TOO_OLD))
        for words in ("doctor", "run -m local -d digits --rounds 1 --device cuda", "run -m local -d digits --rounds 1")
    )
    assert_refused(on_gpu)
    assert on_any.code == 0, on_any
    for done in (doctor, on_gpu, on_any):
        assert "CUDA up to 12.4" in done.err
        assert "CUDA 13.0" in done.err
