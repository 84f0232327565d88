"""Figures over several settings: what is drawn is computed from what is stored, and what is missing is named with its command."""

from __future__ import annotations

import numpy as np
import pytest
from sqlalchemy import Engine
from support.report_database import add_run, spec
from support.swept import SENT, clients, sent

from pflbench.errors import UserError
from pflbench.report.figures import elastic, fairness, heterogeneity, overhead, scalability
from pflbench.report.selection import Filters
from pflbench.report.statistics import worst_tenth


def test_the_front_is_that_found_by_hand() -> None:
    #       A    B    C    D    E    F (as good as D and dearer), G (as cheap as A and worse)
    cost = [1.0, 2.0, 3.0, 4.0, 0.0, 5.0, 1.0]
    accuracy = [60., 50., 70., 90., 10., 90., 55.]  # fmt: skip
    assert overhead.front(cost, accuracy) == [4, 0, 2, 3]


def test_costs_are_those_until_convergence_and_means_over_seeds(engine: Engine) -> None:
    runs = {
        sent(engine, "fedavg", [0.1, 0.5, 0.8, 0.8], seconds=2.0, megabytes=3.0),  # best 80 %, reached in round 2
        sent(engine, "fedavg", [0.1, 0.7, 0.3, 0.3], seconds=1.0, megabytes=3.0, seed=1),  # best 70 %, reached in round 1
        sent(engine, "ditto", [0.1, 0.9, 0.9, 0.9], seconds=20.0, megabytes=3.0),
        sent(engine, "local", [0.1, 0.2, 0.2, 0.6], seconds=0.5, megabytes=0.0),
    }
    drawing = overhead.plot(engine)
    time, bytes_ = drawing.figure.axes
    drawn = [{line.get_label(): line.get_xydata()[0].tolist() for line in ax.lines[1:]} for ax in (time, bytes_)]
    assert drawn[0]["FedAvg"] == pytest.approx([(2 * 2.0 + 1 * 1.0) / 2, 75])
    assert drawn[0]["Local"] == pytest.approx([1.5, 60])
    assert drawn[1]["FedAvg"] == pytest.approx([(2 * 3 + 1 * 3) / 2, 75])
    assert drawn[1]["Ditto"] == pytest.approx([3, 90])
    assert drawn[1]["Local"] == pytest.approx([0, 60])
    np.testing.assert_allclose(time.lines[0].get_xydata(), [[1.5, 60], [2.5, 75], [20, 90]])
    np.testing.assert_allclose(bytes_.lines[0].get_xydata(), [[0, 60], [3, 90]])  # FedAvg costs more than Ditto and is worse
    assert "0" in [text.get_text() for text in bytes_.get_xticklabels()]
    assert set(drawing.runs) == runs


def test_a_larger_tolerance_converges_earlier(engine: Engine) -> None:
    sent(engine, "fedavg", [0.1, 0.75, 0.8, 0.8], seconds=2.0, megabytes=3.0)
    assert overhead.plot(engine).figure.axes[0].lines[1].get_xdata() == [4.0]
    assert overhead.plot(engine, tolerance=10.0).figure.axes[0].lines[1].get_xdata() == [2.0]


def test_runs_that_never_trained_are_named(engine: Engine) -> None:
    add_run(engine, spec("fedavg"), [0.1])
    with pytest.raises(UserError, match="trained and evaluated round"):
        overhead.plot(engine)


def test_scalability_is_over_settings_that_differ_in_the_clients_alone(engine: Engine) -> None:
    for number, accuracies in ((20, (0.6, 0.8)), (50, (0.5, 0.7))):
        for seed, accuracy in enumerate(accuracies):
            add_run(engine, spec("fedavg", seed, partition=clients(number)), [0.1, accuracy], seconds=float(number), **SENT)
    add_run(engine, spec("ditto", partition=clients(50)), [0.1, 0.9])  # one value is no line
    add_run(engine, spec("fedavg", partition=clients(100), lr=0.5), [0.1, 0.9])  # another protocol
    drawing = scalability.plot(engine)
    accuracy, seconds = drawing.figure.axes
    (line,) = accuracy.lines
    np.testing.assert_allclose(line.get_xydata(), [[20, 70], [50, 60]])
    np.testing.assert_allclose(seconds.lines[0].get_xydata(), [[20, 20], [50, 50]])
    (bars,) = accuracy.collections
    np.testing.assert_allclose([segment[:, 1] for segment in bars.get_segments()], [[60, 80], [50, 70]])
    assert [text.get_text() for text in accuracy.get_xticklabels()] == ["20", "50"]
    assert accuracy.get_title() == "MNIST, Dir(0.1)"
    assert "MNIST, Dir(0.1), lr 0.1" in drawing.caption
    assert "left out: Ditto" in drawing.caption
    assert drawing.runs == (1, 2, 3, 4)
    assert "20 clients" not in drawing.protocol


def test_without_two_numbers_of_clients_the_command_is_named(engine: Engine) -> None:
    add_run(engine, spec("fedavg"), [0.1, 0.9])
    add_run(engine, spec("ditto", partition=clients(50)), [0.1, 0.9])
    with pytest.raises(UserError, match=r"(?s)differ in clients.*pflbench run .*--clients 20"):
        scalability.plot(engine)
    with pytest.raises(UserError, match=r"(?s)differ in beta.*pflbench run .*--beta 1"):
        heterogeneity.plot(engine)


def test_elastic_without_runs_of_it_names_the_command(engine: Engine) -> None:
    for epochs in (1, 5):
        add_run(engine, spec("fedavg", local_epochs=epochs), [0.1, 0.9])
    with pytest.raises(UserError, match=r"(?s)no runs of Elastic.*pflbench run .*-m elastic"):
        elastic.plot(engine)
    with pytest.raises(UserError, match="no runs in two settings"):
        elastic.plot(engine, Filters(methods=["fedavg"]))


def test_the_longest_sweep_comes_first(engine: Engine) -> None:
    for dataset, numbers in (("mnist", (10, 20)), ("cifar10", (10, 20, 50))):
        for number in numbers:
            add_run(engine, spec("fedavg", dataset=dataset, partition=clients(number)), [0.1, 0.5])
    found = scalability.FIGURE.sweeps(Filters().select(engine))
    assert [(sweep.title, sweep.values) for sweep in found] == [
        ("Cifar10, Dir(0.1)", (10, 20, 50)),
        ("MNIST, Dir(0.1)", (10, 20)),
    ]


def test_the_worst_tenth_is_at_least_one_client() -> None:
    assert worst_tenth([50.0, 20.0, 90.0]) == 20
    assert worst_tenth(np.arange(30.0)) == 1  # three of thirty: 0, 1, 2
    assert worst_tenth(np.arange(70.0)) == 3, "seven of seventy, though 0.1 * 70 is a little more than 7"
    assert worst_tenth(np.arange(71.0)) == 3.5, "eight: a tenth of 71 is rounded up"


def test_runs_without_client_results_are_named(engine: Engine) -> None:
    add_run(engine, spec("fedavg"), [0.1, 0.2])
    with pytest.raises(UserError, match="Run 1 has no client results"):
        fairness.plot(engine)
