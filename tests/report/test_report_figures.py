"""Figures: what is drawn is what is stored, every method looks the same everywhere, and files are what their suffix says."""

from __future__ import annotations

import math
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image
from sqlalchemy import Engine
from support.command import ROOT
from support.report_database import add_partition, add_run, spec

from pflbench import methods
from pflbench.errors import UserError
from pflbench.report import labels, looks
from pflbench.report.declared import PLOTS
from pflbench.report.figures import curves, distribution, overhead
from pflbench.report.selection import Filters
from pflbench.store import write

pairs = partial(combinations, r=2)
FEDAVG = [[0.1, 0.5, 0.7], [0.2, 0.6, 0.6]]


@pytest.fixture
def engine(store: Engine) -> Engine:
    for seed, values in enumerate(FEDAVG):
        add_run(store, spec("fedavg", seed), list(values), seconds=1.0 + seed)
    add_run(store, spec("ditto"), [0.3, 0.8, 0.9], seconds=3.0)
    return store


def test_the_std_band_is_the_population_std(engine: Engine) -> None:
    (ax,) = curves.plot(engine, Filters(methods=["fedavg"]), band="std").figure.axes
    corners = ax.collections[0].get_paths()[0].vertices
    y = corners[corners[:, 0] == 0][:, 1]
    assert (y.min(), y.max()) == (pytest.approx(10), pytest.approx(20))  # 15 -+ 5; the sample std would be 7.07


def test_over_seconds_the_training_time_is_the_mean_over_the_seeds(engine: Engine) -> None:
    (ax,) = curves.plot(engine, over="seconds").figure.axes
    fedavg, ditto = ax.lines
    np.testing.assert_allclose(fedavg.get_xdata(), [0, 1.5, 3])
    np.testing.assert_allclose(ditto.get_xdata(), [0, 3, 6])
    assert ax.get_xlabel() == "Training time (s)"


def test_the_y_axis_begins_where_it_is_told_in_every_panel(engine: Engine) -> None:
    add_run(engine, spec("fedavg", dataset="cifar10"), [0.1, 0.95])
    low, high = curves.plot(engine, y_min=60).figure.axes[0].get_ylim()
    assert low == 60
    assert 95 < high < 100
    assert {ax.get_ylim() for ax in curves.plot(engine, y_min=60).figure.axes} == {(low, high)}
    with pytest.raises(UserError, match=r"--y-min 95 leaves nothing to draw\.\nThe highest value is 95\.00 %\."):
        curves.plot(engine, y_min=95)
    for endless in (-math.inf, math.inf, math.nan):
        with pytest.raises(UserError, match="leaves nothing to draw"):
            curves.plot(engine, y_min=endless)


def test_runs_without_times_are_named(engine: Engine) -> None:
    add_run(engine, spec("fedavg", dataset="cifar10"), [0.1, 0.2])
    with pytest.raises(UserError, match=r"None of the 1 .* result by this rule.\nThey are without the seconds of every round"):
        curves.plot(engine, Filters(datasets=["cifar10"]), over="seconds")
    assert "Not counted: 1 run without the seconds" in curves.plot(engine, over="seconds").notes[0]


def test_there_is_a_panel_per_setting_and_one_legend(engine: Engine) -> None:
    add_run(engine, spec("fedavg", rounds=20), [0.1, 0.2])
    add_run(engine, spec("fedavg", dataset="cifar10"), [0.1, 0.2])
    drawing = curves.plot(engine)
    assert [ax.get_title() for ax in drawing.figure.axes] == [
        "(a) MNIST, Dir(0.1), 20 rounds",
        "(b) MNIST, Dir(0.1), 2000 rounds",
        "(c) Cifar10, Dir(0.1)",
    ]
    (legend,) = drawing.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["FedAvg", "Ditto"]
    assert "1 to 2 runs per method" in drawing.caption
    assert "(b) MNIST, Dir(0.1), 2000 rounds; (c) Cifar10" in drawing.caption


def test_the_mean_ends_where_the_shortest_run_ends(engine: Engine) -> None:
    add_run(engine, spec("fedavg", 2), [0.3, 0.1], status="running")
    assert len(curves.plot(engine).figure.axes[0].lines[0].get_xdata()) == 3
    drawing = curves.plot(engine, Filters(status=["any"]))
    np.testing.assert_allclose(drawing.figure.axes[0].lines[0].get_ydata(), [20, 40])


def test_a_round_that_one_run_lacks_is_left_out_of_the_mean(engine: Engine) -> None:
    add_run(engine, spec("fedavg", 2), [0.3, None, 0.8])
    line = curves.plot(engine, Filters(methods=["fedavg"])).figure.axes[0].lines[0]
    np.testing.assert_array_equal(line.get_xdata(), [0, 2])
    np.testing.assert_allclose(line.get_ydata(), [20, 70])


def test_unasked_only_the_settings_with_the_most_runs_are_drawn(engine: Engine) -> None:
    for rounds in range(1, 5):
        add_run(engine, spec("fedavg", rounds=rounds), [0.1, 0.2])
    drawing = curves.plot(engine)
    assert len(drawing.figure.axes) == 4
    assert "MNIST, Dir(0.1), 2000 rounds" in [ax.get_title().replace("\n", " ")[4:] for ax in drawing.figure.axes]
    assert any("the 4 settings with the most runs, of 5" in note for note in drawing.notes)
    chosen = curves.plot(engine, Filters(datasets=["mnist"]))
    assert len(chosen.figure.axes) == 5
    assert chosen.notes == ()


def test_partitions_are_chosen_by_dataset_label_number_and_hash(engine: Engine) -> None:
    with pytest.raises(UserError, match="no partitions in this database yet"):
        distribution.plot(engine)
    first = add_partition(engine, "a1" * 32)
    add_partition(engine, "b2" * 32, dataset="cifar10")

    def drawn(**chosen: list[str]) -> list[str]:
        return [ax.get_title().split(",")[0].split(") ")[-1] for ax in distribution.plot(engine, Filters(**chosen)).figure.axes]

    assert drawn() == ["MNIST", "Cifar10"]
    assert drawn(datasets=["Cifar10"]) == ["Cifar10"]
    assert drawn(partitions=[str(first)]) == ["MNIST"]
    assert drawn(partitions=["b2b2"]) == ["Cifar10"]
    assert drawn(partitions=["dir(0.1)"], datasets=["mnist"]) == ["MNIST"]
    with pytest.raises(UserError, match=r"No partition of emnist(.|\n)*cifar10, mnist"):
        drawn(datasets=["emnist"])
    with pytest.raises(UserError, match="No partition 'ff'"):
        drawn(partitions=["ff"])


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml"), (".PNG", b"\x89PNG")])
def test_the_suffix_decides_the_format(engine: Engine, tmp_path: Path, suffix: str, start: bytes) -> None:
    path = tmp_path / f"figure{suffix}"
    curves.plot(engine).save(path)
    first = path.read_bytes()
    assert first.startswith(start)
    curves.plot(engine).save(path)
    assert path.read_bytes() == first  # the same runs, the same file


def test_png_is_made_for_print_and_its_caption_stands_beside_it(engine: Engine, tmp_path: Path) -> None:
    drawing = curves.plot(engine)
    drawing.save(tmp_path / "figure.png", "Made by a test.")
    lines = (tmp_path / "figure.caption.txt").read_text().splitlines()
    assert lines == [drawing.caption, drawing.protocol, *drawing.notes, "Made by a test."]
    with Image.open(tmp_path / "figure.png") as image:
        assert image.size[0] == round(3.3 * 300)
        assert image.info["dpi"] == (pytest.approx(300, abs=0.1),) * 2
        assert image.info["Description"] == f"{drawing.caption} Made by a test."


def test_a_figure_that_cannot_be_written_is_a_user_error(engine: Engine, tmp_path: Path) -> None:
    drawing = curves.plot(engine)
    with pytest.raises(UserError, match=r"Unknown figure format '.gif'(.|\n)*.pdf, .png, .svg"):
        drawing.save(tmp_path / "figure.gif")
    with pytest.raises(UserError, match=r"Cannot write .*figure"):
        drawing.save(tmp_path / "missing" / "figure.png")


def test_colours_differ_for_colour_blind_eyes() -> None:
    """Red-green blindness simulated after Vienot et al. (1999): all pairs stay apart, and none vanishes on white paper."""
    to_lms = np.array([[17.8824, 43.5161, 4.11935], [3.45565, 27.1554, 3.86714], [0.0299566, 0.184309, 1.46709]])
    protan = np.array([[0, 2.02344, -2.52581], [0, 1, 0], [0, 0, 1]])
    deutan = np.array([[1, 0, 0], [0.494207, 0, 1.24827], [0, 0, 1]])
    linear = np.array([to_rgb(colour) for colour in looks.COLOURS]) ** 2.2
    for defect in (np.eye(3), protan, deutan):
        seen = (linear @ to_lms.T @ defect.T @ np.linalg.inv(to_lms).T).clip(0, 1) ** (1 / 2.2)
        apart = [np.linalg.norm(a - b) for i, a in enumerate(seen) for b in seen[:i]]
        assert min(apart) > 0.12
        assert all(np.linalg.norm(1 - colour) > 0.4 for colour in seen)


def test_every_plot_is_named_in_the_help_and_the_docs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "tables-and-figures.md").read_text(encoding="utf-8")
    from pflbench.cli.plot import NAMES

    for name in PLOTS:
        assert name in NAMES
        assert f"`plot {name}`" in page or f"`{name}`" in page, name


def test_a_dollar_in_a_stored_name_begins_no_formula(engine: Engine, tmp_path: Path) -> None:
    """A formula that is none ended the command; one that is one was drawn as such."""
    for seed, dataset in enumerate(("$x^2$", "$\\frac{$")):
        add_run(engine, spec("fedavg", seed, dataset=dataset), [0.1, 0.5])
    curves.plot(engine, Filters(datasets=("$x^2$", "$\\frac{$"))).save(tmp_path / "c.svg")
    drawn = (tmp_path / "c.svg").read_text()
    assert "$x^2$" in drawn
    assert "$\\frac{$" in drawn


def test_beyond_twelve_methods_the_best_are_in_colour_and_the_others_are_named(store: Engine) -> None:
    names = list(methods.METHODS)[:14]
    for k, name in enumerate(names):
        costs = {"participants": 4, "params_up": 40, "params_down": 40, "bytes_up": 160, "bytes_down": 160}
        run = add_run(store, spec(name, hyperparameters={}), [0.1, 0.2 + k / 20], seconds=1.0 + k, **costs)
        write.update_run(store, run, parameters=10)
    worst = ", ".join(labels.method_title(name) for name in names[:2])
    for figure in (curves, overhead):
        drawing = figure.plot(store)
        grey = [line for line in drawing.figure.axes[0].lines if line.get_color() == looks.OTHER.colour]
        assert sorted(line.get_ydata()[-1] for line in grey) == pytest.approx([20, 25])
        (legend,) = drawing.figure.legends
        entries = [text.get_text() for text in legend.get_texts()]
        assert entries[-1] == "others"
        assert set(map(labels.method_title, names[2:])) <= set(entries)
        assert drawing.caption.endswith(f"in grey: {worst}.")
        asked = figure.plot(store, Filters(methods=names))
        assert not [line for line in asked.figure.axes[0].lines if line.get_color() == looks.OTHER.colour]
        assert "grey:" not in asked.caption


def test_the_legend_of_a_distribution_has_circles_of_their_sizes(engine: Engine) -> None:
    add_partition(engine, counts=[[180, 50], [10, 20]])
    (ax,) = distribution.plot(engine).figure.axes
    (circles,) = ax.collections
    legend = ax.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["10", "50", "180 samples"]
    area = dict(zip([180, 50, 10, 20], circles.get_sizes(), strict=True))
    drawn = [handle.get_markersize() ** 2 for handle in legend.legend_handles]
    assert drawn == pytest.approx([area[10], area[50], area[180]])
    assert legend.get_window_extent().y1 < ax.xaxis.label.get_window_extent().y0


def test_panels_of_one_dataset_share_their_y_axis(engine: Engine) -> None:
    add_run(engine, spec("fedavg", partition={"scheme": "dirichlet", "beta": 0.5, "clients": 20}), [0.1, 0.2])
    add_run(engine, spec("fedavg", dataset="tiny"), [0.01, 0.02])
    axes = {ax.get_title(): ax for ax in curves.plot(engine).figure.axes}
    first, second, other = (
        axes[title] for title in ("(a) MNIST, Dir(0.1)", "(b) MNIST, Dir(0.5)", "(c) Tiny-ImageNet, Dir(0.1)")
    )
    assert first.get_ylim() == second.get_ylim()
    assert other.get_ylim()[1] < 3 < 90 < first.get_ylim()[1]
    assert [ax.yaxis.get_tick_params()["labelleft"] for ax in (first, second, other)] == [True, False, True]
