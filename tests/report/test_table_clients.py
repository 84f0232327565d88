"""`table clients` and `plot clients` by hand: who is below Local or FedAvg, by how much, the worst tenth, ties, no partner."""

from __future__ import annotations

from typing import Any

import pytest
from scipy.stats import wilcoxon
from sqlalchemy import Engine
from support.report_database import add_clients, add_run, spec

from pflbench.errors import NothingYet, UserError
from pflbench.report.arrangement import COLOURED
from pflbench.report.figures import clients as figure
from pflbench.report.looks import OTHER
from pflbench.report.selection import Filters
from pflbench.report.tables.clients import build
from pflbench.report.tables.grid import FORMATS, render
from pflbench.site.tables import view


def add(engine: Engine, method: str, seed: int, *rounds: dict[int, tuple[int, int]], **of: Any) -> int:
    return add_clients(engine, spec(method, seed, hyperparameters=of.pop("hyperparameters", {}), **of), *rounds)


def percent(*values: int) -> dict[int, tuple[int, int]]:
    return {k: (value, 100) for k, value in enumerate(values)}


def record(engine: Engine, method: str, filters: Filters = Filters(), **options: Any) -> dict[str, Any]:
    (found,) = (one for one in build(engine, filters, **options).grid().records if one["method"] == method)
    return found


LOCAL, FEDAVG = (
    [percent(50, 60, 70, 80, 90), percent(52, 60, 70, 80, 90)],
    [percent(10, 20, 70, 60, 95), percent(0, 30, 70, 60, 95)],
)
DITTO = [percent(60, 58, 70, 84, 81), percent(62, 66, 70, 84, 87)]


@pytest.fixture
def filled(engine: Engine) -> Engine:
    """Two seeds of five clients, and a client without test data."""
    for method, of in (("local", LOCAL), ("fedavg", FEDAVG), ("ditto", DITTO)):
        for seed, clients in enumerate(of):
            add(engine, method, seed, {**clients, 5: (0, 0)}, percent(0, 0, 0, 0, 0))
    return engine


def test_by_hand(filled: Engine) -> None:
    """Ditto beside Local: client 1 loses 2 points under seed 0, client 4 loses 9 and 3; client 2 is equal and not hurt."""
    ditto = record(filled, "ditto")
    assert (ditto["clients"], ditto["local_pairs"]) == (5, 10), "the client without test data does not count"
    assert ditto["below_local"] == pytest.approx(100 * 3 / 10)
    assert ditto["below_local_points"] == pytest.approx((2 + 9 + 3) / 3)
    assert ditto["below_fedavg"] == pytest.approx(100 * 2 / 10)
    assert ditto["below_fedavg_points"] == pytest.approx((14 + 8) / 2)
    assert ditto["mean"] == pytest.approx((70.6 + 73.8) / 2)
    assert ditto["worst_tenth"] == pytest.approx((58 + 62) / 2), "of five clients the worst one"
    # Means over the seeds minus Local's: 10, 2, 0, 4, -6. Of the four ranks 4, 1, 2, 3 one is negative, 3: 5 of 16 signs give
    # at most 3. FedAvg's are -46, -35, 0, -20, 5: the positive rank is 1, 2 of 16. Holm: 2 x 0.25, and 0.625 as it is.
    assert (ditto["local_p"], ditto["local_p_holm"]) == (2 * 5 / 16, 0.625)
    assert wilcoxon([10, 2, 4, -6]).pvalue == 0.625
    fedavg = record(filled, "fedavg")
    assert (fedavg["below_local"], fedavg["below_local_points"]) == (60, pytest.approx((40 + 40 + 20 + 52 + 30 + 20) / 6))
    assert (fedavg["local_p"], fedavg["local_p_holm"], fedavg["below_fedavg"]) == (2 * 2 / 16, 0.5, None)


def test_what_is_printed(filled: Engine) -> None:
    grid = build(filled).grid()
    heads = [" ".join(filter(None, column.head)) for column in grid.columns]
    assert heads == [
        "MNIST Dir(0.1) mean", "worst tenth", "below Local %", "by points", "p",
        "MNIST Dir(0.1) below FedAvg %", "by points", "p",
    ]  # fmt: skip
    texts = {label: [column.entries[i].text for column in grid.columns] for i, label in enumerate(grid.labels)}
    assert texts["Ditto"][:4] == ["72.20", "60.00", "30.0", "4.67"]
    assert texts["Local"][2:5] == texts["FedAvg"][5:] == ["", "", ""]
    for name in FORMATS:
        assert "Ditto" in render(grid, name, width=80)
    assert max(map(len, render(grid, width=80).splitlines())) <= 80
    assert grid.runs == (1, 2, 3, 4, 5, 6)


def test_a_page_shows_the_whole_setting_above_its_columns(filled: Engine) -> None:
    shown = view("clients", "", build(filled).grid())
    assert [(group.head, group.span) for group in shown.groups] == [(("MNIST", "Dir(0.1)"), 5), (("MNIST", "Dir(0.1)"), 3)]
    assert shown.heads[:2] == (("mean",), ("worst", "tenth"))


def test_equal_accuracies_are_not_hurt(engine: Engine) -> None:
    add(engine, "local", 0, percent(50, 60))
    add(engine, "ditto", 0, {0: (1, 2), 1: (3, 5)})
    ditto = record(engine, "ditto")
    assert (ditto["below_local"], ditto["below_local_points"], ditto["local_p"]) == (0, None, 1)


def test_partners_have_the_same_seed_and_setting(engine: Engine) -> None:
    """Seed 1 of Ditto has no Local; Local with other rounds is another setting; client 7 was tested by Ditto alone."""
    add(engine, "local", 0, percent(50, 60))
    add(engine, "local", 1, percent(0, 0), rounds=7)
    add(engine, "ditto", 0, percent(40, 70) | {7: (1, 1)})
    add(engine, "ditto", 1, percent(99, 1))
    add(engine, "fedala", 1, percent(99, 1))
    found = build(engine, Filters(rounds=(2000,)))
    by_method = {one["method"]: one for one in found.grid().records}
    assert (by_method["ditto"]["local_pairs"], by_method["ditto"]["below_local"]) == (2, 50)
    assert by_method["ditto"]["mean"] == pytest.approx(((40 + 70 + 100) / 3 + 50) / 2), "all of its own clients count in its mean"
    assert (by_method["fedala"]["local_pairs"], by_method["fedala"]["below_local"]) == (0, None)
    column = next(column for column in found.grid().columns if column.head[-1] == "below Local %")
    assert [entry.text for entry in column.entries] == ["", "50.0", "-"]
    assert any(note.startswith("Not all clients are paired") for note in found.notes)


@pytest.mark.parametrize(("rule", "share", "mean"), [("best", 50, 55), ("last", 100, 30), ("mean-last:2", 100, 42.5)])
def test_rounds_count_as_in_the_table_of_accuracy(engine: Engine, rule: str, share: float, mean: float) -> None:
    add(engine, "local", 0, percent(50, 50), percent(50, 50))
    add(engine, "ditto", 0, percent(60, 50), percent(20, 40))
    add(engine, "fedavg", 0, percent(70, 40), percent(20, 40))
    assert record(engine, "ditto", round_rule=rule)["mean"] == pytest.approx(mean)
    assert record(engine, "fedavg", round_rule=rule)["below_local"] == share


def test_methods_that_are_filtered_away_are_compared_with_all_the_same(filled: Engine) -> None:
    alone = build(filled, Filters(methods=["ditto"]))
    assert alone.grid().labels == ("Ditto",)
    whole, part = record(filled, "ditto"), alone.grid().records[0]
    assert [part[name] for name in ("below_local", "below_fedavg", "local_p")] == [
        whole[name] for name in ("below_local", "below_fedavg", "local_p")
    ]
    assert alone.grid().runs == (5, 6)


def test_of_several_rows_the_one_with_the_defaults_is_compared_with(engine: Engine) -> None:
    for version, value in ((1, 10), (2, 90)):
        add(engine, "fedavg", 0, percent(value, value), version=version)
    add(engine, "ditto", 0, percent(50, 50))
    found = build(engine)
    assert {one["method"]: one["below_fedavg"] for one in found.grid().records}["ditto"] == 100
    assert "Of several rows of Local or FedAvg the one compared with is FedAvg (v2)." in found.notes


def test_runs_without_results_by_client(engine: Engine) -> None:
    add_run(engine, spec("local", hyperparameters={}), [0.9])
    with pytest.raises(NothingYet, match="None of 1 run has results by client"):
        build(engine)
    add(engine, "ditto", 0, percent(50, 60))
    found = build(engine)
    assert [one["row"] for one in found.grid().records] == ["Ditto"]
    assert "Left out, without results by client: run 1." in found.notes


# -- the figure ----------------------------------------------------------------------------------------------------------


def test_lines_are_the_sorted_differences(filled: Engine) -> None:
    drawing = figure.plot(filled)
    (ax,) = drawing.figure.axes
    zero, fedavg, ditto = ax.lines
    assert zero.get_xydata().tolist() == [[0, 0], [100, 0]]
    assert ditto.get_xdata().tolist() == pytest.approx([5, 15, 25, 35, 45, 55, 65, 75, 85, 95])
    assert ditto.get_ydata().tolist() == pytest.approx([-9, -3, -2, 0, 0, 4, 4, 6, 10, 10])
    assert fedavg.get_ydata().min() == -52
    assert ax.get_ylabel().split() == ["Accuracy", "minus", "Local's", "(points)"]
    assert "Clients below zero are worse off than with Local." in drawing.caption
    assert set(drawing.runs) == {1, 2, 3, 4, 5, 6}
    (other,) = figure.plot(filled, Filters(methods=["ditto"]), against="fedavg").figure.axes
    assert [line.get_label() for line in other.lines] == ["FedAvg (zero)", "Ditto"]
    assert other.lines[1].get_ydata().min() == -14


def test_without_local_fedavg_is_at_zero(engine: Engine) -> None:
    add(engine, "fedavg", 0, percent(50, 60))
    with pytest.raises(UserError, match="of Local or FedAvg beside another") as alone:
        figure.plot(engine)
    assert "pflbench run -m local -d mnist" in alone.value.hint
    add(engine, "ditto", 0, percent(60, 60))
    (ax,) = figure.plot(engine).figure.axes
    assert ax.get_ylabel().split() == ["Accuracy", "minus", "FedAvg's", "(points)"]
    with pytest.raises(UserError, match="of Local beside another"):
        figure.plot(engine, against="local")
    for method in ("local", "fedavg"):
        add(engine, method, 0, percent(50, 60), dataset="cifar10")
    ditto = Filters(runs=["2"])
    assert [line.get_label() for line in figure.plot(engine, ditto).figure.axes[0].lines] == ["FedAvg (zero)", "Ditto"]
    lines = [line.get_label() for ax in figure.plot(engine).figure.axes for line in ax.lines]
    assert sorted(lines) == ["Ditto", "FedAvg", *["FedAvg or Local (zero)"] * 2], "one entry in the legend"


def test_of_many_methods_the_best_are_in_colour_and_decide_the_axis(engine: Engine) -> None:
    add(engine, "local", 0, percent(50, 50))
    for k in range(COLOURED + 5):
        add(engine, "ditto", 0, percent(60 - 3 * k, 61 - 3 * k), hyperparameters={"lam": float(k)})
    drawing = figure.plot(engine)
    (ax,) = drawing.figure.axes
    grey = [line for line in ax.lines if line.get_color() == OTHER.colour]
    assert len(grey) == 5
    low, high = ax.get_ylim()
    assert min(line.get_ydata().min() for line in grey) < low < 60 - 3 * (COLOURED - 1) - 50
    assert high > 11
    assert drawing.caption.endswith("The axis has the range of those in colour.")
