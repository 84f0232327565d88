"""`plot ala-weights`, `ala-convergence` and `loss`, in print and on a page: what ALA learned, of those who took part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Engine
from support.command import Shell
from support.observed import NAN, add
from support.pages import only
from support.report_database import add_partition, add_run, spec

from pflbench.errors import UserError
from pflbench.report.figures import ala_convergence, ala_weights, attention, loss
from pflbench.store import arrays, partitions
from pflbench.store import database as db


def test_histograms_are_of_each_layers_weights_without_idle_clients(engine: Engine) -> None:
    weights = [[0.0, 0.31, 1.0, 1.0], [NAN] * 4, [0.32, 0.34, 1.0, 0.52]]  # the second client did not take part
    blocks = [[0, 2, 4], [1, 0, 2]]
    add(engine, "fedala", [{}, {"ala_weights": weights, "ala_blocks": blocks}])
    output, fc = ala_weights.plot(engine).figure.axes
    assert (output.get_title(), fc.get_title()) == ("(a) output", "(b) fc")
    (drawn,) = fc.lines
    expected = np.zeros(20)
    expected[[0, 6]] = 25, 75
    np.testing.assert_allclose(drawn.get_xdata(), np.arange(21) / 20)
    np.testing.assert_allclose(drawn.get_ydata()[:-1], expected, atol=1e-6)
    assert output.lines[0].get_ydata()[[10, 19]] == pytest.approx([25, 75])
    assert [text.get_text() for text in output.figure.legends[0].get_texts()] == ["round 2"]


def test_layers_are_named_from_the_top_as_the_models_have_them() -> None:
    import torch

    from pflbench.models import MODELS, build

    for name in MODELS:
        texts, signals = name in ("fasttext", "charlstm"), name == "harcnn"
        shape, vocabulary = ((200,), 50) if texts else ((9, 1, 128) if signals else (3, 32, 32), None)
        with torch.device("meta"):  # names and shapes alone
            model = build(name, shape, 10, vocabulary)
        assert len(MODELS[name].blocks) == len(model.blocks)


def test_a_line_per_round_of_the_clients_losses(engine: Engine) -> None:
    first = [[NAN] * 4, [5.0, 4.0, 3.0, 2.0], [9.0, 8.0, NAN, NAN]]
    add(engine, "fedala", [{}, {"ala_epoch_losses": first}, {"ala_epoch_losses": [[1.0], [2.5], [NAN]]}])
    (ax,) = ala_convergence.plot(engine, client=1).figure.axes
    assert [line.get_xydata().tolist() for line in ax.lines] == [[[1, 5], [2, 4], [3, 3], [4, 2]], [[1, 2.5]]]
    assert [text.get_text() for text in ax.figure.legends[0].get_texts()] == ["round 2", "round 3"]
    (ax,) = ala_convergence.plot(engine, client=2).figure.axes
    assert [line.get_xydata().tolist() for line in ax.lines] == [[[1, 9], [2, 8]]]
    with pytest.raises(UserError, match=r"(?s)Client 8 learned no weights.*here to 2"):
        ala_convergence.plot(engine)


def test_losses_are_means_by_sample_count_over_those_who_took_part(engine: Engine) -> None:
    partition = add_partition(engine, counts=[[3, 0], [6, 3], [0, 9]])  # 2, 6 and 6 training samples
    rows = [{}, {"ala_objective": [[1.0, 2.0], [3.0, 6.0], [NAN, NAN]]}, {"ala_objective": [[1.0, 1.5], [0.5, 1.0], [2.0, 3.0]]}]
    add(engine, "fedala", rows, partition=partition)
    (ax,) = loss.plot(engine).figure.axes
    initialised, trained = ax.lines
    np.testing.assert_allclose(trained.get_xydata(), [[1, (2 * 1 + 6 * 3) / 8], [2, (2 * 1 + 6 * 0.5 + 6 * 2) / 14]])
    np.testing.assert_allclose(initialised.get_xydata(), [[2, (2 * 2 + 6 * 6) / 8], [3, (2 * 1.5 + 6 * 1 + 6 * 3) / 14]])


@pytest.mark.parametrize("plot", [attention.plot, ala_weights.plot, ala_convergence.plot, loss.plot])
def test_without_arrays_the_command_that_keeps_them_is_named(engine: Engine, plot: Callable[[Engine], Any]) -> None:
    add_run(engine, spec("fedala"), [0.1, 0.2])
    with pytest.raises(UserError, match=r"(?s)Of 1 run none kept.*pflbench run -m .*--save-artifacts-every"):
        plot(engine)


@pytest.mark.slow
def test_all_of_it_from_a_real_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The losses that ALA reports agree with what the figures' captions say of them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PFLBENCH_DB", "results.db")
    shell = Shell(capsys)
    command = "run -m fedala -m apple -d digits --clients 5 --rounds 3 --batch-size 32 --save-artifacts-every 1 --quiet"
    assert shell(*command.split(), "--set", "fedala.p=2", "--set", "fedala.max_init_epochs=12").code == 0
    for name in ("attention", "ala-weights", "loss", "ala-convergence --client 2"):
        done = shell("plot", *name.split())
        assert done.code == 0, done
        file = Path(f"{name.split()[0]}.png")
        assert file.read_bytes().startswith(b"\x89PNG")
        caption = file.with_suffix(".caption.txt").read_text()
        assert "Protocol: MLP, 5 clients, 3 rounds" in caption
        assert "runs 1." in caption or "runs 2." in caption
    engine = db.connect(db.to_url("results.db"))
    blocks = arrays.read_one(engine, 1, "ala_blocks")
    assert blocks.tolist() == [[0, 64 * 64 + 64, 64 * 64 + 64 + 650], [1, 0, 64 * 64 + 64]]
    losses = [arrays.read_one(engine, 1, "ala_objective", t) for t in (1, 2, 3)]
    samples = partitions.find(engine, "1").train.sum(axis=1)
    trained = [float(samples @ each[:, 0] / samples.sum()) for each in losses]
    assert trained[2] < trained[0]
    assert (losses[0][:, 1] > losses[0][:, 0]).mean() > 0.5, (
        "a mix with the global model fits local data less than what was trained"
    )
    assert "--client" in shell.refused("plot", "loss", "--client", "1")


def test_on_a_page_the_losses_are_those_of_the_first_client_that_learned(engine: Engine) -> None:
    losses = [[NAN] * 4, [5.0, 4.0, 3.0, NAN], [9.0, NAN, NAN, NAN]]  # there is no client 8, and client 0 learned nothing
    add(engine, "fedala", [{}, {"ala_epoch_losses": losses}])
    learning = only("ala-convergence", engine)
    assert (learning.spec["data"][0]["x"], learning.spec["data"][0]["y"]) == ([1, 2, 3], [5, 4, 3])
    assert "Loss of client 1 " in learning.caption
