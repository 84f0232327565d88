"""How long missing runs will take, from what rounds took in the same database."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from pflbench.report.paper import seconds_per_iteration
from pflbench.reproduce.standing import Standing
from pflbench.spec import RunSpec
from pflbench.store.rounds import Speed

BASELINE = "fedavg"

# dataset, model, clients that join a round, their local epochs
Setting = tuple[str, str, int, int]


@dataclass(frozen=True)
class Estimate:
    """seconds: of what is left of a run, None where nothing tells. basis: what it rests on."""

    seconds: float | None
    basis: str


class Clock:
    """Seconds per round by method and setting: medians over the runs that there are."""

    def __init__(self, measured: Sequence[Speed]) -> None:
        taken: dict[str, dict[Setting, list[float]]] = defaultdict(lambda: defaultdict(list))
        for one in measured:
            taken[one.method][one.dataset, one.model, one.clients, one.epochs].append(one.seconds)
        self._seconds = {name: {at: median(values) for at, values in own.items()} for name, own in taken.items()}

    def left(self, standing: Standing) -> Estimate:
        """Of the rounds that a run has still to do."""
        if not standing.rounds_left:
            return Estimate(0.0, "nothing left")
        seconds, basis = self._round(standing.wanted.spec)
        return Estimate(None if seconds is None else seconds * standing.rounds_left, basis)

    def _round(self, spec: RunSpec) -> tuple[float | None, str]:
        train = spec.train
        at = (spec.data.label, spec.model, int(train.join_ratio * spec.partition.clients), train.local_epochs)
        own, baseline = (self._seconds.get(name, {}).get(at) for name in (spec.method.name, BASELINE))
        if own is not None:
            return own, "measured"
        if baseline is None:
            return None, "neither the method nor FedAvg was measured in that setting"
        ratio, basis = self._ratio(spec.method.name)
        return (None if ratio is None else ratio * baseline), basis

    def _ratio(self, method: str) -> tuple[float | None, str]:
        """A method's round in rounds of FedAvg: as measured in other settings, else as the paper's Table 3 has it."""
        baseline = self._seconds.get(BASELINE, {})
        ratios = [seconds / baseline[at] for at, seconds in self._seconds.get(method, {}).items() if baseline.get(at)]
        if ratios:
            return median(ratios), "FedAvg's, times the ratio in other settings"
        paper = seconds_per_iteration()
        if method in paper:
            return paper[method] / paper[BASELINE], "FedAvg's, times the ratio in the paper's Table 3"
        return None, f"how {method} compares with FedAvg is not known"
