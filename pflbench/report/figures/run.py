"""The figures on the page of one run: its accuracy, its training loss, its clients and where its time went.

A figure for which a run has no values is left out.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report import looks, web
from pflbench.report.figures.curves import POINTS
from pflbench.report.looks import Look
from pflbench.report.selection import spread
from pflbench.report.traces import GREY, Axis, Panel, Trace
from pflbench.report.web import Interactive, Json
from pflbench.store import partitions, rounds
from pflbench.store.arrays import Floats, Integers
from pflbench.store.rounds import Clients, History, history
from pflbench.store.runs import Result

HEADLINE = "as deployed"
PHASES = ("local initialisation", "training and aggregation", "evaluation")
COLOURS = (looks.COLOURS[5], looks.COLOURS[0], looks.COLOURS[6])  # of the phases
POOLED = "pooled over the clients' test data"
ROUNDS = Axis("Round", whole=True)
ACCURACY = Axis("Test accuracy (%)")


def pages(engine: Engine, run: Result) -> tuple[Interactive, ...]:
    """All figures of a run, of its result by the best round."""
    found = history(engine, run.id)
    made = (_run_curve(engine, run, found), _train_loss(run, found), _client_accuracy(engine, run), _phases(run, found))
    return tuple(one for one in made if one is not None)


def _run_curve(engine: Engine, run: Result, found: History) -> Interactive | None:
    """Accuracy over rounds, of the headline and of second series, such as that of the global model."""
    if run.value is None or run.round is None:
        return None
    t, best = run.round, 100 * run.value
    own = _plain(run.method)
    others = [colour for colour in looks.COLOURS if web.legible(colour) == colour != own.colour]
    series = [_accuracy(HEADLINE, found.round, found.accuracy, found.test_loss, own)]
    for k, of in enumerate(rounds.second_series(engine, run.id)):
        series.append(_accuracy(of.name, of.round, of.accuracy, of.test_loss, Look(others[k % len(others)], "o", 0, 1)))
    star = Trace([t], [best], Look(GREY, "*", 0, 0), "best", "markers", size=6, hover="round %{x}: %{y:.2f} %")
    caption = f"Test accuracy, {POOLED}; round t: after t rounds, before the clients train again. Best: {best:.2f} %, round {t}."
    return web.figure(f"run-{run.id}", Panel("Accuracy over rounds", ROUNDS, ACCURACY, [*series, star], (run.id,)), caption)


def _train_loss(run: Result, found: History) -> Interactive | None:
    at = _spread(found.train_loss)
    if not at:
        return None
    line = Trace(found.round[at], found.train_loss[at], _plain(run.method), draws="lines", hover="round %{x}: %{y:.4f}")
    caption = "Mean loss over the local steps of a round, weighted by the clients' numbers of samples."
    return web.figure(f"run-{run.id}", Panel("Training loss", ROUNDS, Axis("Training loss"), [line], (run.id,)), caption)


def _client_accuracy(engine: Engine, run: Result) -> Interactive | None:
    """Accuracy of each client after the best round."""
    if run.round is None:
        return None
    try:
        clients = rounds.clients(engine, run.id, run.round)
    except UserError as error:
        web.reraise_database_error(error)
        return None
    trained = None if run.partition is None else partitions.find(engine, run.partition).train.sum(axis=1)
    panel = Panel("Accuracy by client", Axis("Client", whole=True), replace(ACCURACY, limits=(0, 100)), (), (run.id,))
    caption = f"Accuracy of each client on its own test data after round {clients.round}, the run's best."
    return web.figure(f"run-{run.id}", panel, caption, data=[_clients(clients, trained, _plain(run.method).colour)])


def _phases(run: Result, found: History) -> Interactive | None:
    """Seconds of each phase of a round."""
    spent = np.stack([found.receive, found.update, found.evaluate])
    (there,) = np.nonzero(~np.isnan(spent).all(axis=0))
    if not len(there):
        return None
    parts = np.array_split(there, min(POINTS, len(there)))
    ends = [(int(found.round[part[0]]), int(found.round[part[-1]])) for part in parts]
    means = np.array([np.nan_to_num(spent[:, part]).mean(axis=1) for part in parts]).T
    areas = [_area(name, ends, of, colour) for name, of, colour in zip(PHASES, means, COLOURS, strict=True)]
    several = f" Each point: the mean over up to {len(parts[0])} rounds." if len(parts[0]) > 1 else ""
    caption = f"Seconds that each phase of a round took. Evaluation is not part of the training time.{several}"
    panel = Panel("Seconds by phase", ROUNDS, Axis("Time per round (s)", zero=True), (), (run.id,))
    return web.figure(f"run-{run.id}", panel, caption, data=areas, showlegend=True)


def _plain(method: str) -> Look:
    """A solid line in the method's colour."""
    return replace(looks.of(method), dash=0)


def _spread(values: Floats) -> list[int]:
    """Indices of up to POINTS values that are there, including the first and the last."""
    return spread(np.flatnonzero(~np.isnan(values)).tolist(), POINTS)


def _accuracy(name: str, rounds: Integers, accuracy: Floats, loss: Floats, look: Look) -> Trace:
    at = _spread(accuracy)
    hover = "round %{x}: %{y:.2f} %<br>test loss %{customdata[0]:.4f}"
    return Trace(rounds[at], 100 * accuracy[at], look, name, "lines", hover=hover, data=loss[at][:, None].tolist())


def _clients(clients: Clients, trained: Integers | None, colour: str) -> Json:
    """Bars by client. trained [N]: training samples of each client."""
    rows = zip(clients.client, clients.correct, clients.total, clients.loss / clients.total, strict=True)
    return {
        "type": "bar",
        "x": clients.client.tolist(),
        "y": web.numbers(100 * clients.correct / clients.total),
        "marker": {"color": web.legible(colour)},
        "customdata": [
            [
                int(correct),
                int(total),
                *web.numbers([loss]),
                "" if trained is None else f"<br>{total + trained[client]:,} samples with those to train on",
            ]
            for client, correct, total, loss in rows
        ],
        "hovertemplate": (
            "client %{x}: %{y:.2f} %<br>%{customdata[0]:,} of %{customdata[1]:,} test samples, mean loss %{customdata[2]:.4f}"
            "%{customdata[3]}<extra></extra>"
        ),
    }


def _area(name: str, ends: list[tuple[int, int]], seconds: Floats, colour: str) -> Json:
    """ends: the first and last round of each point's mean."""
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
