"""What the papers say of the order of methods: that one is above another, and rankings; with the values printed for it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.stats import rankdata

from pflbench import methods
from pflbench.report import labels, paper
from pflbench.report.needed import LEADER, METHODS, WITH_ALA
from pflbench.report.paper import Place, PrintedValue

BASELINE = "fedavg"
_FEDALA, _POSTER, _LEADERBOARD = "FedALA paper", "Elastic Aggregation poster", "PFLlib leaderboard"


@dataclass(frozen=True)
class Claim:
    """Method `better` has a higher accuracy than `worse`. printed: the difference in points, by setting of the source."""

    better: str
    worse: str
    source: str
    printed: tuple[float, ...]

    @property
    def text(self) -> str:
        return f"{labels.method_title(self.better)} > {labels.method_title(self.worse)}"


@cache
def claims() -> tuple[Claim, ...]:
    """FedALA is above the methods it is compared with; ALA improves what it is plugged into; Elastic Aggregation, and every
    personalized method of the leaderboard, is above FedAvg.
    """
    printed = _printed()
    above = [(_FEDALA, LEADER, name) for name in METHODS if name != LEADER]
    # FedAvg with ALA is FedALA.
    above += [(_FEDALA, name, name.removesuffix("+ala")) for name in WITH_ALA if name != f"{BASELINE}+ala"]
    above.append((_POSTER, "elastic", BASELINE))
    listed = [name for name in methods.METHODS if any(name in of for of in printed[_LEADERBOARD].values())]
    above += [(_LEADERBOARD, name, BASELINE) for name in listed if name not in (BASELINE, "fedprox", LEADER)]
    found = []
    for source, better, worse in above:
        gaps = (round(of[better] - of[worse], 2) for of in printed[source].values() if {better, worse} <= of.keys())
        found.append(Claim(better, worse, source, tuple(gaps)))
    return tuple(found)


@cache
def rankings() -> dict[str, dict[str, float]]:
    """By source, the FedALA paper's accuracy tables and the leaderboard, each method's rank, 1 for the best: the mean over the
    settings that have a value for every method.
    """
    return {_FEDALA: _ranking(_FEDALA, METHODS), _LEADERBOARD: _ranking(_LEADERBOARD, tuple(methods.METHODS))}


def _ranking(source: str, among: tuple[str, ...]) -> dict[str, float]:
    settings = [{name: of[name] for name in among if name in of} for of in _printed()[source].values()]
    whole = [of for of in settings if len(of) == max(map(len, settings))]
    names = list(whole[0])
    ranks = [rankdata([-of[name] for name in names]) for of in whole]
    return dict(zip(names, map(float, np.mean(ranks, axis=0)), strict=True))


def _printed() -> dict[str, dict[Place, dict[str, float]]]:
    """Accuracies in percent by source, setting and method, at the methods' usual hyperparameters."""
    found: dict[str, dict[Place, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for value in paper.references():
        if dict(value.varied).items() <= paper.hyperparameters(value.method).items():
            found[_source(value)][value.place].setdefault(value.method, value.mean)
    return found


def _source(value: PrintedValue) -> str:
    if value.place.central:
        return _POSTER
    return _LEADERBOARD if value.table == paper.LEADERBOARD else _FEDALA
