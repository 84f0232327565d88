"""`plot ranks`, in print and on a page: bars are Nemenyi's, ranks SciPy's, nothing is joined where nothing was found."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.stats import friedmanchisquare, rankdata
from sqlalchemy import Engine
from support.command import Shell
from support.pages import only
from support.report_database import add_run, spec

from pflbench import methods
from pflbench.errors import UserError
from pflbench.report import labels, looks, style
from pflbench.report.figures import ranks
from pflbench.report.selection import Filters

METHODS = ("local", "fedavg", "fedprox", "fedrep", "ditto", "fedamp", "fedala")
TITLES = {labels.method_title(name) for name in METHODS}


def fill(engine: Engine, accuracy: np.ndarray, methods: tuple[str, ...] = METHODS) -> None:
    """accuracy: fractions [methods, settings]; a setting is a beta."""
    for method, values in zip(methods, accuracy, strict=True):
        for k, value in enumerate(values, start=1):
            place = {"scheme": "dirichlet", "beta": k / 10, "clients": 20}
            add_run(engine, spec(method, partition=place, hyperparameters={}), [float(value)])


def ordered(settings: int, noise: float, rows: int = len(METHODS)) -> np.ndarray:
    """Rows that rise by 5 points with noise on them, in ten-thousandths: what is printed is what is stored."""
    rng = np.random.default_rng(4)
    return (0.3 + 0.05 * np.arange(rows)[:, None] + rng.normal(0, noise, (rows, settings))).clip(0.01, 0.99).round(4)


def bars(figure: Figure) -> set[tuple[float, float]]:
    lines = [line for line in figure.axes[0].lines if line.get_gid() == "crossbar"]
    return {(round(min(line.get_xdata()), 9), round(max(line.get_xdata()), 9)) for line in lines}


def maximal_groups(alike: np.ndarray) -> list[set[int]]:
    """By trying all sets of rows: those of two and more, no pair of which differs, and to which no row can be added."""
    rows = range(len(alike))
    sets = [set(of) for n in range(2, len(alike) + 1) for of in combinations(rows, n)]
    groups = [one for one in sets if all(alike[i, k] for i, k in combinations(one, 2))]
    return [one for one in groups if not any(one < other for other in groups)]


def test_bars_are_the_maximal_sets_that_nemenyi_does_not_tell_apart(engine: Engine) -> None:
    accuracy = ordered(8, 0.06)
    fill(engine, accuracy)
    average = rankdata(-accuracy, axis=0).mean(axis=1)
    critical = 2.949 * (7 * 8 / (6 * 8)) ** 0.5  # Demsar (2006), Table 5: seven methods at 0.05
    groups = maximal_groups(np.abs(average[:, None] - average) < critical)
    assert len(groups) > 1, "else the numbers of this test prove little"
    drawing = ranks.plot(engine)
    expected = {(round(min(average[list(one)]), 9), round(max(average[list(one)]), 9)) for one in groups}
    assert bars(drawing.figure) == expected
    (ax,) = drawing.figure.axes
    marks = {line.get_label(): float(line.get_xdata()[0]) for line in ax.lines if line.get_label() in TITLES}
    assert marks == pytest.approx({labels.method_title(name): rank for name, rank in zip(METHODS, average, strict=True)})
    found = friedmanchisquare(*accuracy)
    assert f"chi squared = {found.statistic:.4g}, p = {found.pvalue:.3g}" in drawing.caption
    assert "7 methods over 8 settings: MNIST, Dir(0.1); MNIST, Dir(0.2);" in drawing.caption
    assert drawing.runs == tuple(range(1, 57))


def test_the_critical_difference_is_drawn_to_scale(engine: Engine) -> None:
    fill(engine, ordered(14, 0.01, 4), METHODS[:4])
    (ax,) = ranks.plot(engine).figure.axes
    (line,) = [line for line in ax.lines if line.get_gid() == "critical"]
    start, end = line.get_xdata()
    assert end - start == pytest.approx(1.25, abs=0.005), "Demsar (JMLR 2006), 4 classifiers on 14 data sets"
    assert "critical difference 1.25" in [text.get_text() for text in ax.texts]


def test_a_name_stands_with_its_rank_and_a_method_with_its_colour(engine: Engine) -> None:
    fill(engine, np.array([[0.5, 0.5, 0.9], [0.6, 0.7, 0.6], [0.7, 0.6, 0.7]]), ("local", "ditto", "fedala"))
    (ax,) = ranks.plot(engine).figure.axes
    # Ranks by hand: Local 3, 3, 1; Ditto 2, 1, 3; FedALA 1, 2, 2.
    assert {"FedALA (1.67)", "Ditto (2.00)", "(2.33) Local"} <= {text.get_text() for text in ax.texts}
    (mark,) = [line for line in ax.lines if line.get_label() == "Ditto"]
    assert (mark.get_color(), mark.get_marker()) == (looks.of("ditto").colour, looks.of("ditto").marker)
    elbows = {line.get_color() for line in ax.lines if len(line.get_xdata()) == 3}
    assert elbows == {looks.of(name).colour for name in ("local", "ditto", "fedala")}


def test_without_a_difference_nothing_is_joined_and_the_caption_says_so(engine: Engine) -> None:
    fill(engine, np.array([[0.5, 0.6, 0.7], [0.6, 0.7, 0.5], [0.7, 0.5, 0.6]]), METHODS[:3])
    drawing = ranks.plot(engine)
    assert bars(drawing.figure) == set()
    assert not [line for line in drawing.figure.axes[0].lines if line.get_gid() == "critical"]
    assert "finds no difference between the rows" in drawing.caption
    assert "Bars" not in drawing.caption


def test_ties_everywhere_are_drawn_too(engine: Engine) -> None:
    fill(engine, np.full((3, 3), 0.5), METHODS[:3])
    drawing = ranks.plot(engine)
    assert "p = 1." in drawing.caption
    marks = [line.get_xdata()[0] for line in drawing.figure.axes[0].lines if line.get_label() in TITLES]
    assert marks == [2, 2, 2]
    heights = [line.get_ydata()[0] for line in drawing.figure.axes[0].lines if line.get_label() in TITLES]
    size = max(line.get_markersize() for line in drawing.figure.axes[0].lines if line.get_label() in TITLES)
    pixels = drawing.figure.axes[0].transData.transform([(2, y) for y in heights])[:, 1]
    assert (np.diff(np.sort(pixels)) > size * style.DPI / 72).all(), "each marker is seen"
    assert drawing.figure.axes[0].get_xlim()[0] == 1
    assert_apart(drawing.figure)


def test_too_few_settings_for_any_result_are_told(engine: Engine) -> None:
    """Three methods in the same order in both settings: chi squared is 4, with 2 degrees of freedom p = exp(-2)."""
    fill(engine, np.array([[0.5, 0.6], [0.6, 0.7], [0.7, 0.8]]), METHODS[:3])
    said = ranks.plot(engine).caption
    assert f"Empty test: 3 rows in 2 settings cannot give p < 0.05; the smallest possible is {np.exp(-2):.3g}." in said
    with pytest.raises(UserError, match="three rows"):
        ranks.plot(engine, Filters(methods=METHODS[:2]))
    fill(engine, np.array([[0.1, 0.1, 0.4], [0.2, 0.2, 0.5], [0.3, 0.3, 0.6]]), METHODS[3:6])
    assert "Left out: 1 setting without runs of every row." in ranks.plot(engine).notes


def test_the_options_are_those_of_the_table(engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for method, values in zip(METHODS[:3], ([0.9, 0.1], [0.8, 0.2], [0.7, 0.3]), strict=True):
        for beta in (0.1, 0.5):
            add_run(engine, spec(method, partition={"scheme": "dirichlet", "beta": beta, "clients": 20}), values)
    engine.dispose()
    shell, file = Shell(capsys), tmp_path / "ranks.svg"
    options = ("--db", str(tmp_path / "results.db"), "-o", str(file))
    assert shell("plot", "ranks", *options).code == 0
    assert "Local (1.00)" in file.read_text()
    assert shell("plot", "ranks", "--round-rule", "last", *options).code == 0
    assert "(3.00) Local" in file.read_text()
    assert "last evaluated round" in file.with_suffix(".caption.txt").read_text()
    assert "--round-rule does not belong to `pflbench plot curves`" in shell.refused(
        "plot", "curves", "--round-rule", "last", *options
    )
    assert "three rows" in shell.refused("plot", "ranks", "-p", "Dir(0.1)", *options)


@pytest.mark.parametrize("rows", [3, 14, 28])
def test_texts_stay_inside_the_figure_and_clear_of_each_other(engine: Engine, rows: int) -> None:
    names = tuple([*methods.METHODS, *(f"{name}+ala" for name in methods.METHODS)][-rows:])
    fill(engine, ordered(5, 0.2, rows), names)
    figure = ranks.plot(engine).figure
    assert len(figure.axes[0].texts) > rows
    assert_apart(figure)


def assert_apart(figure: Figure) -> None:
    """All texts lie inside the figure, and none on another."""
    with style.context():
        figure.canvas.draw()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    (ax,) = figure.axes
    low, high = ax.get_xlim()
    ticks = [text for text in ax.get_xticklabels() if low <= text.get_position()[0] <= high]
    boxes = [text.get_window_extent(renderer) for text in [*ax.texts, *ticks]]
    for box in boxes:
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))


def test_on_a_page_ranks_are_those_of_scipy(engine: Engine) -> None:
    accuracy = np.array([[0.9, 0.8, 0.9], [0.5, 0.6, 0.5], [0.7, 0.9, 0.5]])
    for method, row in zip(("ditto", "fedavg", "local"), accuracy, strict=True):
        for beta, value in zip((0.1, 0.5, 1.0), row, strict=True):
            add_run(engine, spec(method, partition={"scheme": "dirichlet", "beta": beta, "clients": 20}), [0.1, value])
    one = only("ranks", engine)
    expected = rankdata(-accuracy, axis=0).mean(axis=1)
    drawn = {point["hovertemplate"].split("</b>")[0].removeprefix("<b>"): point["x"][0] for point in one.spec["data"]}
    assert drawn == {
        name: pytest.approx(rank, rel=1e-5) for name, rank in zip(("Ditto", "FedAvg", "Local"), expected, strict=True)
    }
    assert list(drawn) == ["Ditto", "Local", "FedAvg"]
    assert {point["mode"] for point in one.spec["data"]} == {"markers"}, "Friedman's test finds no difference among these"


def test_on_a_page_bars_are_half_the_critical_difference(engine: Engine) -> None:
    fill(engine, np.array([[0.5] * 6, [0.7] * 6, [0.6] * 6]), ("fedavg", "ditto", "local"))
    one = only("ranks", engine)
    bars, points = one.spec["data"][:3], one.spec["data"][3:]
    assert [point["x"] for point in points] == [[1], [2], [3]]  # in all of six settings
    assert points[0]["hovertemplate"].startswith("<b>Ditto")
    # Demsar (2006), Table 5: q of three methods at 0.05 is 2.343.
    half = 2.343 * (3 * 4 / (6 * 6)) ** 0.5 / 2
    assert [bar["x"] for bar in bars] == [pytest.approx([rank - half, rank + half], rel=1e-3) for rank in (1, 2, 3)]
    assert [bar["y"] for bar in bars] == [[0, 0], [1, 1], [2, 2]]
    assert "methods whose bars do not meet differ" in one.caption
