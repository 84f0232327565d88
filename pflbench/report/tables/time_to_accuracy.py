"""`table time-to-accuracy`: rounds, bytes and seconds until a run first reaches an accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

from sqlalchemy import Engine

from pflbench.report import labels
from pflbench.report.arrangement import Arranged
from pflbench.report.selection import Filters
from pflbench.report.tables.grid import CellText, Column, Grid
from pflbench.store.rounds import Reached, reached
from pflbench.store.runs import Result

SHARE = 0.9  # of a setting's best accuracy: its target unless one is asked for
# Head, name of the value, its format and unit.
_COLUMNS = (
    ("rounds", "round", ".4g", 1),
    ("MB", "bytes", ".4g", 1e-6),
    ("s", "seconds", ".2f", 1),
    ("simulated s", "seconds_simulated", ".4g", 1),
)


@dataclass(frozen=True)
class TimeCell:
    """One method in one setting. values: means over those of its runs that reached the target; None where nothing is known."""

    values: dict[str, float | None]
    reached: int
    runs: tuple[int, ...]

    def text(self, name: str, form: str, unit: float) -> str:
        if not self.reached:
            return "never"
        value, some = self.values[name], f" ({self.reached}/{len(self.runs)})" if self.reached < len(self.runs) else ""
        return "-" if value is None else labels.number(value * unit, form) + some


@dataclass(frozen=True)
class TimeTable:
    """cells[i, j] is row i of `found` in its setting j. targets: of the settings, in [0, 1]."""

    found: Arranged
    targets: tuple[float, ...]
    cells: dict[tuple[int, int], TimeCell]

    def grid(self) -> Grid:
        columns: list[Column] = []
        for j, setting in enumerate(self.found.settings):
            cells = [self.cells.get((i, j)) for i in range(len(self.found.rows))]
            above = (*setting.head, f"target {100 * self.targets[j]:.4g} %")
            simulated = any(cell and cell.values["seconds_simulated"] is not None for cell in cells)
            for k, (head, name, form, unit) in enumerate(_COLUMNS if simulated else _COLUMNS[:-1]):
                entries = [CellText(c.text(name, form, unit) if c else "-", runs=c.runs if c and k == 0 else ()) for c in cells]
                columns.append(Column((*(("",) * len(above) if k else above), head), tuple(entries), beside=k > 0))
        records = tuple(
            {
                **self.found.names(i, j),
                "target": self.targets[j],
                "reached": cell.reached,
                **cell.values,
                "runs": cell.runs,
            }
            for (i, j), cell in self.cells.items()
        )
        return Grid("Time to accuracy", tuple(row.label for row in self.found.rows), tuple(columns), self._notes, records)

    @property
    def _notes(self) -> tuple[str, ...]:
        said: tuple[str, ...] = (
            "Up to the first evaluated round with the accuracy in the head: rounds; MB that all clients sent and received; "
            "seconds of reception and update, without evaluation. Means over runs that differ in the seed.",
        )
        if any(cell.values["seconds_simulated"] is not None for cell in self.cells.values()):
            said += ("Simulated s: of the clients' devices and networks, as the protocol has them.",)
        if any(0 < cell.reached < len(cell.runs) for cell in self.cells.values()):
            said += ("(1/3): one of three runs has reached it, and only that one counts.",)
        return (*said, *self.found.notes)


def build(engine: Engine, filters: Filters = Filters(), *, target: float | None = None) -> TimeTable:
    """target: of accuracy, in percent; by default SHARE of the best accuracy of each setting.

    Raises UserError where there is nothing to show.
    """
    found = filters.select(engine)
    best = [max(run.value or 0.0 for _, runs in found.column(j) for run in runs) for j in range(len(found.settings))]
    targets = tuple(SHARE * of_setting if target is None else target / 100 for of_setting in best)
    times: dict[int, Reached] = {}
    for j, of_setting in enumerate(targets):
        times |= reached(engine, [run.id for _, runs in found.column(j) for run in runs], of_setting)
    return TimeTable(found, targets, {place: _cell(runs, times) for place, runs in sorted(found.cells.items())})


def _cell(runs: Sequence[Result], times: Mapping[int, Reached]) -> TimeCell:
    known = [asdict(times[run.id]) for run in runs if run.id in times]
    values: dict[str, Any] = {}
    for _, name, _, _ in _COLUMNS:
        of_all = [one[name] for one in known]
        values[name] = mean(of_all) if of_all and None not in of_all else None
    return TimeCell(values, len(known), tuple(run.id for run in runs))
