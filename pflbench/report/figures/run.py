"""The figures on the page of one run: its accuracy, its training loss, its clients and where its time went.

Each is None where the run has nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report import looks, web
from pflbench.report.figures.curves import POINTS
from pflbench.report.web import Interactive, Json
from pflbench.store import partitions, rounds
from pflbench.store.arrays import Floats, Integers
from pflbench.store.rounds import Clients, History, SecondSeries, history
from pflbench.store.runs import Among, Result, Select, find, results

HEADLINE = "as deployed"
PHASES = ("local initialisation", "training and aggregation", "evaluation")
COLOURS = (looks.COLOURS[5], looks.COLOURS[0], looks.COLOURS[6])  # of the phases
POOLED = "pooled over the clients' test data"


def pages(engine: Engine, run_id: int) -> tuple[Interactive, ...]:
    """Those that there are. Raises UserError where there is no such run."""
    made = (make(engine, run_id) for make in (run_curve, train_loss, client_accuracy, phases))
    return tuple(one for one in made if one is not None)


def run_curve(engine: Engine, run_id: int) -> Interactive | None:
    """Accuracy over rounds, of the headline and of second series, such as that of the global model.

    Raises UserError where there is no such run.
    """
    run, found = _result(engine, run_id), history(engine, run_id)
    if run.value is None or run.round is None:
        return None
    t, best = run.round, 100 * run.value
    colour = web.colour_of(run.method)
    others = [other for other in looks.COLOURS if web.COLOURS.get(other, other) == other != colour]
    second = rounds.second_series(engine, run_id)
    series = [
        _accuracy(HEADLINE, found.round, found.accuracy, found.test_loss, colour, "solid"),
        *(_second(of, others[k % len(others)]) for k, of in enumerate(second)),
        _best(t, best),
    ]
    layout = web.layout(_rounds(found), web.axis("Test accuracy (%)"), legend=True)
    title = "Accuracy over rounds"
    caption = f"Test accuracy, {POOLED}; round t: after t rounds, before the clients train again. Best: {best:.2f} %, round {t}."
    return web.make(f"run-{run_id}", title, caption, series, layout, runs=[run_id])


def client_accuracy(engine: Engine, run_id: int) -> Interactive | None:
    """Accuracy of each client after the best round. Raises UserError where there is no such run."""
    run = _result(engine, run_id)
    if run.round is None:
        return None
    try:
        clients = rounds.clients(engine, run_id, run.round)
    except UserError as error:
        web.unless_absent(error)
        return None
    trained = None if run.partition is None else partitions.find(engine, run.partition).train.sum(axis=1)
    layout = web.layout(web.whole("Client", len(clients.client)), web.axis("Test accuracy (%)", range=[0, 100]))
    caption = f"Accuracy of each client on its own test data after round {clients.round}, the run's best."
    bars = _clients(clients, trained, web.colour_of(run.method))
    return web.make(f"run-{run_id}", "Accuracy by client", caption, [bars], layout, runs=[run_id])


def train_loss(engine: Engine, run_id: int) -> Interactive | None:
    """Training loss over rounds. Raises UserError where there is no such run."""
    name, found = find(engine, run_id).method, history(engine, run_id)
    (there,) = np.nonzero(~np.isnan(found.train_loss))
    if not len(there):
        return None
    at = there[_spread(len(there))]
    trace = {
        "type": "scatter",
        "mode": "lines",
        "x": web.numbers(found.round[at]),
        "y": web.numbers(found.train_loss[at]),
        "line": {"color": web.colour_of(name), "width": 2},
        "hovertemplate": "round %{x}: %{y:.4f}<extra></extra>",
    }
    layout = web.layout(_rounds(found), web.axis("Training loss"))
    caption = "Mean loss over the local steps of a round, weighted by the clients' numbers of samples."
    return web.make(f"run-{run_id}", "Training loss", caption, [trace], layout, runs=[run_id])


def phases(engine: Engine, run_id: int) -> Interactive | None:
    """Seconds of each phase of a round. Raises UserError where there is no such run."""
    find(engine, run_id)
    found = history(engine, run_id)
    spent = np.stack([found.receive, found.update, found.evaluate])
    (there,) = np.nonzero(~np.isnan(spent).all(axis=0))
    if not len(there):
        return None
    parts = np.array_split(there, min(POINTS, len(there)))
    ends = [(int(found.round[part[0]]), int(found.round[part[-1]])) for part in parts]
    means = np.array([np.nan_to_num(spent[:, part]).mean(axis=1) for part in parts]).T
    areas = [_area(name, ends, of, colour) for name, of, colour in zip(PHASES, means, COLOURS, strict=True)]
    layout = web.layout(_rounds(found), web.axis("Time per round (s)", rangemode="tozero"), legend=True)
    several = f" Each point: the mean over up to {len(parts[0])} rounds." if len(parts[0]) > 1 else ""
    caption = f"Seconds that each phase of a round took. Evaluation is not part of the training time.{several}"
    return web.make(f"run-{run_id}", "Seconds by phase", caption, areas, layout, runs=[run_id])


def _result(engine: Engine, run_id: int) -> Result:
    """The run with its best round. Raises UserError where there is no such run."""
    find(engine, run_id)
    (run,) = results(engine, Among(frozenset([run_id])), Select("best"))
    return run


def _rounds(of: History) -> Json:
    return web.whole("Round", int(of.round[-1]), rangemode="tozero")


def _spread(count: int) -> Integers:
    """Places of at most so many points, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, POINTS).round().astype(np.int64))


def _accuracy(name: str, rounds: Integers, accuracy: Floats, loss: Floats, colour: str, dash: str) -> Json:
    (there,) = np.nonzero(~np.isnan(accuracy))
    at = there[_spread(len(there))]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": web.text(name),
        "x": web.numbers(rounds[at]),
        "y": web.numbers(100 * accuracy[at]),
        "customdata": web.numbers(loss[at]),
        "line": {"color": colour, "dash": dash, "width": 2},
        "hovertemplate": f"{web.text(name)}<br>round %{{x}}: %{{y:.2f}} %<br>test loss %{{customdata:.4f}}<extra></extra>",
    }


def _second(of: SecondSeries, colour: str) -> Json:
    return _accuracy(of.name, of.round, of.accuracy, of.test_loss, colour, "dash")


def _best(round: int, accuracy: float) -> Json:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "best",
        "x": [round],
        "y": web.numbers([accuracy]),
        "marker": {"symbol": "star", "size": 12, "color": web.GREY},
        "hovertemplate": "best: round %{x}: %{y:.2f} %<extra></extra>",
    }


def _clients(clients: Clients, trained: Integers | None, colour: str) -> Json:
    """trained [N]: samples that each client trains on."""
    return {
        "type": "bar",
        "x": clients.client.tolist(),
        "y": web.numbers(100 * clients.correct / clients.total),
        "marker": {"color": colour},
        "customdata": list(_samples(clients, trained)),
        "hovertemplate": (
            "client %{x}: %{y:.2f} %<br>%{customdata[0]:,} of %{customdata[1]:,} test samples, mean loss %{customdata[2]:.4f}"
            "%{customdata[3]}<extra></extra>"
        ),
    }


def _samples(clients: Clients, trained: Integers | None) -> Iterator[list[int | float | str | None]]:
    for client, correct, total, loss in zip(
        clients.client.tolist(), clients.correct.tolist(), clients.total.tolist(), clients.loss.tolist(), strict=True
    ):
        both = "" if trained is None else f"<br>{total + trained[client]:,} samples with those to train on"
        yield [correct, total, *web.numbers([loss / total]), both]


def _area(name: str, ends: list[tuple[int, int]], seconds: Floats, colour: str) -> Json:
    """ends: the first and the last round that each point is the mean of."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "stackgroup": "seconds",
        "x": [last for _, last in ends],
        "y": web.numbers(seconds),
        "line": {"color": colour, "width": 1},
        "fillcolor": web.faint(colour, 0.8),
        "customdata": [str(first) if first == last else f"{first} to {last}" for first, last in ends],
        "hovertemplate": f"{name}<br>round %{{customdata}}: %{{y:.3f}} s<extra></extra>",
    }
