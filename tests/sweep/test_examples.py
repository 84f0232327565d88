"""What lies in `examples/` is what its pages say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command import ROOT, Shell

from pflbench.reproduce.goal import goals
from pflbench.sweep.grid import specifications
from pflbench.sweep.study import read

EXAMPLES = ROOT / "examples"


@pytest.mark.slow
def test_the_sweep_of_table_2_has_the_runs_of_reproduce(tmp_path: Path) -> None:
    (goal,) = goals("table2")
    wanted = {one.spec.key for one in goal.planned(tmp_path)}
    found = [spec.key for spec in specifications(read(EXAMPLES / "table2.yaml").grid, tmp_path)]
    assert len(found) == 14 * 8 * 5
    assert set(found) == wanted


def test_a_dry_run_counts_runs_whose_data_are_missing(shell: Shell) -> None:
    grid = ["-m", "fedavg", "-m", "local", "--grid", "dataset=mnist,digits", "--clients", "4", "--rounds", "2"]
    done = shell("sweep", *grid, "--dry-run")
    assert done.code == 0
    assert "The data of 'mnist' are missing" in done.out
    assert "2 runs cannot start. Get them" in done.out
    assert "To run: 2, " in done.out
    assert "To run: 2. Time: unknown without the data." in shell("sweep", *grid[:4], "-d", "mnist", "--dry-run").out
    told = json.loads(shell("sweep", *grid, "--dry-run", "--json").out)
    assert (told["runs"], told["to_run"], list(told["without_data"])) == (4, 4, ["mnist"])
    assert not Path("pflbench.db").exists()
