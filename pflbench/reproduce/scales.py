"""How much of the papers' protocol a reproduction keeps: all of it, its settings in few rounds, or a small likeness of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pflbench.models import MODELS
from pflbench.report.needs import MethodLine, Planned, TableNeeds
from pflbench.report.paper import Place

# Of ALA's initial stage the fewest epochs that can end it, and one more.
_ALA = {"max_init_epochs": 12}
# What makes a round long, cut where nothing else than the time hangs on it.
CUT: dict[str, dict[str, Any]] = {
    "fedavg-c": {"finetune_epochs": 2},
    "fedprox-c": {"finetune_epochs": 2},
    "pfedme": {"K": 2},
    "fedala": _ALA,
}


@dataclass(frozen=True)
class Scale:
    """sentence: what it keeps, for whoever reads the result. seeds: of each run. rounds: of a run at most, None for the papers'.

    embedded: whether the digits take the place of all data.
    """

    name: str
    sentence: str
    seeds: int
    rounds: int | None = None
    embedded: bool = False

    def place(self, place: Place, fewest: int = 1) -> Place:
        """Where a cell is run at this scale. fewest: rounds that it needs."""
        rounds = place.rounds if self.rounds is None else min(place.rounds, max(self.rounds, fewest))
        if not self.embedded:
            return replace(place, rounds=rounds)
        kind, parameter = place.partition
        # 5 for 20: with 2 of 10 classes each, all classes are held. A group of one client is none.
        clients = max(min(20, place.clients // 4), 2 * int(parameter) if kind == "groups" else 1)
        return Place("digits", "mlp", place.partition, clients, 1.0 if place.join_ratio == 1 else 0.5, rounds, place.local_epochs)

    def line(self, line: MethodLine, factor: float = 1.0) -> MethodLine:
        """The same method. factor: by which rounds become fewer, and the round in which ALA starts becomes an earlier one."""
        varied = tuple((name, proportion(value, factor) if name == "start_round" else value) for name, value in line.varied)
        return replace(line, varied=varied)

    def allows(self, line: MethodLine) -> bool:
        """Whether the model of this scale has as many blocks as ALA ranges over in this line."""
        return not self.embedded or dict(line.varied).get("p", 1) <= len(MODELS["mlp"].blocks)

    def options(self, cell: Planned, fewest: int = 1) -> dict[str, Any]:
        """What it takes to run a cell at this scale: options of `pflbench run`, by the names of `plan.RunOptions`."""
        place = self.place(cell.place, fewest)
        line = self.line(cell.line, place.rounds / cell.place.rounds)
        found = Planned(line, place, None).options
        settings = (*found.pop("settings", ()), *(self._cut(line) if self.embedded else ()))
        return found | ({"settings": settings} if settings else {})

    def table(self, table: TableNeeds) -> TableNeeds:
        """The table that shows these runs: the papers' own, unless the digits stand in for its places."""
        if not self.embedded:
            return table
        places = tuple(dict.fromkeys(self.place(place) for place in table.places))
        lines = tuple(line for line in table.lines if self.allows(line))
        # The papers count the weights of their own models.
        return replace(table, lines=lines, places=places, extra=None if table.extra == "weights" else table.extra)

    def _cut(self, line: MethodLine) -> tuple[str, ...]:
        base, plus, _ = line.method.partition("+ala")
        cut = CUT.get(base, {}) | (_ALA if plus else {})
        return tuple(f"{line.method}.{name}={value}" for name, value in cut.items())


def proportion(number: int, factor: float) -> int:
    """A round, or an interval of rounds, in a run that is so much shorter."""
    return max(1, round(number * factor))


SCALES = {
    scale.name: scale
    for scale in (
        Scale("full", "the papers' protocol", 5),
        Scale("quick", "the papers' clients, models and settings, but at most 20 rounds and one seed", 1, 20),
        Scale(
            "smoke",
            "the embedded digits and an MLP in place of the papers' data and models, few clients, 3 to 10 rounds, one seed, "
            "shortened inner loops: it shows that everything works, and nothing about the methods",
            1,
            3,
            embedded=True,
        ),
    )
}
