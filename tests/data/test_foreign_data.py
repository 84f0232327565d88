"""Own data from anywhere: numbers that are none, labels that are no class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.command import Shell

from pflbench import data
from pflbench.data import table
from pflbench.errors import UserError

X = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
Y = np.arange(40) % 2


def folder(path: Path, x: Any, y: Any, *, tests: bool = True, **config: object) -> Path:
    """As PFLlib writes it, of two clients with the same samples."""
    for side in ("train", "test"):
        (path / side).mkdir(parents=True)
        for client in range(2):
            held = {"x": x, "y": y} if tests or side == "train" else {"x": np.array([]), "y": np.array([])}
            np.savez(path / side / f"{client}.npz", data=np.array(held, dtype=object))
    (path / "config.json").write_text(json.dumps({"num_clients": 2, **config}))
    return path


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_data_that_are_not_finite_are_called_so(tmp_path: Path, value: float) -> None:
    x = X.astype(np.float64)
    x[3, 2] = value
    np.savez(tmp_path / "a.npz", x=x, y=Y)
    with pytest.raises(UserError, match="the data hold NaN or infinity"):
        data.load(data.parse(f"npz:{tmp_path}/a.npz", tmp_path), tmp_path)


def test_labels_of_6000_digits_are_text(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"label,text\n{'9' * 6000},a b\n10,c\n9,d\n--5,e\n-3,f\n")
    assert table._read(path).classes == ("-3", "9", "10", "--5", "9" * 6000)


def test_a_run_without_test_samples_is_refused_before_it_is_stored(shell: Shell, tmp_path: Path) -> None:
    folder(tmp_path / "pf", np.zeros((20, 1, 28, 28), np.float32), np.arange(20) % 10, tests=False)
    path = json.loads((tmp_path / "pf" / "config.json").read_text()) | {"num_classes": 10}
    (tmp_path / "pf" / "config.json").write_text(json.dumps(path))
    command = ("run", "-m", "fedavg", "-d", "mnist", "-p", f"pfllib:{tmp_path}/pf", "--model", "mlp", "-r", "1", "-q")
    assert "has test samples: the run would have no result" in shell.refused(*command)
    assert json.loads(shell("runs", "list", "--json").out) == []
