"""Reads the measures beside accuracy, which `run --metrics-every` keeps as an array of their rounds (methods.md 2.9)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
from sqlalchemy import Engine

from pflbench.store import arrays, rounds
from pflbench.store.rounds import Curve
from pflbench.store.runs import Result, RoundRule

NAME = "measures"  # of the array [1 + N, 3]: row 0 is of all clients' test samples together, row 1 + i of client i's
COLUMNS = ("auc", "balanced-accuracy", "macro-f1")
AFTER_TRAINING = "after training"  # the second series of `run --test-after-training`
TITLES = {
    "auc": "AUC",
    "balanced-accuracy": "Balanced accuracy",
    "macro-f1": "Macro-F1",
    "after-training": "Accuracy after local training",
}
"""By the names of --metric, of which the last is a second series."""
AT_ONCE = 100  # rounds whose arrays are in memory together


def curves(engine: Engine, run_ids: Collection[int], metric: str) -> dict[int, Curve]:
    """A measure of runs over the rounds in which it was computed and defined; runs without are left out. metric: of TITLES."""
    found = {}
    if metric not in COLUMNS:
        for run in run_ids:
            for series in rounds.second_series(engine, run):
                if series.name == AFTER_TRAINING:
                    found[run] = Curve(series.round, series.accuracy)
        return found
    for (run, _), stored in arrays.rounds(engine, run_ids, [NAME]).items():
        parts = (stored[k : k + AT_ONCE] for k in range(0, len(stored), AT_ONCE))
        of_run = [array[0, COLUMNS.index(metric)] for part in parts for array in arrays.read(engine, run, NAME, part).values()]
        values = np.array(of_run)
        if (defined := ~np.isnan(values)).any():
            found[run] = Curve(np.array(stored)[defined], values[defined])
    return found


def by_measure(engine: Engine, results: Sequence[Result], metric: str, rule: RoundRule) -> list[Result]:
    """The results by a measure instead of accuracy, one of TITLES, without `best`; runs without it are left out.

    The rule is that of accuracy, over the rounds in which the measure was computed: of `best` the most accurate of them counts.
    """
    if metric not in COLUMNS:
        return rounds.by_series(engine, results, AFTER_TRAINING, rule)
    measured = curves(engine, [result.id for result in results], metric)
    found = []
    for result in results:
        if (curve := measured.get(result.id)) is None:
            continue
        if result.within is not None:
            within = curve.round <= result.within
            curve = Curve(curve.round[within], curve.accuracy[within])
        if not len(curve.round):
            continue
        chosen = slice(-rule.last, None)
        if rule.rule in ("best", "val"):
            own = rounds.history(engine, result.id)
            judged = (own.accuracy if rule.rule == "best" else own.val_accuracy)[np.isin(own.round, curve.round)]
            if np.isnan(judged).all():
                continue
            best = int(np.nanargmax(judged))
            chosen = slice(best, best + 1)
        values, at = curve.accuracy[chosen], curve.round[chosen]
        found.append(replace(result, value=float(values.mean()), round=int(at[-1]), used=len(values), best=None))
    return found
