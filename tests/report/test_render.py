"""Every figure at the width of a column and of a page: texts inside and clear of each other, whole rounds, options of `plot`."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.quiver import Quiver
from matplotlib.text import Text
from PIL import Image
from sqlalchemy import Engine
from support.cases import rest_slow
from support.command import Shell
from support.figure_options import FILTERS
from support.observed import PATHOLOGICAL, add, pathological
from support.report_database import add_partition, add_run, spec

from pflbench import methods
from pflbench.errors import UserError
from pflbench.report import labels, render, style
from pflbench.report.declared import PLOTS
from pflbench.report.figures import ala_convergence, curves, distribution, loss
from pflbench.report.looks import Look
from pflbench.report.selection import Filters
from pflbench.report.style import PrintPage
from pflbench.report.traces import Axis, Panel, Trace, cost_axis, with_letters
from pflbench.spec import TrainSpec
from pflbench.store import database as db

LEAST = 6  # points that are legible in print


def texts(ax: Axes) -> list[Text]:
    """All that can be read in a panel and the axes in it, but ticks beyond its limits."""
    found = [ax.title, ax.xaxis.label, ax.yaxis.label, *ax.texts]
    for axis, (low, high) in ((ax.xaxis, sorted(ax.get_xlim())), (ax.yaxis, sorted(ax.get_ylim()))):
        found += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high and tick.label1.get_visible()]
        found += [tick.label2 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high and tick.label2.get_visible()]
    for inside in ax.child_axes:
        found += texts(inside)
    return [text for text in found if text.get_text()]


def check(figure: Figure) -> None:
    with style.context():
        figure.canvas.draw()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    legends = [legend.get_window_extent(renderer) for legend in figure.legends]
    outer = figure.bbox.padded(1)
    every = [text for ax in figure.axes for text in texts(ax)]
    assert every
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in every]
    for said, box in [*boxes, *(("legend", legend) for legend in legends)]:
        assert outer.x0 <= box.x0 < box.x1 <= outer.x1, said
        assert outer.y0 <= box.y0 < box.y1 <= outer.y1, said
    for legend in legends:
        assert not any(legend.overlaps(ax.bbox) for ax in figure.axes)
        assert not [said for said, box in boxes if legend.overlaps(box)]
    ticks = {id(t) for ax in figure.axes for axis in (ax.xaxis, ax.yaxis) for t in axis.get_ticklabels()}
    fixed = [(text.get_text(), box.padded(-1)) for text, (_, box) in zip(every, boxes, strict=True) if id(text) in ticks]
    titles = [(ax.get_title(), ax.title.get_window_extent(renderer)) for ax in figure.axes if ax.get_title()]
    assert not [(a, b) for (a, one), (b, other) in combinations([*fixed, *titles], 2) if one.overlaps(other)]
    for text in (*every, *(text for legend in figure.legends for text in legend.get_texts())):
        assert text.get_fontsize() >= LEAST - 1e-9, text.get_text()


def figure(name: str, engine: Engine, page: PrintPage, filters: Filters = Filters()) -> Figure:
    with style.on(page):
        made: Figure = PLOTS[name].load()(engine, filters).figure
    return made


@pytest.mark.parametrize("width", rest_slow(style.WIDTHS, next(iter(style.WIDTHS))))
@pytest.mark.parametrize("name", PLOTS)
def test_every_figure_fits_a_column_and_a_page(golden: Engine, name: str, width: str) -> None:
    for filters in [FILTERS.get(name, Filters())] + [Filters()] * (name == "fairness"):
        made = figure(name, golden, PrintPage(style.WIDTHS[width]), filters)
        assert made.get_figwidth() == style.WIDTHS[width]
        check(made)


@pytest.mark.parametrize("size", [8, 10, 14])
def test_labels_beside_an_axis_are_not_cut(size: float) -> None:
    trace = Trace([0, 1], [70, 90], Look("#000000", "o", 0, 0), "FedAvg")
    panels = [Panel(title, Axis("Round"), Axis("Test accuracy after local training (%)"), [trace]) for title in ("one", "two")]
    for some in (panels, panels[:1]):
        with style.on(PrintPage(font_size=size)):
            made = render.drawing(some, [panel.title for panel in some], "", columns=1).figure
        labels = [ax.yaxis.label.get_window_extent() for ax in made.axes]
        assert all(label.x0 >= 0 and label.y0 >= 0 and label.y1 <= made.bbox.y1 for label in labels)
        assert not any(a.overlaps(b) for a, b in combinations(labels, 2))


def test_titles_of_many_words_are_not_cut(golden: Engine) -> None:
    """Settings that differ in model, clients, batch size and rounds."""
    for width in (None, *style.WIDTHS.values()):
        check(figure("curves", golden, PrintPage(width), Filters(datasets=["digits"], partitions=["Dir(0.1)"])))


@pytest.fixture(scope="module")
def all_methods(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    engine = db.connect(db.to_url(str(tmp_path_factory.mktemp("all") / "results.db")))
    for name in methods.METHODS:
        for plus in ("", "+ala"):
            add_run(engine, spec(name + plus, hyperparameters={}), [0.99871, 0.99872])
    return engine


@pytest.mark.parametrize(("width", "place"), [("one-column", "auto"), ("one-column", "right"), ("two-column", "auto")])
def test_a_legend_of_all_methods_lies_beside_the_data(all_methods: Engine, width: str, place: str) -> None:
    asked = Filters(methods=[name + plus for name in methods.METHODS for plus in ("", "+ala")])
    made = figure("curves", all_methods, PrintPage(style.WIDTHS[width], legend=place), asked)
    check(made)
    (legend,) = made.legends
    (ax,) = made.axes
    assert len(legend.get_texts()) == 2 * len(methods.METHODS)
    beside = legend.get_window_extent().x0 >= ax.bbox.x1
    assert beside == (place == "right" or (place == "auto" and width == "two-column"))
    assert ax.bbox.width > 0.3 * made.bbox.width


def test_a_legend_inside_or_none(engine: Engine) -> None:
    for name in list(methods.METHODS)[:8]:
        add_run(engine, spec(name, hyperparameters={}), [0.1, 0.2])
    inside = figure("curves", engine, PrintPage(legend="inside"))
    assert inside.legends == []
    assert len(inside.axes[0].get_legend().get_texts()) == 8
    bare = figure("curves", engine, PrintPage(legend="none"))
    assert (bare.legends, bare.axes[0].get_legend()) == ([], None)
    add_run(engine, spec("fedala", hyperparameters={}), [0.1, 0.2])
    with pytest.raises(UserError, match=r"inside has room for 8 entries, and here are 9(.|\n)*right or below"):
        figure("curves", engine, PrintPage(legend="inside"))


def test_a_method_s_name_is_never_cut_in_a_legend(engine: Engine) -> None:
    for name in ("fedavg", "fedala"):
        add_run(engine, spec(name, hyperparameters={}), [0.1, 0.2])
    for size in (9, 12):
        page = PrintPage(style.COLUMN, font_size=size, legend="right")
        (legend,) = figure("curves", engine, page).legends
        assert {"FedAvg", "FedALA"} <= {text.get_text() for text in legend.get_texts()}


def test_panels_have_letters_also_beyond_z() -> None:
    assert with_letters(["one"]) == ["one"]
    assert with_letters([""] * 28)[::9] == ["(a)", "(j)", "(s)", "(ab)"]


@pytest.mark.parametrize("costs", [(0.2, 0.6), (0.1, 0.9), (3, 50), (1, 90_000), (0, 0.15, 0.2)])
def test_an_axis_of_costs_has_room_for_its_ticks(costs: tuple[float, ...]) -> None:
    ticks = cost_axis("Training time (s)", costs).ticks
    assert ticks is not None
    assert 2 <= len(ticks) <= 5, "four and the 0"


def test_what_a_protocol_sets_has_words() -> None:
    """In captions: 'drop last batch auto', not 'drop_last=auto'."""
    assert not [name for name in TrainSpec.model_fields if "=" in labels.words(f"train.{name}", "2")]


def test_rounds_have_whole_ticks(engine: Engine) -> None:
    add_run(engine, spec("fedavg"), [0.1, 0.2, 0.3])
    losses = [[5.0, 4.0], [3.0, 2.0]]
    add(engine, "fedala", [{}, {"ala_objective": losses}, {"ala_objective": losses}], partition=add_partition(engine))
    for name, filters in (("curves", Filters(methods=["fedavg"])), ("loss", Filters())):
        for width in style.WIDTHS.values():
            (ax,) = figure(name, engine, PrintPage(width), filters).axes
            ticks = ax.get_xticks()
            assert all(float(tick).is_integer() for tick in ticks), (name, ticks)
            assert [text.get_text().replace("−", "-") for text in ax.get_xticklabels()] == [f"{tick:.0f}" for tick in ticks]


@pytest.mark.parametrize(("last", "axis"), [(0.004, "log"), (0.5, "linear"), (0.0, "linear")])
def test_losses_that_span_decades_have_a_logarithmic_axis(engine: Engine, last: float, axis: str) -> None:
    partition = add_partition(engine, counts=[[3, 0], [6, 3], [0, 9]])
    rows: list[dict[str, Any]] = [
        {"ala_objective": [[value, value]] * 3, "ala_epoch_losses": [[value]] * 3} for value in (1.0, last)
    ]
    add(engine, "fedala", [{}, *rows], partition=partition)
    for ax in (loss.plot(engine).figure.axes[0], ala_convergence.plot(engine, client=0).figure.axes[0]):
        assert ax.get_yscale() == axis
        low, high = ax.get_ylim()
        ticks = [tick for tick in ax.get_yticks() if low <= tick <= high]
        assert low < last or last == 0
        assert len(ticks) > 2
    if axis == "log":
        assert [text.get_text() for text in ax.get_yticklabels()] == ["0.01", "0.1", "1"]


def test_titles_are_one_line_and_letters_lead_to_the_caption(engine: Engine) -> None:
    long = {"rounds": 20, "batch_size": 32, "local_epochs": 3}
    for fields in ({}, long, {**long, "lr": 0.5}):
        add_run(engine, spec("fedavg", **fields), [0.1, 0.2])
    with style.on(PrintPage(style.PAGE)):
        drawing = curves.plot(engine)
    first = drawing.figure.axes[0].get_title().replace("\n", " ")
    assert first.startswith("(a) MNIST, Dir(0.1), ")
    assert f"{first};" in drawing.caption
    with style.on(PrintPage(titles=False)):
        assert [ax.get_title() for ax in curves.plot(engine).figure.axes] == ["(a)", "(b)", "(c)"]
    only = figure("fairness", engine_with_clients(engine), PrintPage(titles=False), Filters(datasets=["cifar10"]))
    assert [ax.get_title() for ax in only.axes] == [""]


def engine_with_clients(engine: Engine) -> Engine:
    tested = {"clients": np.arange(2), "correct": np.array([1, 2]), "total": np.array([9, 9]), "loss": np.zeros(2)}
    add_run(engine, spec("fedavg", dataset="cifar10"), [0.1, 0.2], **tested)
    return engine


@pytest.mark.parametrize("shape", [(5, 10), (20, 10), (100, 10), (100, 100)])
@pytest.mark.parametrize("width", [None, *style.WIDTHS.values()])
def test_circles_are_whole_and_hide_no_neighbour(engine: Engine, shape: tuple[int, int], width: float | None) -> None:
    counts = np.full(shape, 90)
    add_partition(engine, counts=counts.tolist())
    with style.on(PrintPage(width)):
        made = distribution.plot(engine).figure
    check(made)
    (ax,) = made.axes
    (circles,) = ax.collections
    across = float(np.sqrt(circles.get_sizes().max())) * style.DPI / 72  # pixels
    at = ax.transData.transform(np.asarray(circles.get_offsets()))
    assert (at - across / 2 >= ax.bbox.min - 0.5).all()
    assert (at + across / 2 <= ax.bbox.max + 0.5).all()
    apart = min(np.ptp(at[:, 0]) / (shape[0] - 1), np.ptp(at[:, 1]) / (shape[1] - 1))
    assert across <= 1.25 * apart or across <= 2.4 * apart < 2 * style.DPI * 5 / 72
    assert across >= 4 * style.DPI / 72 or across >= 2 * apart


def test_the_circles_of_a_thousand_clients_can_be_seen(engine: Engine) -> None:
    add_partition(engine, counts=np.eye(10)[np.arange(1000) % 10].tolist())
    (ax,) = distribution.plot(engine).figure.axes
    (circles,) = ax.collections
    clients, classes = np.asarray(ax.transData.transform(circles.get_offsets())).T
    across = float(np.sqrt(circles.get_sizes().max())) * style.DPI / 72  # pixels
    assert across >= 4 * style.DPI / 72
    assert across <= 1.25 * np.ptp(classes) / 9, "classes stay apart"
    assert across <= 10 * np.ptp(clients) / 999, "circles of the same class stay apart"


def test_bars_at_the_same_x_stand_side_by_side_and_panels_of_one_quantity_share_their_axis() -> None:
    def panel(high: float, label: str) -> Panel:
        look, bars = Look("#000000", "o", 0, 0), {"low": [0, 1], "high": [2, high], "bars": True}
        traces = [Trace([1, 2], [1, 2], look, name, aside=aside, **bars) for name, aside in (("a", -2.0), ("b", 2.0))]
        return Panel("", Axis("x", limits=(0, 3)), Axis(label), traces)

    figure = render.drawing([panel(3, "accuracy"), panel(9, "accuracy"), panel(5, "seconds")], [], "", columns=3).figure
    first, second, third = figure.axes
    left, right = (ax.get_window_extent() for ax in first.collections)
    assert right.x0 - left.x1 > 2 * style.DPI / 72, "the bars do not touch"
    assert [line.get_xdata().tolist() for line in first.lines] == [[1, 2], [1, 2]]
    assert first.get_ylim() == second.get_ylim() != third.get_ylim()
    assert first.get_ylim()[1] > 9
    assert [ax.yaxis.get_tick_params()["labelleft"] for ax in figure.axes] == [True, False, True]


def test_no_marker_of_fairness_touches_the_frame(golden: Engine) -> None:
    made = figure("fairness", golden, PrintPage(style.COLUMN, font_size=10), Filters(datasets=["tiny", "digits"]))
    for ax in made.axes:
        for line in ax.lines:
            radius = 0.5 * style.DPI / 72 * (line.get_linewidth() if line.get_linestyle() == "-" else line.get_markersize())
            at = ax.transData.transform(line.get_xydata())
            assert (at - radius >= ax.bbox.min).all()
            assert (at + radius <= ax.bbox.max).all()


def test_a_long_trajectory_has_few_arrows(engine: Engine) -> None:
    rng = np.random.default_rng(0)
    steps = rng.normal(size=(61, 2, 30)).cumsum(axis=0).astype(np.float32)
    rows = [{"trajectory_4": models} for models in steps]
    for method in ("fedavg", "fedala"):
        add(engine, method, rows, partition=pathological(engine), scheme=PATHOLOGICAL)
    with style.on(PrintPage(style.COLUMN)):
        drawing = PLOTS["trajectory"].load()(engine)
    (ax,) = drawing.figure.axes
    check(drawing.figure)
    arrows = [one for one in ax.collections if isinstance(one, Quiver)]
    assert [one.N for one in arrows] == [13, 13]
    starts = next(line for line in ax.lines if line.get_marker() == "o" and line.get_linestyle() == "None").get_xydata()
    whole = ax.lines[0].get_xydata()
    assert len(whole) == 2 * 61
    np.testing.assert_allclose(starts[[0, 1, -1]], whole[[0, 10, -2]])
    np.testing.assert_allclose(arrows[0].XY, starts)
    np.testing.assert_allclose((arrows[0].XY + np.stack([arrows[0].U, arrows[0].V], axis=1))[[0, 1, -1]], whole[[1, 11, -1]])
    assert not [line for line in ax.lines if line.get_marker() == "s"], "nothing covers the heads"
    for text in ax.texts:
        box = text.get_window_extent()
        assert (box.min >= ax.bbox.min).all(), f"{text.get_text()} is not in the frame"
        assert (box.max <= ax.bbox.max).all(), f"{text.get_text()} is not in the frame"
    assert "in 13 of the 61 rounds" in drawing.caption


def test_the_options_of_plot(engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("fedavg", "ditto"):
        add_run(engine, spec(name, hyperparameters={}), [0.1, 0.2, 0.4])
    engine.dispose()
    shell, file = Shell(capsys), tmp_path / "curves.png"
    command = ("plot", "curves", "--db", str(tmp_path / "results.db"), "-o", str(file))

    def width(*options: str) -> float:
        assert shell(*command, *options).code == 0
        with Image.open(file) as image:
            return image.size[0] / style.DPI

    assert width("--width", "one-column") == pytest.approx(3.3, abs=0.01)
    assert width("--width", "two-column", "--legend", "right") == pytest.approx(6.9, abs=0.01)
    assert width("--width", "5", "--font-size", "9", "--no-title", "--legend", "inside") == pytest.approx(5, abs=0.01)
    svg = file.with_suffix(".svg")
    assert shell(*command[:-1], str(svg), "--font-size", "9", "--no-title").code == 0
    assert "MNIST" not in svg.read_text().partition("</metadata>")[2]
    assert "9px" in svg.read_text()
    assert "one-column (3.3 in), two-column (6.9 in) or inches" in shell.refused(*command, "--width", "wide")
    assert "Valid: auto, below, inside, none, right" in shell.refused(*command, "--legend", "left")
    for size in ("99", "3", "nan"):
        assert f"--font-size {size} is not possible" in shell.refused(*command, "--font-size", size)
    assert "does not fit 1 inches" in shell.refused(*command, "--width", "1", "--font-size", "20")


def test_one_long_name_leaves_room_for_a_second_column_of_the_legend() -> None:
    names = [*(f"M{k}" for k in range(13)), "A method with a rather long name"]
    traces = [Trace([0, 1], [0, k], Look("#000000", "o", 0, 0), name) for k, name in enumerate(names)]
    with style.on(PrintPage(legend="below")):
        made = render.drawing([Panel("", Axis("x"), Axis("y"), traces)], [""], "").figure
    (legend,) = made.legends
    made.draw_without_rendering()
    assert len({round(text.get_window_extent().x0) for text in legend.get_texts()}) > 1
    assert legend.get_window_extent().width <= made.bbox.width
