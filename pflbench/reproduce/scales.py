"""Scales of a reproduction: each setting in full (full), the same settings in few rounds (quick), a tiny stand-in (smoke)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pflbench.models import MODELS
from pflbench.report.needed import MethodLine, Planned, TableNeeds
from pflbench.report.paper import Place

# One more than the fewest epochs after which ALA's initial stage can end.
_ALA = {"max_init_epochs": 12}
# Hyperparameters that only make a round longer, reduced at scale smoke.
CUT: dict[str, dict[str, Any]] = {
    "fedavg-c": {"finetune_epochs": 2},
    "fedprox-c": {"finetune_epochs": 2},
    "pfedme": {"K": 2},
    "fedala": _ALA,
}

DIGITS = 10.0  # classes of the embedded dataset


@dataclass(frozen=True)
class Scale:
    """sentence: describes the scale in the result. seeds: number of them. rounds: at most so many; None: the papers'.

    embedded: whether the digits dataset replaces all others.
    """

    name: str
    sentence: str
    seeds: int
    rounds: int | None = None
    embedded: bool = False

    def place(self, place: Place, fewest: int = 1) -> Place:
        """The setting of a cell at this scale. fewest: rounds that the figure needs at least."""
        rounds = place.rounds if self.rounds is None else min(place.rounds, max(self.rounds, fewest))
        if not self.embedded:
            return replace(place, rounds=rounds)
        kind, parameter = place.partition
        if kind == "pathological":
            parameter = min(parameter, DIGITS)
        # 5 instead of 20 clients: with 2 of 10 classes each, they hold all classes. A group needs two clients.
        clients = max(min(20, place.clients // 4), 2 * int(parameter) if kind == "groups" else 1)
        return Place(
            *("digits", "mlp", (kind, parameter), clients, 1.0 if place.join_ratio == 1 else 0.5, rounds, place.local_epochs),
            new_clients=place.new_clients * clients // place.clients,
        )

    def allows(self, line: MethodLine) -> bool:
        """Whether the model of this scale has the `p` blocks that this line adapts."""
        return not self.embedded or dict(line.varied).get("p", 1) <= len(MODELS["mlp"].blocks)

    def options(self, cell: Planned, fewest: int = 1) -> dict[str, Any]:
        """Options of `pflbench run` that run a cell at this scale, by the names of `run.options.RunOptions`."""
        place = self.place(cell.place, fewest)
        # The round in which ALA starts moves with the rounds.
        factor = place.rounds / cell.place.rounds
        varied = ((name, proportion(value, factor) if name == "start_round" else value) for name, value in cell.line.varied)
        found = Planned(replace(cell.line, varied=tuple(varied)), place, None).options
        settings = found.pop("settings", ())
        if self.embedded:
            base, plus, _ = cell.line.method.partition("+ala")
            cut = CUT.get(base, {}) | (_ALA if plus else {})
            settings = (*settings, *(f"{cell.line.method}.{name}={value}" for name, value in cut.items()))
        return found | ({"settings": settings} if settings else {})

    def table(self, table: TableNeeds) -> TableNeeds:
        """The table with the settings and lines of this scale."""
        if not self.embedded:
            return table
        places = tuple(dict.fromkeys(map(self.place, table.own_places)))
        lines = tuple(line for line in table.lines if self.allows(line))
        # The papers' numbers of weights are those of their own models.
        return replace(table, lines=lines, places=places, beside=(), extra=None if table.extra == "weights" else table.extra)


def proportion(number: int, factor: float) -> int:
    """A round, or an interval of rounds, scaled to a shorter run: at least 1."""
    return max(1, round(number * factor))


SCALES = {
    scale.name: scale
    for scale in (
        Scale("full", "each setting in full, with five seeds", 5),
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
