"""Figures of what methods observed: drawn from the stored arrays, and a command is named where none were kept."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Engine
from support.command import ROOT, Shell
from support.observed import NAN, PATHOLOGICAL, add, pathological
from support.report_database import add_partition, add_run, spec

from pflbench.errors import UserError
from pflbench.report import PLOTS, blocks
from pflbench.report.figures import ala_convergence, ala_weights, attention, loss
from pflbench.report.figures.attention import numbers
from pflbench.store import arrays, partitions
from pflbench.store import database as db
from pflbench.store.partitions import PartitionRecord


def test_the_attention_matrix_is_drawn_in_the_order_of_the_groups(engine: Engine) -> None:
    xi = np.array([[0.5, 0.1, 0.3, 0.1], [0.0, 1.0, 0.0, 0.0], [6.0, 0.0, -9.0, 2.0], [0.1, 0.7, 0.0, 0.2]])
    add(engine, "fedamp", [{}, {"attention": xi}], partition=pathological(engine), scheme=PATHOLOGICAL)
    drawing = attention.plot(engine)
    ax = drawing.figure.axes[0]
    # Within a group the client that one class dominates more comes first: 0 (80 %) before 2 (60 %), 3 (90 %) before 1 (50 %).
    assert [text.get_text() for text in ax.get_xticklabels()] == ["0", "2", "3", "1"]
    expected = np.array([[NAN, 0.3, 0.1, 0.1], [6, NAN, 2, 0], [0.1, 0, NAN, 0.7], [0, 0, 0, NAN]])
    np.testing.assert_allclose(np.ma.filled(ax.images[0].get_array(), NAN), expected, atol=1e-300)
    assert ax.images[0].get_clim() == (0.1, 6)
    own = (0.6 + 0.75 + 0.875) / 3  # client 1 attends to nobody
    # The weights' sums are 0.5, 0, 8 and 0.8. Clients 1 and 3 go together first, then 0 and 2: these are the groups.
    assert f"weight on others 0.65, on own group {100 * own:.0f} % (by chance 33 %), ARI 1.00" in drawing.caption
    assert ax.get_title() == "FedAMP: MNIST, Pathological(2), after round 1"
    strip = ax.child_axes[-1]
    assert [text.get_text() for text in strip.get_yticklabels()] == ["0, 1", "2, 3"]
    assert strip.get_ylabel() == "Group: its classes"


def test_how_well_attention_tells_the_groups() -> None:
    shares = np.full((4, 4), 0.1)
    shares[[0, 1, 2, 3], [1, 0, 3, 2]] = 0.8
    np.fill_diagonal(shares, NAN)
    assert numbers.recovered(shares, np.array([5, 5, 2, 2])) == 1
    # {0, 1}, {2, 3} against {0, 2}, {1, 3}: no pair together in both, 2/3 expected of 2 possible: (0 - 2/3) / (2 - 2/3).
    assert numbers.recovered(shares, np.array([0, 1, 0, 1])) == pytest.approx(-0.5)


def test_negative_weights_are_drawn_about_zero(engine: Engine) -> None:
    p = np.array([[0.2, -0.1, 0.3, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    add(engine, "apple", [{"relationships": p}], partition=pathological(engine), scheme=PATHOLOGICAL)
    (image,) = attention.plot(engine).figure.axes[0].images
    assert np.nanmin(image.get_array()) == pytest.approx(-0.1)
    assert image.get_clim() == (-1, 1)
    assert float(image.norm(0.0)) == pytest.approx(0.5)
    assert 0.5 - float(image.norm(-0.1)) == pytest.approx(float(image.norm(0.1)) - 0.5)


def shade(engine: Engine) -> tuple[float, str]:
    """How dark the darkest weight on another client is, 0 being white paper; and what is written over the matrix."""
    (ax,) = attention.plot(engine).figure.axes
    image = ax.images[0]
    colours = image.cmap(image.norm(image.get_array()))[~np.ma.getmaskarray(image.get_array())]
    return float(1 - colours[:, :3].mean(axis=1).min()), " ".join(text.get_text() for text in ax.texts)


@pytest.mark.parametrize(("size", "said"), [(2.7e-101, "below 1e-100"), (0.0, "are 0"), (2e-6, ""), (0.5, "")])
def test_a_weight_that_is_next_to_nothing_looks_like_it(engine: Engine, size: float, said: str) -> None:
    """Divided by their sum, these weights were all in the colour of 100 %."""
    xi = np.array([[1, 0, size, 0], [0, 1, 0, size], [size, 0, 1, 0], [0, size, 0, 1]])
    add(engine, "fedamp", [{"attention": xi}], partition=pathological(engine), scheme=PATHOLOGICAL)
    dark, words = shade(engine)
    if said:
        assert dark < 0.01
        assert words.replace("\n", " ").endswith(said)
    else:
        assert words == ""
        assert 0.3 < dark < 0.5 if size < 1e-5 else dark > 0.6


def test_the_round_can_be_chosen(engine: Engine) -> None:
    matrices = [{"attention": np.full((4, 4), 0.25)}, {}, {"attention": np.eye(4)[::-1]}]
    add(engine, "fedamp", matrices, partition=pathological(engine), scheme=PATHOLOGICAL)
    assert "after round 2" in attention.plot(engine).figure.axes[0].get_title()
    early = attention.plot(engine, round=0).figure.axes[0]
    assert "after round 0" in early.get_title()
    assert np.nanmax(early.images[0].get_array()) == pytest.approx(0.25)
    with pytest.raises(UserError, match=r"(?s)after round 1\..*kept after: 0, 2"):
        attention.plot(engine, round=1)


def test_groups_are_those_of_the_partition_else_the_most_frequent_class() -> None:
    def groups(scheme: str, counts: list[list[int]], **of: Any) -> numbers.ClientGroups:
        held = np.array(counts)
        return numbers.groups(PartitionRecord("", scheme, "", "mnist", of, tuple("abcd"), held, 0 * held))

    made = groups("groups", [[9, 1, 1, 1]] * 3 + [[0, 0, 5, 5]] * 2, groups=2)
    assert (made.of.tolist(), made.names, made.true) == ([0, 0, 0, 1, 1], ("0, 1", "2, 3"), True)
    made = groups("dirichlet", [[1, 2, 9, 0], [5, 0, 4, 0], [0, 0, 3, 1]])
    assert (made.of.tolist(), made.names, made.true) == ([1, 0, 1], ("0", "2"), False)
    made = groups("pfllib", [[1, 2, 0, 0], [0, 0, 4, 4]], kind="pathological")
    assert (made.of.tolist(), made.true) == ([0, 1], True)


def test_histograms_are_of_each_layers_weights_without_idle_clients(engine: Engine) -> None:
    weights = [[0.0, 0.31, 1.0, 1.0], [NAN] * 4, [0.32, 0.34, 1.0, 0.52]]  # the second client did not take part
    blocks = [[0, 2, 4], [1, 0, 2]]
    add(engine, "fedala", [{}, {"ala_weights": weights, "ala_blocks": blocks}])
    output, fc = ala_weights.plot(engine).figure.axes
    assert (output.get_title(), fc.get_title()) == ("(a) output", "(b) fc")
    (drawn,) = fc.patches
    expected = np.zeros(20)
    expected[[0, 6]] = 25, 75
    np.testing.assert_allclose(drawn.get_data().values, expected, atol=1e-6)
    assert output.patches[0].get_data().values[[10, 19]] == pytest.approx([25, 75])
    assert [text.get_text() for text in output.figure.legends[0].get_texts()] == ["round 2"]


def test_layers_are_named_from_the_top_as_the_models_have_them() -> None:
    from pflbench.models import MODELS, build

    for name in MODELS:
        shape, vocabulary = ((200,), 50) if name == "fasttext" else ((3, 32, 32), None)
        assert len(blocks.NAMES[name]) == len(build(name, shape, 10, vocabulary).blocks)


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
    with pytest.raises(UserError, match=r"(?s)Of 1 run none kept.*pflbench run -m .*--observe-every"):
        plot(engine)


def test_of_several_seeds_the_first_is_drawn(engine: Engine) -> None:
    for seed in (3, 1, 2):
        add(engine, "fedala", [{"ala_epoch_losses": [[float(seed)]] * 3}], seed=seed)
    drawing = ala_convergence.plot(engine, client=0)
    assert drawing.figure.axes[0].lines[0].get_ydata().tolist() == [1]
    assert drawing.runs == (2,)


def test_all_of_it_from_a_real_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The losses that ALA reports agree with what the figures' captions say of them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PFLBENCH_DB", "results.db")
    shell = Shell(capsys)
    command = "run -m fedala -m apple -d digits --clients 5 --rounds 3 --batch-size 32 --observe-every 1 --set fedala.p=2 --quiet"
    assert shell(*command.split()).code == 0
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
    samples = partitions.find(engine, 1).train.sum(axis=1)
    trained = [float(samples @ each[:, 0] / samples.sum()) for each in losses]
    assert trained[2] < trained[0]
    assert (losses[0][:, 1] > losses[0][:, 0]).mean() > 0.5, (
        "a mix with the global model fits local data less than what was trained"
    )
    assert "--client" in shell.refused("plot", "loss", "--client", "1")
    assert "docs/tables-and-figures.md" in " ".join(shell("plot", "--help").out.replace("│", " ").split())


def test_every_plot_is_named_in_the_help_and_the_docs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "tables-and-figures.md").read_text(encoding="utf-8")
    from pflbench.cli.plot import NAMES

    for name in PLOTS:
        assert name in NAMES
        assert f"`plot {name}`" in page or f"`{name}`" in page, name


def test_they_import_no_more_than_the_others() -> None:
    code = (
        "import sys; from pflbench.report import PLOTS; [entry.load() for entry in PLOTS.values()];"
        "print([m for m in ('torch', 'pandas', 'matplotlib', 'scipy', 'sklearn') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
