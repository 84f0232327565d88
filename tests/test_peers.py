"""benchmarks/peers: the models and tasks that other tools get, the plain loop beside pflbench, and the table."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.command import ROOT

from pflbench import models

MODULES = ("arm_pflbench", "arm_plain", "common", "compare", "nets", "task")
SHAPES = {"cnn": (3, 16, 16), "mlp": (1, 8, 8), "logreg": (1, 8, 8), "fasttext": (20,)}


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """All of MODULES, imported as they import one another."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "peers")
    yield Namespace(**{name: __import__(name) for name in MODULES})
    for name in MODULES:
        del sys.modules[name]


@pytest.mark.parametrize("name", SHAPES)
def test_the_plain_models_are_pflbenchs(scripts: Any, name: str) -> None:
    text = name == "fasttext"
    ours = models.build(name, SHAPES[name], 4, 30 if text else None)
    plain = scripts.nets.build(name, SHAPES[name], 4, 30 if text else None)
    plain.load_state_dict(ours.state_dict(), strict=True)
    x = torch.randint(30, (5, *SHAPES[name])) if text else torch.randn(5, *SHAPES[name])
    torch.testing.assert_close(plain(x), ours(x))


def test_with_one_batch_per_client_a_plain_loop_has_pflbenchs_accuracies(scripts: Any, tmp_path: Path) -> None:
    # Clients of ten samples: there is one order of batches only.
    options = Namespace(
        dataset="digits", data_dir=tmp_path, model="mlp", clients=20, partition="dir", alpha=0.5, seed=3, rounds=9, lr=None
    )
    spec = scripts.task.specification(options)
    data = scripts.task.load_federation_data(spec, tmp_path).cut(0.001, least=10)
    facts = scripts.task.write(tmp_path / "digits", spec, data)
    assert facts["steps_per_round"] == 20
    assert facts["train_samples"] == 200
    found = []
    for adapter in (scripts.arm_pflbench, scripts.arm_plain):
        with scripts.common.Recorder() as recorder:
            adapter.arm(scripts.common.Task.read(tmp_path / "digits"), "fedavg", 4, 0, recorder)
        found.append(recorder)
    ours, plain = found
    assert plain.accuracy == pytest.approx(ours.accuracy)
    assert len(set(plain.accuracy)) > 1
    assert plain.steps_per_round == ours.steps_per_round == [20] * 4
    assert plain.gradients_per_round == [20] * 4
    assert ours.gradients_per_round[1:] == [20] * 3


def row(scripts: Any, tool: str, repeat: int, seconds: float, **more: Any) -> Any:
    found = {
        "steps_per_round": 7, "gradients_per_round": [9, 7, 7], "start_cpu_s": 1.0, "train_cpu_s": [50.0, seconds, seconds],
        "eval_cpu_s": [1.0] * 3, "train_wall_s": [1.0] * 3, "eval_wall_s": [1.0] * 3, "peak_rss_mib": 100.0,
        "accuracy": [10.0, 20.0, 30.0 + repeat], "error": None, "version": "1", **more,
    }  # fmt: skip
    return scripts.compare.Row("digits", "fedavg", tool, repeat, 3, found)


def test_a_ratio_is_of_means_and_its_interval_of_pairs(scripts: Any) -> None:
    assert scripts.compare.ratio([2, 4, 6], [1, 2, 3]) == pytest.approx((2, 2, 2))
    middle, low, high = scripts.compare.ratio([2, 4, 6], [2, 2, 2])
    assert (middle, low, high) == pytest.approx((2, 1, 3))


def test_the_table_leaves_out_the_first_round_and_names_other_work(scripts: Any) -> None:
    rows = [row(scripts, "pflbench", k, 1.0 + k) for k in range(2)]
    rows += [row(scripts, "twice", k, 2.0 + 2 * k) for k in range(2)]
    rows += [row(scripts, "less", 0, 1.0, gradients_per_round=5)]
    rows += [row(scripts, "remote", 0, 1.0, gradients_per_round=0)]
    rows += [row(scripts, "none", 0, 1.0, error="no such method\nmore")]
    lines = scripts.compare.table(rows).split("\n")
    assert "| digits | fedavg | pflbench | 1.5 | 1 |  |  | 7 | 1.0 | 100 |" in lines
    assert "| digits | fedavg | twice | 3 | 1 | 2.00 (2.00-2.00) | 1.60 (1.50-1.67) | 7 | 1.0 | 100 |" in lines
    assert lines[-2:] == [
        "* digits, fedavg, less: not the same work: 5 gradients a round, pflbench 7",
        "* digits, fedavg, none: no such method",
    ]


def test_a_row_is_read_as_it_was_written_and_not_run_again(scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def run(tool: str, task: Path, method: str, repeat: int, options: Namespace) -> Any:
        ran.append((tool, repeat))
        return row(scripts, tool, repeat, 1.0, error="broken" if tool == "twice" else None)

    monkeypatch.setattr(scripts.compare, "run", run)
    options = Namespace(
        output=tmp_path / "rows.csv", tasks=[tmp_path / "digits"], methods="fedavg", tools="pflbench,twice", repeats=1, rounds=3,
        again=False,
    )  # fmt: skip
    scripts.compare.measure(options)
    options.repeats = 2
    scripts.compare.measure(options)
    assert ran == [("pflbench", 0), ("twice", 0), ("pflbench", 1), ("twice", 1)]
    assert scripts.compare.read(options.output)[0] == row(scripts, "pflbench", 0, 1.0)
    options.again = True
    scripts.compare.measure(options)
    assert ran[4:] == [("twice", 0), ("twice", 1)]
    assert len(scripts.compare.read(options.output)) == 4


def test_agreement_is_a_difference_of_means_over_seeds(scripts: Any) -> None:
    rows = [row(scripts, tool, k, 1.0) for tool in ("pflbench", "other") for k in range(2)]
    rows[2].found["accuracy"] = [12.0, 20.0, 33.0]
    last = scripts.compare.agreement(rows).split("\n")[-1]
    # Rounds 1, 2 and 3: 12 and 10 beside 10 and 10; equal; 33 and 31 beside 30 and 31.
    error = [2 * np.sqrt(variance / 2) for variance in (2.0, 2.0 + 0.5)]
    assert f"| +1.00 ± {error[0]:.2f} | +0.00 ± 0.00 | +1.50 ± {error[1]:.2f} |" in last


def test_the_table_is_written_between_a_pages_markers(scripts: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n{}\nold\n{}\nafter\n".format(*scripts.compare.MARKERS))
    scripts.compare.put_into(page, "| new |")
    assert page.read_text() == "before\n{}\n\n| new |\n\n{}\nafter\n".format(*scripts.compare.MARKERS)
    page.write_text("nothing")
    with pytest.raises(SystemExit, match="does not have the lines"):
        scripts.compare.put_into(page, "| new |")
