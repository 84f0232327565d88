"""`table new-clients`: accuracy of clients that never joined, after 0, 1, ... epochs of adaptation (methods.md 2.13)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlalchemy import Engine

from pflbench.errors import NothingYet
from pflbench.report import labels
from pflbench.report import statistics as stats
from pflbench.report.arrangement import Arranged
from pflbench.report.selection import Filters, spread
from pflbench.report.tables import cell as cellular
from pflbench.report.tables.cell import Cells
from pflbench.report.tables.grid import CellText, Column, Grid
from pflbench.store.rounds import Adaptation, adaptation
from pflbench.store.runs import Result

COLUMNS = 8  # of a setting with many epochs


@dataclass(frozen=True)
class NewClientsTable:
    """cells: of each setting of `found`, by number of epochs, those of its rows."""

    found: Arranged
    cells: tuple[dict[int, Cells], ...]
    wanted: stats.Statistics
    notes: tuple[str, ...]

    def grid(self) -> Grid:
        columns = []
        several = len({cell.n for column in self.cells for cells in column.values() for cell in cells if cell}) > 1
        for setting, column in zip(self.found.settings, self.cells, strict=True):
            for k, epochs in enumerate(spread(list(column), COLUMNS)):
                entries = tuple(CellText("") if cell is None else cellular.ours(cell, several) for cell in column[epochs])
                above = ("",) * len(setting.head) if k else setting.head
                columns.append(Column((*above, labels.counted(epochs, "epoch")), entries, beside=k > 0))
        records = tuple(
            {
                **self.found.names(i, j),
                "epochs": epochs,
                "mean": cell.mean,
                "std": cell.std,
                "std_kind": self.wanted.std,
                "interval": cell.interval,
                "best": cell.best,
                "runs": cell.runs,
                "seeds": cell.seeds,
                "values": cell.values,
                "rounds": cell.rounds,
            }
            for j, column in enumerate(self.cells)
            for epochs, cells in column.items()
            for i, cell in enumerate(cells)
            if cell
        )
        return Grid("New clients", tuple(row.label for row in self.found.rows), tuple(columns), self.notes, records)


def build(
    engine: Engine, filters: Filters = Filters(), *, std: stats.Std = "population", ci: float | None = None
) -> NewClientsTable:
    """Mean and std over the runs (seeds) of each method in each setting. std, ci: see `statistics.Statistics`.

    Raises UserError if no run has tested new clients.
    """
    wanted = stats.Statistics(std, ci)
    found, adapted = select(engine, filters)
    cells = tuple(_column(found, j, adapted, wanted) for j in range(len(found.settings)))
    said = (
        "Accuracy in %, pooled over the test data of the clients that never joined, after so many epochs of adaptation to their "
        "own training data. They begin with what the method gives a new client after the last round in which they were tested "
        "(methods.md 2.13); mean ± "
        f"{std} std over runs that differ in the seed."
    )
    return NewClientsTable(found, cells, wanted, (said, *found.notes))


def select(engine: Engine, filters: Filters) -> tuple[Arranged, dict[int, Adaptation]]:
    """The runs with results of new clients, which are also returned by run, valued by the last epoch; notes name the others.

    Raises UserError if there are none.
    """
    found = filters.select(engine)
    aside = [run for run in found.runs if run.spec["train"].get("new_clients", 0)]
    adapted = adaptation(engine, [run.id for run in aside])
    silent = [run for run in aside if run.id not in adapted]
    names = list(dict.fromkeys(labels.method_title(run.method, run.title) for run in silent if run.status == "finished"))
    undefined = (f"Not tested, as what their authors give a new client is not known here: {', '.join(names)}.",) if names else ()
    if not adapted:
        raise NothingYet(
            " ".join(("None of these runs has tested new clients.", *undefined)),
            "Make some: pflbench run -m fedavg -m fedrep -d digits --new-clients 3",
        )
    left = len(found.runs) - len(adapted) - sum(run.status == "finished" for run in silent)
    others = (f"Not counted: {labels.counted(left, 'run')} without results of new clients (`--new-clients`).",) if left else ()
    arranged = filters.arranged(engine, [_valued(run, adapted[run.id]) for run in aside if run.id in adapted])
    return replace(arranged, notes=(*undefined, *others, *found.notes)), adapted


def _valued(run: Result, of: Adaptation, epochs: int = -1) -> Result:
    return replace(run, value=float(of.accuracy[epochs]), round=of.round, used=1)


def _column(found: Arranged, j: int, adapted: dict[int, Adaptation], wanted: stats.Statistics) -> dict[int, Cells]:
    """The cells of a setting, by number of epochs."""

    def made(runs: tuple[Result, ...], epochs: int) -> cellular.Cell:
        return cellular.make([_valued(run, adapted[run.id], epochs) for run in runs], wanted)

    runs = [found.cells.get((i, j), ()) for i in range(len(found.rows))]
    fewest = min(len(adapted[run.id].accuracy) for of in runs for run in of)
    columns = {epochs: tuple(made(of, epochs) if of else None for of in runs) for epochs in range(fewest)}
    return {epochs: cellular.mark_best(cells) for epochs, cells in columns.items()}
