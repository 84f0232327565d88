"""What --dry-run of `run` and `sweep` prints: finished and missing runs, their time, memory and disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pflbench.cli.console import duration, message, say
from pflbench.cli.db import opened_or_empty

if TYPE_CHECKING:
    from pflbench.errors import UserError
    from pflbench.reproduce.forecast import Forecast
    from pflbench.run.execution import Execution
    from pflbench.spec import RunSpec
    from pflbench.store.sweeps import SweepState
    from pflbench.sweep.choose_executor import ExecutorOptions


@dataclass(frozen=True)
class Ahead:
    """runs: that are not over; here: those that can start. without: dataset -> why it cannot be read.

    together: runs at a time; 0 if a cluster decides. forecast: None if it takes a few minutes at most, or if no data are here.
    """

    state: SweepState
    runs: list[RunSpec]
    here: list[RunSpec]
    without: dict[str, UserError]
    together: int
    forecast: Forecast | None

    def record(self) -> dict[str, Any]:
        """As JSON types."""
        found, places = self.forecast, self.together or 1
        return {
            "to_run": len(self.runs),
            "without_data": {label: reason.message for label, reason in self.without.items()},
            "states": dict(self.state.counts),
            "at_a_time": self.together,
            "seconds": found and found.seconds and found.seconds / places,
            "disk": found and found.disk,
            "memory": found and found.memory and found.memory * places,
        }

    def show(self) -> None:
        """Prints what is to run, and what it takes."""
        from pflbench.report.labels import counted

        for label, reason in self.without.items():
            waiting = sum(spec.data.label == label for spec in self.runs)
            say(f"{reason.message} {counted(waiting, 'run')} cannot start. {reason.hint}")
        if not self.runs:
            say("No run is missing.")
            return
        if not self.here:
            say(f"To run: {len(self.runs)}. Time: unknown without the data.")
            return
        places = f"{self.together} at a time" if self.together else "as many at a time as the cluster has room for"
        words = forecast_words(self.forecast, self.together or 1) if self.forecast else "a few minutes at most"
        say(f"To run: {len(self.here)}, {places}: {words}.")


def forecast_words(found: Forecast, places: int) -> str:
    """Time, memory and disk of runs, so many at a time."""
    how_known = "measured on a few batches" if found.measured else "by rounds in this database"
    time = "time unknown" if found.seconds is None else f"about {duration(found.seconds / places)} ({how_known})"
    memory = "" if found.memory is None else f", {found.memory * places / 1e9:.2g} GB of memory"
    return f"{time}{memory}, {max(found.disk, 1e6) / 1e6:,.0f} MB of disk"


def look_ahead(specs: Sequence[RunSpec], db: str, data_dir: Path, how: Execution, executor: ExecutorOptions) -> Ahead:
    """Creates no database. Runs without data are counted but not timed."""
    from pflbench.reproduce.forecast import forecast
    from pflbench.reproduce.progress import lacking
    from pflbench.store.locks import OVER
    from pflbench.store.sweeps import sweep_state
    from pflbench.sweep.choose_executor import at_a_time

    with opened_or_empty(db) as results:
        state = sweep_state(results, specs)
        runs = [spec for spec in specs if state.states[spec.key] not in OVER]
        without = lacking(runs, data_dir)
        here = [spec for spec in runs if spec.data.label not in without]
        together = (at_a_time(executor, here, data_dir, how) or 0) if here else 0
        return Ahead(state, runs, here, without, together, forecast(here, results, data_dir, how, message))
