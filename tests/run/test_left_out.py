"""Samples that no client holds are counted where a partition is shown and stored."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.command import Shell, rows

from pflbench.report.figures import distribution
from pflbench.store import database as db
from pflbench.store import partitions
from pflbench.store.runs import ALL

# Four clients of 50: two want 40 of class 0 and 10 of class 1, two the reverse. Of class 0 that is 100, and it has 40; the 100 of
# class 1 are there. So 140 of 200 samples are held.
SIZES, LEFT_OUT = (40, 160), 60
GROUPS = ("--partition", "groups", "--clients", "4", "--groups", "2", "--dominant-share", "0.8")


@pytest.fixture
def uneven(tmp_path: Path) -> tuple[str, ...]:
    y = np.repeat(np.arange(2), SIZES)
    np.savez(tmp_path / "uneven.npz", x=np.random.default_rng(0).normal(size=(len(y), 8)).astype(np.float32), y=y)
    return "-d", f"npz:{tmp_path / 'uneven.npz'}"


def test_groups_that_run_out_of_a_class(shell: Shell, tmp_path: Path, uneven: tuple[str, ...]) -> None:
    shown = shell("partition", "show", *uneven, *GROUPS)
    assert f"{LEFT_OUT} samples are left out; no client gets them." in shown.err
    (plain,) = json.loads(shell("partition", "show", *uneven, *GROUPS, "--json").out)
    assert plain["left_out"] == LEFT_OUT == sum(SIZES) - np.sum(plain["train"]) - np.sum(plain["test"])
    done = shell("run", "-m", "local", *uneven, *GROUPS, "--model", "logreg", "--rounds", "1", "--lr", "0.1")
    assert f"leaves out {LEFT_OUT} samples, which no client gets." in done.err
    assert rows("SELECT left_out FROM partition") == [(LEFT_OUT,)]
    assert f"samples left out {LEFT_OUT}" in " ".join(shell("runs", "show", "1").out.split())
    assert f"{LEFT_OUT} samples are left out" in shell("partition", "show", "--run", "1").err
    store = db.connect(f"sqlite:///{tmp_path / 'pflbench.db'}")
    assert f" {LEFT_OUT} samples of uneven.npz Groups(2) are left out." in distribution.caption(partitions.stored(store, ALL))
    store.dispose()


def test_nothing_is_said_where_nothing_is_left_out(shell: Shell, tmp_path: Path, uneven: tuple[str, ...]) -> None:
    for scheme in ("iid", "dirichlet"):
        options = ("--partition", scheme, "--clients", "4")
        assert "left out" not in shell("partition", "show", *uneven, *options).err
        assert json.loads(shell("partition", "show", *uneven, *options, "--json").out)[0]["left_out"] == 0
