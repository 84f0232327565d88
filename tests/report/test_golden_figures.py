"""Every figure from the golden database (tests/golden): what its lines, points and matrices are made of, by SQL and NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from golden.raw import Raw, cells, majority
from matplotlib.figure import Figure
from matplotlib.quiver import Quiver
from scipy.stats import rankdata
from sqlalchemy import Engine
from support.figure_options import FILTERS, RANKED

from pflbench.report import baselines, labels, looks
from pflbench.report.declared import PLOTS
from pflbench.report.selection import Filters
from pflbench.report.style import Drawing

Check = Callable[[Figure, Raw], set[int]]
CHECKS: dict[str, Check] = {}
SAID = {"elastic": ("on the central test set", "What is not varied: classes per client 2, join ratio 0.4, local epochs 1.")}


def checks(name: str) -> Callable[[Check], Check]:
    def keep(check: Check) -> Check:
        CHECKS[name] = check
        return check

    return keep


@pytest.mark.parametrize("name", PLOTS)
def test_a_figure(name: str, golden: Engine, raw: Raw) -> None:
    """A check compares the data and returns the runs that the figure has to be made of. A new figure needs one."""
    drawing: Drawing = PLOTS[name].load()(golden, FILTERS.get(name, Filters()))
    assert set(drawing.runs) == CHECKS[name](drawing.figure, raw)
    assert drawing.caption.endswith(".")
    assert all(words in drawing.caption for words in SAID.get(name, ()))


def test_a_majority_class_below_the_axis_is_not_in_the_legend(golden: Engine) -> None:
    for y_min, there in ((1.0, True), (60.0, False)):
        drawing = PLOTS["curves"].load()(golden, FILTERS["curves"], y_min=y_min)
        assert (baselines.MAJORITY in drawing.caption) == there
        assert any(line.get_label() == baselines.MAJORITY for line in drawing.figure.axes[0].lines) == there


def points(xy: np.ndarray) -> tuple[float, ...]:
    return tuple(np.round(np.asarray(xy, dtype=float), 9).ravel().tolist())


@checks("curves")
def curves(figure: Figure, raw: Raw) -> set[int]:
    (ax,) = figure.axes
    runs = raw.where("dataset == 'digits' and beta == 1")
    *lines, floor = ax.lines
    (partition,) = set(runs["partition_id"])
    np.testing.assert_allclose(floor.get_ydata(), majority(*raw.partition(partition)))
    for line, method in zip(lines, ("fedavg", "ditto", "fedala"), strict=True):
        own = runs[runs["method"] == method].index
        accuracy = pd.DataFrame({run: 100 * raw.of(run)["accuracy"] for run in own})
        assert line.get_label().startswith(labels.method_title(method))
        np.testing.assert_allclose(line.get_xydata(), accuracy.mean(axis=1).reset_index().to_numpy(), rtol=1e-9)
        band = ax.collections[("fedavg", "ditto", "fedala").index(method)].get_paths()[0].vertices
        for t, values in accuracy.iterrows():
            drawn = band[band[:, 0] == t][:, 1]
            assert (drawn.min(), drawn.max()) == (pytest.approx(values.min()), pytest.approx(values.max()))
    return set(runs.index)


@checks("distribution")
def distribution(figure: Figure, raw: Raw) -> set[int]:
    numbers = [
        raw.where(query)["partition_id"].iloc[0] for query in ("beta == 0.01", "dataset == 'digits' and scheme == 'groups'")
    ]
    assert len(figure.axes) == len(numbers) == 2
    for ax, number in zip(figure.axes, numbers, strict=True):
        counts = sum(raw.partition(number))
        (circles,) = ax.collections
        client, label = np.asarray(circles.get_offsets()).astype(int).T
        assert set(zip(client, label, strict=True)) == set(zip(*counts.nonzero(), strict=True))
        np.testing.assert_allclose(circles.get_sizes() / circles.get_sizes().max(), counts[client, label] / counts.max())
    return set()  # a partition is of no run


@checks("overhead")
def overhead(figure: Figure, raw: Raw) -> set[int]:
    runs = raw.where("dataset == 'digits' and scheme == 'pathological'")
    expected: tuple[dict[str, tuple[float, ...]], ...] = ({}, {})
    for method, own in runs.groupby("method"):
        spent, sent = [], []
        for run in own.index:
            rounds = raw.of(run)
            converged = rounds.index[rounds["accuracy"] >= rounds["accuracy"].max() - 0.005][0]
            upto = rounds.loc[1:converged]
            spent.append((upto["seconds_receive"] + upto["seconds_update"]).sum())
            sent.append((upto["bytes_up"] + upto["bytes_down"]).sum() / runs.loc[run, "clients"] / 1e6)
        for panel, cost in zip(expected, (spent, sent), strict=True):
            panel[labels.method_title(str(method))] = points([np.mean(cost), own["value"].mean()])
    for ax, panel in zip(figure.axes, expected, strict=True):
        drawn = {line.get_label().partition(" (")[0]: points(line.get_xydata()) for line in ax.lines[1:]}
        assert drawn == {name: pytest.approx(xy, rel=1e-6) for name, xy in panel.items()}
    return set(runs.index)


def over(runs: pd.DataFrame, x: str, y: str = "value") -> set[tuple[float, ...]]:
    """Mean of y at each x, of each method with two x or more and of each set of hyperparameters: the lines' points."""
    lines = [own.groupby(x)[y].mean().reset_index() for _, own in runs.groupby("method_spec")]
    return {points(line.to_numpy()) for line in lines if len(line) > 1}


@checks("scalability")
def scalability(figure: Figure, raw: Raw) -> set[int]:
    runs = raw.where("dataset == 'digits' and model == 'mlp' and beta == 0.1 and method in ('fedavg', 'ditto')").copy()
    trained = {run: raw.of(run).loc[1:] for run in runs.index}
    runs["seconds"] = [(rounds["seconds_receive"] + rounds["seconds_update"]).median() for rounds in trained.values()]
    for ax, y in zip(figure.axes, ("value", "seconds"), strict=True):
        assert {points(line.get_xydata()) for line in ax.lines} == over(runs, "clients", y)
        assert len(ax.lines) == 2
    return set(runs.index)


@checks("heterogeneity")
def heterogeneity(figure: Figure, raw: Raw) -> set[int]:
    runs = raw.where("dataset == 'tiny' and model == 'cnn'")
    (ax,) = figure.axes
    expected = over(runs, "beta")
    assert {points(line.get_xydata()) for line in ax.lines} == expected
    assert len(expected) == 3
    several = [own for _, own in runs.groupby("method_spec") if own["beta"].nunique() > 1]
    return set(pd.concat(several).index)


@checks("elastic")
def elastic(figure: Figure, raw: Raw) -> set[int]:
    """Around two classes, two of five clients and one epoch; on the central test set, not on the clients'."""
    runs = raw.central(raw.where("dataset == 'mnist' and model == 'logreg' and lr == 0.001"))
    kept = {"classes": 2, "ratio": 0.4, "epochs": 1}
    assert len(figure.axes) == len(kept)
    scales = {"classes": "Classes per client", "ratio": "Join ratio", "epochs": "Local epochs"}
    for ax, varied in zip(figure.axes, kept, strict=True):
        assert ax.get_xlabel() == f"{scales[varied]}, log scale"
        here = runs[np.logical_and.reduce([runs[other] == kept[other] for other in kept if other != varied])]
        assert {points(line.get_xydata()) for line in ax.lines} == over(here, varied)
        assert len(ax.lines) == here["method"].nunique() == here[varied].nunique() == 2
    assert (runs["value"] != raw.runs.loc[runs.index, "value"]).any()
    return set(runs.index)


@checks("fairness")
def fairness(figure: Figure, raw: Raw) -> set[int]:
    runs = raw.where("dataset == 'digits' and beta == 1")
    (ax,) = figure.axes
    assert [text.get_text() for text in ax.get_yticklabels()] == ["FedAvg", "Ditto", "FedALA"]
    for k, method in enumerate(("fedavg", "ditto", "fedala")):
        quartiles, each, low, median = ax.lines[4 * k : 4 * k + 4]
        own = [raw.clients(run, row["at"]) for run, row in runs[runs["method"] == method].iterrows()]
        accuracies = [100 * (of["correct"] / of["total"]).to_numpy() for of in own]
        np.testing.assert_allclose(np.sort(each.get_xdata()), np.sort(np.concatenate(accuracies)))
        np.testing.assert_allclose(quartiles.get_xdata(), np.percentile(np.concatenate(accuracies), [25, 75]))
        assert median.get_xdata()[0] == pytest.approx(np.mean([np.median(of) for of in accuracies]))
        assert median.get_color() == looks.of(method).colour
        worst = [np.sort(of)[: math.ceil(len(of) / 10)].mean() for of in accuracies]
        assert low.get_xdata()[0] == pytest.approx(np.mean(worst))
    return set(runs.index)


@checks("clients")
def clients(figure: Figure, raw: Raw) -> set[int]:
    runs = raw.where("dataset == 'fashionmnist'")
    assert len(figure.axes) == runs["partition"].nunique() == 3
    seen: set[tuple[tuple[float, ...], ...]] = set()
    for ax in figure.axes:
        assert ax.lines[0].get_xydata().tolist() == [[0, 0], [100, 0]]
        seen.add(tuple(points(line.get_xydata()) for line in ax.lines[1:]))
    for _, here in runs.groupby("partition"):
        local, *others = (
            np.concatenate([raw.clients(run, row["at"]).eval("100 * correct / total") for run, row in of.iterrows()])
            for of in (here[here["method"] == method] for method in ("local", "fedavg", "fedamp"))
        )
        x = (np.arange(20) + 0.5) * 5
        seen.remove(tuple(points(np.stack([x, np.sort((of - local).round(9))], axis=1)) for of in others))
    return set(runs.index)


@checks("new-clients")
def new_clients(figure: Figure, raw: Raw) -> set[int]:
    runs = raw.where("dataset == 'digits' and scheme == 'iid' and method != 'fedamp'")
    accuracy = raw.new_clients(runs)
    (ax,) = figure.axes
    for line, method in zip(ax.lines, ("local", "fedprox", "per-fedavg"), strict=True):
        assert line.get_label() == labels.method_title(method)
        np.testing.assert_allclose(line.get_xydata(), [(e, accuracy[method, e].mean()) for e in range(4)])
    return set(runs.index)


@checks("ranks")
def ranks(figure: Figure, raw: Raw) -> set[int]:
    runs = raw.where("beta == 0.1").query(f"method in {RANKED}")
    means = runs.groupby(["setting", "method"])["value"].mean().unstack().dropna()
    average = dict(zip(means.columns, rankdata(-means.round(2).to_numpy(), axis=1).mean(axis=0), strict=True))
    drawn = {line.get_label().partition(" (")[0]: line.get_xdata()[0] for line in figure.axes[0].lines}
    assert {name: drawn[labels.method_title(name)] for name in average} == pytest.approx(average)
    return set(runs[runs["setting"].isin(means.index)].index)


@checks("attention")
def attention(figure: Figure, raw: Raw) -> set[int]:
    kept = {run: name for name in ("attention", "relationships") for run in raw.keeping(name)}
    images = [
        ax for ax in figure.axes if ax.images and ax.images[0].get_array().ndim == 2 and ax.get_xlabel().startswith("Client")
    ]
    assert len(images) == len(kept) == 2
    for ax, run in zip(images, sorted(kept, key=lambda run: raw.runs.loc[run, "method"] == "apple"), strict=True):
        matrix = list(raw.arrays(run, kept[run]).values())[-1].copy()
        np.fill_diagonal(matrix, np.nan)
        order = [int(text.get_text()) for text in ax.get_xticklabels()]
        counts = sum(raw.partition(raw.runs.loc[run, "partition_id"]))
        groups = [client // 2 for client in order]  # ten clients in five groups
        assert groups == sorted(groups)
        for a, b in pairwise(order):
            assert a // 2 != b // 2 or counts[a].max() / counts[a].sum() >= counts[b].max() / counts[b].sum()
        drawn = np.ma.filled(ax.images[0].get_array(), np.nan)
        np.testing.assert_allclose(drawn, matrix[np.ix_(order, order)], rtol=1e-6, atol=1e-300)
    return set(kept)


@checks("ala-weights")
def ala_weights(figure: Figure, raw: Raw) -> set[int]:
    (run,) = raw.keeping("ala_weights")
    weights, blocks = raw.arrays(run, "ala_weights"), next(iter(raw.arrays(run, "ala_blocks").values()))
    for ax, (_, start, stop) in zip(figure.axes, blocks.astype(int), strict=True):
        for steps, array in zip(ax.lines, weights.values(), strict=True):
            own = array[:, start:stop]
            counts = np.histogram(own[~np.isnan(own)], 20, (0, 1))[0]
            np.testing.assert_allclose(steps.get_ydata()[:-1], 100 * counts / counts.sum(), atol=1e-6)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [f"round {t + 1}" for t in weights]
    return {run}


@checks("ala-convergence")
def ala_convergence(figure: Figure, raw: Raw) -> set[int]:
    (run,) = raw.keeping("ala_epoch_losses")
    mine = [array[8][~np.isnan(array[8])] for array in raw.arrays(run, "ala_epoch_losses").values()]
    (ax,) = figure.axes
    drawn = [line.get_ydata() for line in ax.lines]
    assert len(drawn) == len(mine) > 1
    for line, losses in zip(drawn, mine, strict=True):
        np.testing.assert_allclose(line, losses, rtol=1e-6)
    return {run}


@checks("loss")
def loss(figure: Figure, raw: Raw) -> set[int]:
    (run,) = raw.keeping("ala_objective")
    terms = raw.arrays(run, "ala_objective")
    samples = raw.partition(raw.runs.loc[run, "partition_id"])[0].sum(axis=1)
    trained, initialised = np.array([np.average(losses, axis=0, weights=samples) for losses in terms.values()]).T
    (ax,) = figure.axes
    assert not np.isnan(trained).any()
    np.testing.assert_allclose(ax.lines[0].get_xydata(), np.stack([np.array(list(terms)) + 1, initialised], axis=1), rtol=1e-6)
    np.testing.assert_allclose(ax.lines[1].get_xydata(), np.stack([np.array(list(terms)), trained], axis=1), rtol=1e-6)
    return {run}


@checks("trajectory")
def trajectory(figure: Figure, raw: Raw) -> set[int]:
    """The plane by a singular value decomposition; its axes have no sign of their own."""
    kept = raw.keeping("trajectory_4")
    models = np.stack([np.stack(list(raw.arrays(run, "trajectory_4").values())) for run in kept])  # [runs, rounds, 2, P]
    flat = models.reshape(-1, models.shape[-1])
    _, _, axes = np.linalg.svd(flat - flat.mean(axis=0), full_matrices=False)
    at = ((flat - flat.mean(axis=0)) @ axes[:2].T).reshape(*models.shape[:3], 2)
    ax = figure.axes[0]
    arrows = [held for held in ax.collections if isinstance(held, Quiver)]
    starts = np.stack([line.get_xydata() for line in ax.lines if line.get_marker() == "o"])
    ends = np.stack([held.XY + np.stack([held.U, held.V], axis=1) for held in arrows])
    for drawn, side in ((starts, 0), (ends, 1)):
        signs = np.sign((drawn * at[:, :, side]).sum(axis=(0, 1)))
        np.testing.assert_allclose(drawn, at[:, :, side] * signs, atol=1e-5)
    ((_, surface),) = raw.arrays(kept[0], "surface_4").items()
    filled = next(held for held in ax.collections if hasattr(held, "levels"))
    assert (filled.levels.min(), filled.levels.max()) == (
        pytest.approx(surface[..., 2].min()), pytest.approx(surface[..., 2].max()),
    )  # fmt: skip
    assert len(cells(raw.runs.loc[kept])) == 2
    return set(kept)
