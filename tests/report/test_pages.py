"""Interactive figures: their numbers are those of the database, Plotly takes them, and they are legible in light and dark."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from matplotlib.quiver import Quiver
from sqlalchemy import Engine
from support.observed import PATHOLOGICAL, XI, add, pathological
from support.pages import PAGES, contrast, of_run, only, traces
from support.raw_sql import sql
from support.report_database import add_partition, add_run, spec
from support.swept import SENT, add_clients, clients

from pflbench import methods
from pflbench.errors import UserError
from pflbench.report import figures, looks, style, web
from pflbench.report.arrangement import Row
from pflbench.report.declared import PLOTS
from pflbench.report.figures import pages
from pflbench.report.figures import run as run_figures
from pflbench.report.selection import Filters
from pflbench.report.traces import GREY
from pflbench.report.web import Interactive
from pflbench.store import database as db

EVERYWHERE = ("fedavg", "ditto", "local")  # in all settings, which ranks need


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Something for every figure."""
    engine = db.connect(f"sqlite:///{tmp_path_factory.mktemp('full') / 'results.db'}")
    held = pathological(engine)
    for dataset in ("mnist", "cifar10"):
        for method, accuracy in zip(EVERYWHERE, (0.5, 0.7, 0.6), strict=True):
            for partition in (clients(20), clients(50), {"scheme": "dirichlet", "beta": 0.5, "clients": 20}):
                of = spec(method, dataset=dataset, partition=partition)
                tested = {"clients": np.arange(2), "correct": np.array([1, 2]), "total": np.array([9, 9]), "loss": np.zeros(2)}
                add_run(engine, of, [0.1, accuracy], seconds=2.0, **SENT, **tested)
    learned = {
        "ala_weights": [[0.0, 0.31, 1.0, 1.0]] * 4,
        "ala_blocks": [[0, 2, 4], [1, 0, 2]],
        "ala_epoch_losses": [[5.0, 4.0]] * 4,
        "ala_objective": [[1.0, 2.0]] * 4,
    }
    add(engine, "fedala", [{}, learned], partition=held, scheme=PATHOLOGICAL)
    add(engine, "fedamp", [{}, {"attention": XI}], partition=held, scheme=PATHOLOGICAL)
    models = np.random.default_rng(0).normal(size=(3, 2, 7)).astype(np.float32)
    add(engine, "fedrep", [{"trajectory_2": model} for model in models], scheme=clients(4))
    for epochs in (1, 5):
        tested = {"clients": np.arange(2), "correct": np.array([1, 2]), "total": np.array([9, 9]), "loss": np.zeros(2)}
        add_run(engine, spec("elastic", local_epochs=epochs), [0.1, 0.5], seconds=2.0, **SENT, **tested)
    for seed in (0, 1):
        adapted = [{"client": 19, "epochs": e, "correct": 1 + e + seed, "total": 9, "loss": 0.5} for e in range(6)]
        add_run(engine, spec("ditto", seed, new_clients=1), [0.1, 0.5], new_clients=adapted)
    return engine


def texts(of: Interactive) -> Iterator[str]:
    for trace in of.spec["data"]:
        yield from (trace[key] for key in ("name", "hovertemplate") if key in trace)


def test_each_is_drawn_on_paper_and_for_a_page_by_one_module_and_nothing_else_is_there() -> None:
    made = {name: import_module(f"pflbench.report.{entry.module}") for name, entry in PLOTS.items()}
    assert all(callable(module.plot) and callable(module.page) for module in made.values())
    modules = {f"{figures.__name__}.{found.name}" for found in iter_modules(figures.__path__)}
    assert modules == {module.__name__ for module in made.values()} | {run_figures.__name__}


@pytest.mark.parametrize("name", PLOTS)
def test_specs_are_plain_json_that_plotly_takes(full: Engine, name: str) -> None:
    made = pages(name, full, Filters(methods=EVERYWHERE if name == "ranks" else ()))
    assert made
    assert len({one.id for one in made}) == len(made)
    for one in made:
        assert json.loads(json.dumps(one.spec, allow_nan=False)) == one.spec
        go.Figure(one.spec)
        layout = one.spec["layout"]
        assert {"width", "title", "font", "template"}.isdisjoint(layout)
        assert "color" not in json.dumps([layout["xaxis"], layout["yaxis"], layout["legend"]])
        for trace in one.spec["data"]:
            assert trace.get("hoverinfo") == "skip" or "hovertemplate" in trace
        assert one.title
        assert one.caption.endswith(".")
        assert one.runs or name == "distribution"


DRAWN_BY_THEMSELVES = {"distribution", "ranks", "attention"}  # in print, on a page or both


@pytest.mark.parametrize("name", sorted(PLOTS.keys() - DRAWN_BY_THEMSELVES))
def test_a_page_has_the_points_and_the_axes_that_are_in_print(full: Engine, name: str) -> None:
    """Each panel of a print is a figure of the page. Of costs, 0 has a place on a page's logarithmic axis."""
    client = {"client": 0} if name == "ala-convergence" else {"client": 2} if name == "trajectory" else {}
    of = Filters(datasets=["cifar10" if name in ("fairness", "overhead") else "mnist"])
    on_paper = PLOTS[name].load()(full, of, **client).figure.axes
    tips = {
        ax: [held.XY + np.stack([held.U, held.V], 1) for held in ax.collections if isinstance(held, Quiver)] for ax in on_paper
    }
    on_page = [one.spec for one in pages(name, full, of)]
    assert len(on_paper) == len(on_page)
    scales = []
    for drawn in (
        [(ax.get_xscale(), ax.get_yscale(), [line.get_xydata() for line in ax.lines] + tips[ax]) for ax in on_paper],
        [
            (*(made["layout"][axis].get("type", "linear") for axis in ("xaxis", "yaxis")), points(made["data"]))
            for made in on_page
        ],
    ):
        scales.append(
            sorted(
                (x.replace("symlog", "log"), y, sorted(np.round(np.array(xy, float), 4).tolist() for xy in lines))
                for x, y, lines in drawn
            )
        )
    np.testing.assert_equal(*scales)


def points(traces: list[dict[str, Any]]) -> list[np.ndarray]:
    drawn = [trace for trace in traces if trace["type"] == "scatter" and "fill" not in trace and trace["x"] != [None]]
    return [np.array([trace["x"], trace["y"]], dtype=float).T for trace in drawn]


def test_curves_are_means_with_a_band_and_the_training_time(engine: Engine) -> None:
    for seed, values in enumerate(([0.1, 0.5, 0.7123456], [0.2, 0.6, 0.6])):
        add_run(engine, spec("fedavg", seed), values, seconds=1.0 + seed)
    add_run(engine, spec("ditto"), [0.3, 0.8, 0.9])
    one = only("curves", engine)
    band, line = traces(one, "FedAvg")
    rows = sql(
        engine,
        "select round, 100 * avg(accuracy), 100 * min(accuracy), 100 * max(accuracy) from round join run on run.id = run_id "
        "where method = 'fedavg' group by round order by round",
    )
    t, mean, low, high = np.array(rows).T
    np.testing.assert_array_equal(line["x"], t)
    np.testing.assert_allclose(line["y"], mean, rtol=1e-5)
    np.testing.assert_allclose(np.array(line["customdata"])[:, :2], np.stack([low, high]).T, rtol=1e-5)
    assert [point[2] for point in line["customdata"]] == [0, 1.5, 3]
    assert (band["x"], band["fill"], band["hoverinfo"]) == ([0, 1, 2, 2, 1, 0], "toself", "skip")
    np.testing.assert_allclose(band["y"], [*low, *high[::-1]], rtol=1e-5)
    assert band["legendgroup"] == line["legendgroup"]
    assert "runs 1, 2" in line["hovertemplate"]
    (ditto,) = traces(one, "Ditto")  # one run has no band, and without recorded times there are none to show
    assert "training" in line["hovertemplate"]
    assert "training" not in ditto["hovertemplate"]
    assert (one.title, one.runs) == ("MNIST, Dir(0.1)", (1, 2, 3))
    assert "Lines: mean; bands: minimum to maximum" in one.caption
    assert "Protocol: 4-layer CNN" in one.caption


def test_a_line_has_at_most_200_points_of_all_rounds(engine: Engine) -> None:
    run = add_run(engine, spec("fedavg"), [0.5])
    with sqlite3.connect(str(engine.url.database)) as connection:
        rows = [(run, t, t / 1000) for t in range(1, 901)]
        connection.executemany("insert into round (run_id, round, accuracy, train_loss) values (?, ?, ?, 1.0)", rows)
    for one in (only("curves", engine), *of_run(engine, run)[:2]):
        line = one.spec["data"][0]
        assert 150 < len(line["x"]) <= 200
        assert line["x"][-1] == 900


def test_all_settings_are_drawn_and_filters_choose_among_them(engine: Engine) -> None:
    for rounds in range(1, 8):
        add_run(engine, spec("fedavg", rounds=rounds), [0.1, 0.2])
    add_run(engine, spec("ditto", dataset="cifar10"), [0.1, 0.2], status="interrupted")
    assert len(pages("curves", engine)) == 7
    assert len(pages("curves", engine, Filters(status=["any"]))) == 8
    assert [one.title for one in pages("curves", engine, Filters(methods=["ditto"], status=["any"]))] == ["Cifar10, Dir(0.1)"]
    assert "1 interrupted" in pages("curves", engine)[0].notes[0]
    with pytest.raises(UserError, match="1 interrupted"):
        pages("curves", engine, Filters(datasets=["cifar10"]))


def test_what_is_not_there_and_what_is_wrong_is_said(engine: Engine) -> None:
    for name in PLOTS:
        with pytest.raises(UserError) as absent:
            pages(name, engine)
        assert absent.value.__cause__ is None, "it says what is absent, not that nothing can be read"
    engine.dispose()
    Path(str(engine.url.database)).write_bytes(b"no database" * 100_000)
    with pytest.raises(UserError, match="database"):
        pages("curves", engine)


def test_a_setting_without_what_it_takes_does_not_cost_the_others(engine: Engine) -> None:
    add_clients(engine, "fedavg", 0, [1, 2, 3])
    add_run(engine, spec("fedavg", dataset="cifar10"), [0.1, 0.2])
    one = only("fairness", engine)
    assert one.title == "MNIST, Dir(0.1)"
    assert "Left out: Run 2 has no client results after round 1." in one.notes


def test_circles_are_as_large_as_their_counts(engine: Engine) -> None:
    counts = np.array([[9, 0, 100], [3, 6, 1], [0, 0, 50]])
    add_partition(engine, "c" * 64, counts=counts)
    (circles,) = only("distribution", engine).spec["data"]
    ((train, test),) = sql(engine, "select train_counts, test_counts from partition")
    train, test = np.array(json.loads(train)), np.array(json.loads(test))
    sizes = circles["marker"]["size"]
    places = list(zip(circles["x"], circles["y"], strict=True))
    assert set(places) == {(i, k) for i in range(3) for k in range(3) if counts[i, k]}
    for (i, k), size, told in zip(places, sizes, circles["customdata"], strict=True):
        assert (size / max(sizes)) ** 2 == pytest.approx(counts[i, k] / 100, rel=1e-4)
        assert told == [f"class {k}", counts[i, k], train[i, k], test[i, k]]


def test_partitions_with_the_same_title_have_different_ids(engine: Engine) -> None:
    add_partition(engine, "a" * 64)
    add_partition(engine, "a" * 63 + "b")
    first, second = pages("distribution", engine)
    assert first.title == second.title
    assert second.id == f"{first.id}-2"


def test_labels_are_no_markup(engine: Engine) -> None:
    for value in ("<b>", "&"):
        add_run(engine, spec("fedavg", hyperparameters={"rule": value}), [0.1, 0.2])
    said = "".join(texts(only("curves", engine)))
    assert "FedAvg (rule=&lt;b&gt;)" in said
    assert "rule=<b>" not in said
    assert "rule=&amp;" in said


def test_colours_are_those_on_paper_and_legible_in_light_and_dark() -> None:
    rows = [Row("", name, name, name, 1, {}, looks.of(name)) for name in methods.METHODS]
    for row in rows:
        assert min(contrast(web.legible(row.look.colour), page) for page in PAGES) > 2
        printed = row.look.colour
        assert web.legible(printed) == printed or contrast(printed, PAGES[1]) < 2
    assert len({(web.legible(row.look.colour), row.look.marker) for row in rows}) == len(rows)
    for shade in (*style.shades(range(6), *web.SHADES).values(), GREY):
        assert min(contrast(shade, page) for page in PAGES) > 2


def test_figures_and_pages_import_nothing_heavy() -> None:
    code = (
        "import sys; from pflbench.report.declared import PLOTS; [entry.load() for entry in PLOTS.values()];"
        "import pflbench.site.page;"
        "print([m for m in ('torch', 'plotly', 'pandas', 'matplotlib', 'scipy', 'sklearn') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
